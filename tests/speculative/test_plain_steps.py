"""What a plain step takes, by its kind, and what of it is noise. A quiet one takes a second here."""

from __future__ import annotations

import random

import pytest

from runner.speculative.plain_steps import PlainSteps, lower


def quiet(n: int = 3) -> PlainSteps:
    """After so many quiet steps of an answer."""
    steps = PlainSteps()
    for _ in range(n):
        steps.learn(1.0, is_asked=False)
    return steps


def after_draft(steps: PlainSteps, seconds: float, n_handed: int = 1) -> float:
    steps.learn_draft(n_handed)
    return steps.learn(seconds, is_asked=False)


@pytest.mark.parametrize(("n", "at"), [(1, 0), (2, 0), (3, 0), (4, 1), (6, 1), (7, 2)])
def test_the_lower_third_ends_where_as_many_are_below_as_half_of_those_above(n: int, at: int) -> None:
    assert lower(reversed(range(n))) == at


def test_nothing_is_known_before_the_first_step() -> None:
    steps = PlainSteps()
    assert steps.seconds == 0.0
    assert (steps.is_fresh, steps.unseen, steps.refill) == (False, 0.0, 0.0)
    assert steps.learn(5.0, is_asked=True) == 1.0


def test_what_a_first_draft_brought_cannot_be_counted_while_no_step_is_known() -> None:
    assert after_draft(PlainSteps(), 9.0, n_handed=8) == 1.0


# --- which steps tell what a quiet one takes -------------------------------------------------------------------------


def test_a_step_after_asking_is_not_a_quiet_one() -> None:
    steps = quiet()
    for _ in range(9):
        steps.learn(2.0, is_asked=True)
        steps.learn(3.0, is_asked=False)
    assert steps.seconds == 1.0
    steps.learn(2.0, is_asked=False)
    assert steps.learn(2.0, is_asked=False) == 1.0


def test_an_answer_that_ended_with_a_draft_leaves_the_first_step_of_the_next_quiet() -> None:
    steps = quiet()
    steps.learn_draft(1)
    steps.begin()
    for _ in range(2):
        assert not steps.is_fresh
        steps.learn(2.0, is_asked=False)
    assert steps.is_fresh
    assert steps.seconds == 2.0


def test_before_the_quiet_steps_of_an_answer_the_others_tell_nothing() -> None:
    steps = quiet(6)
    steps.begin()
    assert [steps.learn(1.4, is_asked=True) for _ in range(100)] == [1.0] * 100
    assert steps.unseen == 0.0


def test_steps_that_draft_by_themselves_make_the_comparison_old() -> None:
    steps = quiet()
    for _ in range(64):
        assert steps.is_fresh
        steps.pass_stride()
    assert not steps.is_fresh


def test_of_many_steps_the_first_tells_only_what_it_follows_or_what_nothing_told_yet() -> None:
    steps = PlainSteps()
    assert steps.pass_by(2, 3.0, 3.0) == 2
    assert steps.is_fresh
    assert steps.seconds == 3.0
    for _ in range(5):
        assert steps.pass_by(8, 1.0, 3.0) == 8
        assert steps.seconds == 3.0


def test_a_single_step_after_a_draft_is_no_quiet_one() -> None:
    steps = quiet(1)
    for _ in range(9):
        steps.learn_draft(1)
        assert steps.pass_by(1, 1.25, 1.25) == 1.25
    assert not steps.is_fresh


# --- what a step counts as -------------------------------------------------------------------------------------------


def test_a_step_for_which_a_drafter_was_asked_counts_as_a_quiet_one_until_its_kind_is_known() -> None:
    steps = quiet(6)
    counted = [steps.learn(1.25, is_asked=True) for _ in range(7)]
    assert counted[:5] == [1.0] * 5
    assert counted[-1] == pytest.approx(1.25)


def test_of_a_step_after_a_draft_four_plain_steps_count_at_most_and_never_less_than_one() -> None:
    assert after_draft(quiet(), 3.7) == pytest.approx(3.7)
    assert after_draft(quiet(), 9.0) == 5.0
    assert after_draft(quiet(), 0.5) == 1.0


def test_what_fills_a_pipeline_again_is_known_whole_and_what_a_caller_took_is_no_part_of_it() -> None:
    steps = quiet(8)
    for n_handed, seconds in ((1, 3.5), (8, 9.0)) * 8:
        steps.learn_draft(n_handed)
        steps.learn(seconds, is_asked=False)
        steps.learn(1.0, is_asked=False)
    assert steps.refill == pytest.approx(2.5)


def test_of_a_step_after_a_draft_what_quiet_ones_are_longer_by_does_not_count() -> None:
    steps = PlainSteps()
    for seconds in (1.0, 1.0, 1.2, 1.2):
        steps.learn(seconds, is_asked=False)
    assert steps.seconds == 1.0
    assert after_draft(steps, 1.3) == pytest.approx(1.2)


def test_what_the_caller_did_is_counted_in_the_step_in_which_it_took_a_drafts_tokens_alone() -> None:
    steps = quiet(6)
    for _ in range(20):
        after_draft(steps, 1.25)
        steps.learn(1.0, is_asked=False)
    assert after_draft(steps, 6.0, n_handed=8) == 6.0
    assert steps.learn(6.0, is_asked=False) == 1.0
    assert after_draft(steps, 1.0, n_handed=8) > 1.2  # what its kind takes, by all of them


def test_what_asking_costs_follows_a_machine_that_changes() -> None:
    steps = quiet()
    for seconds in (1.0, 1.25):
        for _ in range(300):
            steps.learn(seconds, is_asked=True)
            steps.learn(1.0, is_asked=False)
            steps.learn(1.0, is_asked=False)
    assert steps.unseen == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize(("asked", "quiet_ones"), [(0.1, 0.0), (0.0, 0.1)])
def test_noise_of_either_kind_is_seldom_taken_for_a_difference(asked: float, quiet_ones: float) -> None:
    """Their means differ by chance, each way in half of all cases."""
    n_seen = 0
    for seed in range(60):
        draw, steps = random.Random(seed), quiet(6)
        for _ in range(40):
            steps.learn(draw.gauss(1, asked), is_asked=True)
            steps.learn(1.0, is_asked=False)
            steps.learn(draw.gauss(1, quiet_ones), is_asked=False)
        n_seen += steps.unseen > 0
    assert n_seen < 15
