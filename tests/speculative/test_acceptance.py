"""Expected acceptance, the draft length that follows from it, and the account of what may be lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.speculative.acceptance import Acceptance, best_length, shortest_length
from runner.speculative.account import ALLOWED_LOSS, INITIAL_ALLOWANCE, LossAccount


def test_before_evidence_there_is_the_prior() -> None:
    assert Acceptance(2, 15, 0.5).chances([0, 1, 1]) == [0.5, 0.5, 0.5]


def test_evidence_of_a_bucket_counts_at_all_its_positions_and_in_no_other_bucket() -> None:
    acceptance = Acceptance(2, 15, 0.5)
    for _ in range(40):
        acceptance.learn(0, [1], 1)
    first, far = acceptance.chances([1] * 9)[::8]
    assert first > far > 0.9
    assert acceptance.chances([0])[0] == 0.5
    assert acceptance.chances([acceptance.any_bucket])[0] > 0.9


def test_positions_of_a_bucket_are_told_apart() -> None:
    acceptance = Acceptance(1, 15, 0.5)
    for _ in range(200):
        acceptance.learn(0, [0, 0], 1)
    first, second, _ = acceptance.chances([0, 0, 0])
    assert first > 0.9
    assert second < 0.1


def test_what_is_judged_in_the_middle_of_a_draft_counts_there() -> None:
    acceptance = Acceptance(1, 15, 0.5)
    acceptance.learn(3, [0, 0], 1)
    chances = acceptance.chances([0] * 6)
    assert chances[0] == chances[5] == chances[2]
    assert chances[3] > chances[0] > chances[4]


def test_tokens_after_a_wrong_one_are_not_judged() -> None:
    whole, judged = Acceptance(2, 4, 0.5), Acceptance(2, 4, 0.5)
    whole.learn(0, (0, 0, 0, 1), 1)
    judged.learn(0, (0, 0), 1)
    for buckets in ((0,) * 4, (1,) * 4, (judged.any_bucket,) * 4):
        assert whole.chances(buckets) == judged.chances(buckets)


def test_averages_follow_a_text_that_changes() -> None:
    acceptance = Acceptance(1, 15, 0.5)
    for _ in range(500):
        acceptance.learn(0, [0], 1)
    for _ in range(64):
        acceptance.learn(0, [0], 0)
    assert acceptance.chances([0])[0] < 0.2


@given(
    st.lists(st.floats(0, 1), max_size=15),
    st.lists(st.floats(0, 3), min_size=16, max_size=16),
    st.floats(1, 5),
    st.integers(0, 15),
)
def test_the_best_length_is_the_best(chances: list[float], added: list[float], rate: float, least: int) -> None:
    least = min(least, len(chances))
    costs = [1 + sum(added[:n]) for n in range(len(chances) + 1)]

    def tokens(n: int) -> float:
        total, reach = 1.0, 1.0
        for chance in chances[:n]:
            reach *= chance
            total += reach
        return total

    best = best_length(chances, costs, rate, least)
    assert best.tokens == pytest.approx(tokens(best.n))
    assert best.cost == costs[best.n]
    value = max(tokens(n) - rate * costs[n] for n in range(least, len(costs)))
    assert best.n >= least
    assert best.tokens - rate * best.cost == pytest.approx(value)


def test_a_long_draft_that_pays_is_seen_behind_short_ones_that_do_not() -> None:
    llamacpp = [0.97, 2.1, 2.5, 2.9, 3.2, 3.5, 3.8, 4.1, 4.4, 4.7, 5.0, 5.2, 5.5, 5.8, 6.0, 6.3]
    costs = [t / llamacpp[0] for t in llamacpp]
    assert best_length([0.95] * 15, costs, 1.0).n == 15
    assert best_length([0.95] * 2, costs[:3], 1.0).n == 2
    assert best_length([0.95], costs[:2], 1.0).n == 0
    assert best_length([0.6] * 15, costs, 1.0).n == 0


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 1), st.integers(1, 16)), max_size=200), st.floats(0, 40))
def test_over_any_stretch_the_loss_is_what_the_balance_was_and_two_percent(
    rounds: list[tuple[float, float, int]], most: float
) -> None:
    account = LossAccount()
    lost, least_lost, n = 0.0, 0.0, 0
    for risk, luck, n_drafted in rounds:
        n_tokens, cost = 1, 1.0
        if account.covers(risk):
            n_tokens = 1 + int(luck * n_drafted)
            cost = 1 + risk
        account.most = most
        account.enter(n_tokens, cost)
        lost += cost - n_tokens
        n += n_tokens
        least_lost = min(least_lost, lost - ALLOWED_LOSS * n)
        # From the best moment so far on: gains bring the balance to `most` and no further.
        assert lost - ALLOWED_LOSS * n - least_lost <= max(INITIAL_ALLOWANCE, most) + 1e-6
        assert lost <= INITIAL_ALLOWANCE + ALLOWED_LOSS * n + 1e-6


def test_an_answer_does_not_spend_what_another_gained_but_bears_its_losses_in_part() -> None:
    account = LossAccount()
    account.most = 10
    account.enter(16, 2.0)
    assert account.balance == 10
    account.begin()
    assert account.balance == INITIAL_ALLOWANCE
    account.enter(1, 2.5)
    debt = account.balance
    account.begin()
    assert account.balance == debt < 0
    account.enter(1, 9.0)
    account.begin()
    assert account.balance == -1


def test_a_short_answer_survives_a_surprise_only_as_far_as_three_percent_of_it() -> None:
    account = LossAccount()
    assert account.survives(3.6)
    assert not account.survives(3.7)
    account.enter(128, 129.0)
    assert account.survives(2.6)
    assert not account.survives(2.7)


def test_a_longer_answer_survives_three_percent_of_all_of_it_and_the_next_one_owes_nothing_of_that() -> None:
    account = LossAccount()
    account.enter(600, 600.0)
    account.enter(400, 401.0)
    assert account.survives(27.8)
    assert not account.survives(27.9)
    account.begin()
    assert account.survives(3.6)
    assert not account.survives(3.7)


def test_an_account_is_full_as_soon_as_no_more_can_be_earned() -> None:
    account = LossAccount()
    assert not account.is_full
    account.enter(1, 1.5)
    assert not account.is_full
    account.most = account.balance = 2.0
    account.enter(1, 1.0)
    assert account.is_full


def test_the_shortest_length_that_pays() -> None:
    assert shortest_length([0.9] * 4, [1.0, 1.2, 1.4, 1.6, 1.8], 1.0) == 1
    assert shortest_length([0.9] * 4, [1.0, 2.0, 2.2, 2.4, 2.6], 1.0) == 2  # 1 + 0.9 < 2.0, 1 + 0.9 + 0.81 > 2.2
    assert shortest_length([0.1] * 4, [1.0, 2.0, 2.2, 2.4, 2.6], 1.0) == 0
    assert shortest_length([], [1.0], 1.0) == 0
    assert shortest_length([0.9], [1.0, 1.8], 1.0) == 1
    assert shortest_length([0.5], [1.5, 1.9], 1.0) == 1  # half a plain step is gone in any case


@given(
    st.lists(st.floats(0, 1), max_size=15),
    st.lists(st.floats(0, 3), min_size=16, max_size=16),
    st.floats(1, 5),
)
def test_there_is_a_shortest_length_that_pays_where_the_best_one_does(
    chances: list[float], added: list[float], rate: float
) -> None:
    costs = [1 + sum(added[:n]) for n in range(len(chances) + 1)]
    best = best_length(chances, costs, rate).n
    shortest = shortest_length(chances, costs, rate)
    assert (shortest > 0) == (best > 0)
    assert shortest <= best
