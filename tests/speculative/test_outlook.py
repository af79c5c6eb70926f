"""What a draft is expected to cost and bring: measured steps, guessing and acceptance put together."""

from __future__ import annotations

import pytest
from simulated_machines import Machine, Playing, Trace, World

from runner.speculative.drafter import Draft
from runner.speculative.outlook import Outlook, RecentRounds, Shadow

UNIT = 1e-3  # seconds of a plain step
STEPS = [0.0, *(1 + 0.1 * n for n in range(16))]  # by their tokens
DRAFT_MAX = 8


def outlook(*, is_host_only: bool = False) -> Outlook:
    """Of an answer after some quiet steps. Where guessing takes time, a token takes a fifth of a plain step."""
    world = World(Trace("none", (), ()), Machine("none", {1: 1.0}), 0)
    found = Outlook(Playing(world, is_host_only), DRAFT_MAX)
    found.steps.calibrate(lambda n: UNIT * STEPS[n])
    for _ in range(8):
        found.steps.learn_plain(UNIT)
    found.guessing.learn(10, 2 * UNIT)
    return found


def refilling(*, is_host_only: bool = False) -> Outlook:
    """A step after a draft takes a third of a plain one longer."""
    found = outlook(is_host_only=is_host_only)
    for _ in range(100):
        found.steps.learn_break()
        found.steps.learn_plain(4 / 3 * UNIT)
        found.steps.learn_plain(UNIT)
    assert found.steps.refill == pytest.approx(1 / 3, rel=1e-3)
    return found


def test_where_guessing_takes_time_more_is_expected_of_it_before_anything_is_known() -> None:
    assert outlook(is_host_only=True).acceptance.chances((0,)) == pytest.approx([0.5])
    assert outlook().acceptance.chances((0,)) == pytest.approx([0.7])


def test_asking_takes_reading_the_first_guess_and_what_it_leaves_the_next_step() -> None:
    found = outlook()
    found.guessing.learn_reading(100, 10 * UNIT)
    assert found.call_cost(5) == pytest.approx(5 * 0.1 + 0.2)
    for _ in range(100):
        found.steps.learn_plain(1.25 * UNIT, is_asked=True)
        found.steps.learn_plain(UNIT)
        found.steps.learn_plain(UNIT)
    assert found.steps.unseen == pytest.approx(0.25, rel=0.01)
    assert found.call_cost(0) == pytest.approx(0.2 + found.steps.unseen)


def test_what_a_draft_that_fails_may_lose_has_the_step_after_it() -> None:
    found = refilling()
    assert found.failing(4) == pytest.approx(0.4 + found.steps.refill)
    assert found.worst_loss == pytest.approx(found.failing(DRAFT_MAX) + DRAFT_MAX * 0.2)


@pytest.mark.parametrize(("n_guessed", "to_pay"), [(0, 4), (1, 3), (3, 1), (4, 0)])
def test_a_round_costs_its_step_what_follows_it_and_the_tokens_that_are_still_to_be_guessed(
    n_guessed: int, to_pay: int
) -> None:
    found = refilling()
    best = found.best((0,) * 4, n_guessed, spent=0.5, least=4)
    assert best.cost == pytest.approx(0.5 + 1.4 + found.steps.refill + to_pay * 0.2)
    assert found.best((0,), 1, spent=0.5, least=1).cost == pytest.approx(0.5 + 1.1 + found.steps.refill)


def test_a_plain_round_costs_what_is_spent_already_and_no_more() -> None:
    found = refilling()
    for _ in range(20):
        found.acceptance.learn(0, (0,), 0)
    assert (found.best((0,) * 4, 4, spent=0.5).n, found.best((0,) * 4, 4, spent=0.5).cost) == (0, 1.5)


def test_a_draft_that_beats_plain_steps_pays_however_slow_the_last_rounds_were() -> None:
    found = outlook()
    for _ in range(20):
        found.learn_rate(1, 5.0)
    assert found.rate == 1.0


def test_the_rate_of_tokens_follows_the_last_rounds() -> None:
    found = outlook()
    found.learn_rate(3, 1.5)
    assert found.rate == pytest.approx((1 + 2 / 16) / (1 + 0.5 / 16))
    for _ in range(200):
        found.learn_rate(3, 1.5)
    assert found.rate == pytest.approx(2.0)


def test_rounds_alike_count_as_so_many() -> None:
    one_by_one, at_once = outlook(), outlook()
    for _ in range(6):
        one_by_one.learn_rate(3, 1.5)
    at_once.learn_rate(18, 9.0, 6)
    assert at_once.rate == pytest.approx(one_by_one.rate)


def test_a_guess_is_compared_to_its_end_or_its_first_wrong_token() -> None:
    found, shadow = outlook(), Shadow(Draft((1, 2, 3), (0, 0, 0)))
    assert not found.compare(shadow, (1,))
    assert found.compare(shadow, (2, 3, 4))
    assert found.compare(Shadow(Draft((1, 2, 3), (0, 0, 0))), (1, 9))


def test_the_last_sixteen_rounds_are_judged_and_none_before_they_were_cleared() -> None:
    recent = RecentRounds()
    for n_tokens, cost in ((1, 9.0), *[(4, 2.0)] * 15):
        assert not recent.is_full
        recent.add(5, n_tokens, cost)
    assert recent.is_full
    assert recent.gain == pytest.approx(61 / 39)
    recent.add(5, 4, 2.0)
    assert recent.gain == pytest.approx(2.0)
    recent.clear()
    recent.add(3, 1, 2.0)
    assert recent.gain == pytest.approx(0.5)
    assert str(recent) == "drafts of 3.0 cost 2.0 plain steps and bring 1.0 tokens"
