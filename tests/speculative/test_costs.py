"""What steps and guesses cost: measured at load within a budget, and kept true by live rounds."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.speculative.costs import DraftCosts, StepCosts
from runner.speculative.drafter import NO_DRAFT
from runner.speculative.record import Round

TABLE = {1: 1e-3, 2: 1.1e-3, 4: 1.2e-3, 8: 1.4e-3, 16: 2e-3}


def calibrated(table: dict[int, float] = TABLE, most: int = 16) -> StepCosts:
    costs = StepCosts(most)
    costs.calibrate(table.__getitem__)
    return costs


def warm(costs: StepCosts, plain_s: float = 1e-3) -> StepCosts:
    """After a few plain steps of an answer."""
    for _ in range(3):
        costs.learn_plain(plain_s)
    return costs


class Slow:
    """A target whose steps are remembered."""

    def __init__(self, seconds: float, set_up_s: float = 0.0) -> None:
        self.seconds, self.set_up_s = seconds, set_up_s
        self.calls: list[int] = []

    def step_s(self, n_tokens: int) -> float:
        is_first = n_tokens not in self.calls
        self.calls.append(n_tokens)
        return self.seconds * n_tokens**0.25 + self.set_up_s * is_first


def test_measured_numbers_of_tokens_cost_what_was_measured_and_others_lie_between() -> None:
    costs = calibrated()
    assert costs.plain_s == 1e-3
    assert [costs.likely[n] for n in (1, 2, 4, 8, 16)] == pytest.approx([1, 1.1, 1.2, 1.4, 2])
    assert costs.likely[3] == pytest.approx(1.15)
    assert costs.likely[12] == pytest.approx(1.7)
    assert costs.worst == costs.likely


def test_a_plain_step_takes_no_longer_than_one_of_several_tokens() -> None:
    costs = warm(calibrated(), plain_s=8e-3)  # something holds them up
    assert costs.plain_s == 8e-3
    assert costs.learn_step(8, 1.5e-3) == pytest.approx(1.0)
    assert costs.plain_s == 1.5e-3
    assert not costs.is_fresh  # it is to be measured again
    warm(costs, plain_s=1e-3)
    assert costs.plain_s == 1e-3
    costs.learn_step(2, 0.9e-3)  # noise
    assert costs.plain_s == 1e-3


def test_a_load_that_was_held_up_is_found_out_by_the_first_answer() -> None:
    costs = calibrated({n: 200 * seconds for n, seconds in TABLE.items()})
    warm(costs)
    assert costs.plain_s == 1e-3
    assert costs.learn_step(8, 4e-3) == pytest.approx(4.0)


@pytest.mark.parametrize("held_up", [2, 8])
def test_a_step_that_something_held_up_at_load_is_left_to_the_rounds(held_up: int) -> None:
    calls: list[int] = []

    def step_s(n_tokens: int) -> float:
        calls.append(n_tokens)
        return 0.49 if n_tokens == held_up and calls.count(n_tokens) == 2 else TABLE[n_tokens]

    costs = StepCosts(16)
    costs.calibrate(step_s)
    assert calls.count(held_up) == 2, "after so long a step there is no time for another one"
    assert costs.likely[held_up] < 2
    assert costs.worst[held_up] <= held_up


def test_what_a_first_call_sets_up_is_not_counted() -> None:
    costs = StepCosts(16)
    costs.calibrate(Slow(1e-3, set_up_s=0.03).step_s)
    assert costs.plain_s == 1e-3
    assert costs.likely[16] == pytest.approx(2.0)


@pytest.mark.parametrize(("seconds", "measured"), [(0.3, {1}), (0.04, {1, 2}), (0.002, {1, 2, 4, 8, 16})])
def test_a_slow_target_is_measured_no_longer_than_half_a_second_or_one_step(seconds: float, measured: set[int]) -> None:
    target = Slow(seconds)
    StepCosts(16).calibrate(target.step_s)
    assert set(target.calls) == measured
    assert sum(seconds * n**0.25 for n in target.calls) <= max(0.5, seconds)


def test_only_what_a_draft_can_need_is_measured() -> None:
    target = Slow(1e-3)
    costs = StepCosts(5)
    costs.calibrate(target.step_s)
    assert set(target.calls) == {1, 2, 4, 5}
    assert len(costs.likely) == len(costs.worst) == 6


def test_beyond_what_was_measured_the_worst_is_in_proportion() -> None:
    costs = StepCosts(16)
    costs.calibrate(Slow(0.04).step_s)  # the budget ends after t(2)
    known = costs.likely[2]
    assert costs.worst[8] == pytest.approx(4 * known)
    assert known < costs.likely[8] < costs.worst[8]


def test_a_target_that_takes_no_time_is_never_compared_with() -> None:
    costs = StepCosts(16)
    costs.calibrate(lambda _: 0.0)
    costs.learn_plain(0.0)
    costs.learn_plain(0.0)
    assert not costs.is_fresh


@given(
    st.lists(st.floats(0.2, 20), min_size=4, max_size=4), st.lists(st.tuples(st.integers(2, 16), st.floats(0.1, 50)))
)
def test_more_tokens_never_cost_less(ratios: list[float], rounds: list[tuple[int, float]]) -> None:
    costs = calibrated({1: 1e-3} | {n: 1e-3 * ratio for n, ratio in zip((2, 4, 8, 16), ratios, strict=True)})
    for n, ratio in rounds:
        costs.learn_step(n, 1e-3 * ratio)
        for table in (costs.likely, costs.worst):
            assert len(table) == 17
            assert all(a <= b for a, b in pairwise(table))
        assert all(a <= b + 1e-9 for a, b in zip(costs.likely, costs.worst, strict=True))


def test_a_plain_step_that_was_held_up_is_not_the_plain_step() -> None:
    costs = calibrated()
    for seconds in (2e-3, 0.5, 2.1e-3, 2.2e-3, 0.4):
        costs.learn_plain(seconds)
    assert costs.plain_s == 2.1e-3


def test_two_plain_steps_of_the_answer_are_wanted_before_drafts_are_compared_with_them() -> None:
    costs = calibrated()
    assert not costs.is_fresh
    costs.learn_plain(1e-3)
    assert not costs.is_fresh
    costs.learn_plain(1e-3)
    assert costs.is_fresh
    costs.begin()
    assert not costs.is_fresh


def test_after_many_drafts_plain_steps_are_measured_again() -> None:
    costs = calibrated()
    for _ in range(2):
        costs.learn_plain(1e-3)
    for n in range(64):
        assert costs.is_fresh, n
        costs.learn_step(8, 1.4e-3)
    assert not costs.is_fresh
    costs.learn_plain(1e-3)  # right after a draft: not comparable
    assert not costs.is_fresh
    costs.learn_plain(1e-3)
    assert costs.is_fresh


def test_the_first_plain_step_after_a_draft_does_not_count() -> None:
    costs = calibrated()
    costs.learn_plain(1e-3)
    costs.learn_step(4, 1.2e-3)
    for _ in range(9):
        costs.learn_plain(5e-3)
        costs.learn_step(4, 1.2e-3)
    assert costs.plain_s == 1e-3


def test_live_rounds_move_a_step_and_scale_with_the_plain_one() -> None:
    costs = calibrated()
    for _ in range(3):
        costs.learn_plain(2e-3)  # the context is deeper
    for _ in range(30):
        costs.learn_step(8, 5e-3)
    assert costs.likely[8] == pytest.approx(2.5, rel=0.01)
    assert costs.likely[16] >= costs.likely[8]


def test_the_first_round_that_was_dearer_than_at_load_makes_the_lengths_that_none_told_of_dearer() -> None:
    costs = warm(calibrated())
    assert costs.learn_step(8, 2.8e-3) == pytest.approx(2.8)
    assert costs.likely[4] == pytest.approx(1.2 * 1.5)
    assert costs.likely[8] == pytest.approx(2.1)
    assert costs.worst[8] == pytest.approx(2.8)
    costs.learn_step(8, 2.8e-3)
    assert costs.likely[4] == pytest.approx(1.2 * 1.5)


def test_a_first_round_that_was_cheaper_is_believed_little() -> None:
    costs = warm(calibrated())
    costs.learn_step(8, 1.12e-3)
    assert costs.likely[8] == pytest.approx(1.4 - 0.2 * 0.28)
    assert costs.worst[8] == pytest.approx(costs.likely[8])


def test_after_a_surprise_rounds_are_taken_for_dearer_until_it_is_forgotten() -> None:
    costs = warm(calibrated())
    costs.learn_step(8, 2.8e-3)
    assert costs.worst[16] > 1.2 * costs.likely[16]
    for _ in range(200):
        costs.learn_plain(1e-3)
    assert costs.worst[16] == pytest.approx(costs.likely[16], rel=0.01)


@pytest.mark.parametrize("slow", [1.5, 2.5])
def test_a_plain_step_that_was_slow_at_load_does_not_make_drafts_look_cheap(slow: float) -> None:
    wrong = calibrated(TABLE | {1: slow * 1e-3})
    assert wrong.likely[8] < 1.1
    assert warm(wrong).likely == pytest.approx(calibrated().likely)
    wrong.begin()
    assert wrong.likely == pytest.approx(calibrated().likely)


def test_plain_steps_that_are_slow_at_load_for_a_while_are_measured_again() -> None:
    """A neighbour holds the first ones up."""
    calls = []

    def step_s(n: int) -> float:
        calls.append(n)
        return TABLE[n] * (2.5 if len(calls) < 6 else 1)

    costs = StepCosts(16)
    costs.calibrate(step_s)
    assert costs.plain_s == 1e-3
    assert costs.likely[8] == pytest.approx(1.4)


def test_what_a_plain_step_grew_by_may_be_every_tokens_own_until_rounds_show_that_it_is_not() -> None:
    costs = warm(calibrated(), 2e-3)
    assert costs.worst[8] == pytest.approx((1.4 + 8 * 1.0) / 2)
    assert costs.likely[8] == pytest.approx(1.4)
    for _ in range(3):
        costs.learn_step(8, 2.4e-3)  # as much as a plain step grew, once
    assert costs.worst[16] < 2.2


def test_a_step_after_asking_counts_as_much_more_as_it_takes_beyond_noise() -> None:
    draw = random.Random(0)
    costs = warm(calibrated())
    for _ in range(200):
        for _ in range(2):
            costs.learn_plain(1e-3 * draw.gauss(1, 0.05))
        entered = costs.learn_plain(1.1e-3 * draw.gauss(1, 0.05), is_asked=True)
    assert entered == 1 + costs.unseen
    assert 0.07 < costs.unseen < 0.11
    assert costs.plain_s == pytest.approx(1e-3, rel=0.05)


def test_asking_that_leaves_no_trace_in_the_step_after_it_counts_as_nothing() -> None:
    draw = random.Random(0)
    costs = warm(calibrated())
    unseen = []
    for _ in range(300):
        for _ in range(2):
            costs.learn_plain(1e-3 * draw.gauss(1, 0.05))
        costs.learn_plain(1e-3 * draw.gauss(1, 0.05), is_asked=True)
        unseen.append(costs.unseen)
    assert abs(sum(unseen) / len(unseen)) < 0.005


def test_what_a_device_hides_costs_nothing_and_what_it_does_not_costs_what_it_is_longer_by() -> None:
    def unhidden_s(host_s: float, total_s: float, *, is_ahead: bool = True) -> float:
        return Round(NO_DRAFT, 0, (7,), host_s, total_s - host_s, 0.0, is_ahead).unhidden_s(host_s, 1e-3)

    assert unhidden_s(0.3e-3, 1e-3) == pytest.approx(0)  # the host waited the less for it
    assert unhidden_s(1.3e-3, 1.4e-3) == pytest.approx(0.4e-3)
    assert unhidden_s(0.1e-3, 5e-3) == pytest.approx(0.1e-3)  # something else held it up
    assert unhidden_s(0.3e-3, 1e-3, is_ahead=False) == pytest.approx(0.3e-3)


def test_the_step_after_a_draft_counts_as_it_was_seen_until_its_kind_is_known() -> None:
    costs = warm(calibrated())
    counted: list[float] = []
    for _ in range(20):
        costs.learn_step(8, 1.4e-3)
        counted += [costs.learn_plain(seconds) for seconds in (1.3e-3, 1e-3, 1e-3)]
    after, others = counted[::3], counted[1::3] + counted[2::3]
    assert after == pytest.approx([1.3] * 20)
    assert others == [1.0] * 40


def test_the_step_after_a_draft_counts_as_it_was_seen_while_hardly_any_is_quiet() -> None:
    costs = warm(calibrated())
    counted = []
    for _ in range(20):
        costs.learn_step(2, 1.1e-3)
        counted.append(costs.learn_plain(1.3e-3, is_asked=True))
    assert counted == pytest.approx([1.3] * 20)


def test_the_step_in_which_a_caller_takes_what_a_draft_brought_counts_as_long_as_it_was() -> None:
    costs = warm(calibrated())
    for _ in range(20):
        costs.learn_step(8, 1.4e-3)
        for seconds in (1e-3, 1e-3, 1e-3):
            costs.learn_plain(seconds)
    costs.learn_step(8, 1.4e-3, 8)
    assert costs.learn_plain(6e-3) == pytest.approx(6)
    costs.learn_step(8, 1.4e-3, 3)
    assert costs.learn_plain(6e-3) == pytest.approx(1 + 2, rel=0.02)  # the draft had saved no more: the rest is noise
    costs.learn_step(8, 1.4e-3, 8)
    assert costs.learn_step(8, 6e-3) == pytest.approx(6)
    costs.learn_break()
    assert costs.learn_plain(6e-3) < 1.5


def test_of_many_steps_that_nothing_was_asked_for_one_tells_what_a_quiet_one_takes() -> None:
    costs = warm(calibrated(), 2e-3)
    for _ in range(7):
        assert costs.learn_passed(8, 9e-3, 3e-3) == 8
    assert costs.plain_s == pytest.approx(3e-3)


def test_the_first_of_many_steps_counts_as_what_it_follows() -> None:
    costs = warm(calibrated())
    for _ in range(10):
        costs.learn_step(8, 1.4e-3)
        assert costs.learn_passed(3, 1.25e-3, 1e-3) == pytest.approx(3.25)
    assert costs.plain_s == pytest.approx(1e-3)


def test_a_draft_pays_for_the_pipeline_that_it_stops_unless_that_is_empty_already() -> None:
    costs = warm(calibrated())
    for _ in range(20):
        costs.learn_step(8, 1.4e-3)
        for seconds in (1.3e-3, 1e-3, 1e-3):
            costs.learn_plain(seconds)
    assert costs.refill == pytest.approx(0.3)
    costs.learn_break()
    assert costs.refill == 0


def test_plain_steps_after_asking_do_not_keep_the_comparison_fresh() -> None:
    costs = warm(calibrated())
    for _ in range(64):
        assert costs.is_fresh
        costs.learn_plain(1e-3, is_asked=True)
    assert not costs.is_fresh


def test_a_stall_counts_as_three_times_what_was_expected_at_most() -> None:
    costs = calibrated()
    assert costs.learn_step(8, 10.0) == pytest.approx(3 * 1.4)


def test_a_disturbance_wears_off_over_the_answers() -> None:
    costs = calibrated()
    for _ in range(10):
        costs.learn_step(8, 10.0)
    assert costs.likely[8] > 10
    for _ in range(20):
        costs.begin()
    assert costs.likely[8] == pytest.approx(1.4, rel=0.01)


def test_guessing_costs_time_by_the_token_or_by_the_call() -> None:
    paid, free = DraftCosts(is_host_only=False), DraftCosts(is_host_only=True)
    assert paid.token(1e-3) == 0.3  # before anything was measured
    paid.learn(4, 2e-3)
    free.learn(0, 1e-5)
    assert paid.token(1e-3) == pytest.approx(0.5)
    assert paid.call(1e-3, 0) == 0
    assert free.token(1e-3) == 0
    assert 0 < free.call(1e-3, 0) <= 0.01


def test_what_was_not_read_yet_costs_as_reading_did() -> None:
    costs = DraftCosts(is_host_only=False)
    costs.learn_reading(1000, 0.01)
    costs.learn_reading(2000, 0.0)  # all of it was known
    assert costs.call(1e-3, 200) == pytest.approx(1.0)


def test_tokens_that_were_ready_before_they_were_waited_for_do_not_make_a_step_short() -> None:
    costs = StepCosts(4)
    costs.calibrate(lambda n_tokens: 0.01 * n_tokens)
    costs.begin()
    for _ in range(20):
        costs.learn_plain(1e-6, is_ahead=True)
    assert costs.plain_s == pytest.approx(0.0025)


@pytest.mark.parametrize(("is_ahead", "plain_s"), [(True, 0.0025), (False, 1e-6)])
def test_nor_where_nothing_was_asked_unless_a_whole_step_took_as_little(is_ahead: bool, plain_s: float) -> None:
    costs = StepCosts(4)
    costs.calibrate(lambda n_tokens: 0.01 * n_tokens)
    for _ in range(20):
        costs.learn_passed(8, 1e-6, 1e-6, is_ahead=is_ahead)
    assert costs.plain_s == pytest.approx(plain_s)


def test_a_whole_step_for_a_draft_shows_that_a_plain_one_takes_less_than_it_seemed() -> None:
    costs = calibrated({n: 200 * seconds for n, seconds in TABLE.items()})
    costs.learn_step(8, 1.4e-3)
    assert costs.plain_s == 1.4e-3


def test_before_a_plain_step_is_known_a_draft_counts_as_its_tokens_and_the_step_after_it_as_no_quiet_one() -> None:
    costs = StepCosts(16)
    assert (costs.plain_s, costs.is_fresh) == (0.0, False)
    assert costs.learn_step(8, 5e-3) == 8.0
    costs.learn_plain(9e-3)
    assert costs.plain_s == 0.0
    costs.learn_plain(1e-3)
    assert costs.plain_s == 1e-3


# --- how t(M) follows live rounds ------------------------------------------------------------------------------------


def test_more_than_was_measured_seems_to_cost_what_a_token_did_so_far() -> None:
    costs = StepCosts(16)
    costs.calibrate(Slow(0.04).step_s)
    assert costs.likely[16] == pytest.approx(1 + 15 * (2**0.25 - 1))
    costs = StepCosts(16)
    costs.calibrate(Slow(0.3).step_s)
    assert [costs.likely[n] for n in (1, 2, 16)] == pytest.approx([1.0, 1.1, 2.5])  # of none yet: a guess


def test_one_short_plain_step_does_not_make_all_others_dear() -> None:
    costs = calibrated()
    costs.learn_plain(0.5e-3)
    assert costs.likely[8] == pytest.approx(1.4)
    costs.learn_plain(0.5e-3)
    assert costs.likely[8] == pytest.approx(2.8)


def test_plain_steps_that_become_shorter_change_no_length_that_rounds_told_of() -> None:
    costs = calibrated()
    for _ in range(40):
        costs.learn_step(8, 2e-3)
    warm(costs, 0.8e-3)
    assert costs.likely[8] == pytest.approx(2.0, rel=0.01)
    assert costs.likely[4] > 1.4


def test_plain_steps_that_grow_in_an_answer_make_the_worst_dearer_as_they_do() -> None:
    costs = warm(calibrated())
    assert costs.worst[8] == pytest.approx(1.4)
    for _ in range(9):
        costs.learn_plain(2e-3)
    assert costs.worst[8] == pytest.approx((1.4 + 8 * 1.0) / 2)


def deeper() -> StepCosts:
    """All steps take twice as long as at load, and many rounds told of that."""
    costs = warm(calibrated(), 2e-3)
    for n, seconds in [*TABLE.items()][1:] * 40:
        costs.learn_step(n, 2 * seconds)
    return costs


def test_what_was_measured_beside_a_longer_plain_step_has_that_in_it() -> None:
    costs = deeper()
    assert costs.worst[8] == pytest.approx(costs.likely[8], rel=0.01)
    costs.begin()  # half as in this answer, half as at load
    warm(costs, 2e-3)
    assert costs.worst[8] == pytest.approx((1.4 * 3 + 8 * 1) / 4, rel=0.05)


def test_a_plain_step_that_became_shorter_has_not_grown() -> None:
    costs = deeper()
    for _ in range(9):
        costs.learn_plain(1.9e-3)
    assert costs.plain_s == 1.9e-3
    assert costs.worst[8] == pytest.approx(costs.likely[8], rel=0.01)


@pytest.mark.parametrize(("share", "worst"), [(0.0, 1.94), (0.25, 5.38), (0.5, 9.46), (1.0, 16.0)])
def test_rounds_show_which_part_of_what_a_plain_step_grew_by_is_each_tokens(share: float, worst: float) -> None:
    """By one millisecond, and then to eight: from there on by as much of it again for each of 16 tokens."""
    costs = warm(calibrated(), 2e-3)
    for _ in range(6):
        costs.learn_step(8, (1.4 + 1 + 7 * share) * 1e-3)
    for _ in range(9):
        costs.learn_plain(8e-3)
    assert costs.worst[16] == pytest.approx(worst, rel=0.02)
    assert all(likely <= worst for likely, worst in zip(costs.likely, costs.worst, strict=True))


def test_a_first_round_changes_none_of_which_others_told() -> None:
    costs = warm(calibrated())
    costs.learn_step(8, 2.8e-3)
    costs.learn_step(4, 1.9e-3)  # dearer than the 1.8 that it seemed to be since
    assert costs.likely[8] == pytest.approx(2.1)
    assert costs.likely[2] == pytest.approx(1.1 * 1.5 * (1 + 0.5 * (1.9 / 1.8 - 1)))


def test_a_stall_is_one_by_what_a_length_seems_to_cost_or_at_worst_where_nothing_told_of_it() -> None:
    costs = warm(calibrated())
    assert costs.learn_step(8, 1.0) == pytest.approx(3 * 1.4)
    assert costs.learn_step(8, 1.0) == pytest.approx(3 * (1.4 + 4.2) / 2)
    costs = warm(StepCosts(16))
    assert costs.learn_step(8, 1.0) == pytest.approx(3 * 8)


@pytest.mark.parametrize("n", [1, 10])
def test_a_surprise_is_forgotten_by_a_part_with_each_plain_step_however_many_are_told_at_once(n: int) -> None:
    one_by_one, at_once = warm(calibrated()), warm(calibrated())
    for costs in (one_by_one, at_once):
        costs.learn_step(8, 2.8e-3)  # 4/3 of what it seems to take now
    for _ in range(n):
        one_by_one.learn_plain(1e-3)
    at_once.learn_passed(n, 1e-3, 1e-3)
    for costs in (one_by_one, at_once):
        assert costs.worst[8] / costs.likely[8] == pytest.approx(1 + 0.97**n / 3)


def test_a_round_as_expected_forgets_more_of_a_surprise() -> None:
    costs = warm(calibrated())
    costs.learn_step(8, 2.8e-3)
    costs.learn_step(16, costs.likely[16] * 1e-3)
    assert costs.worst[16] / costs.likely[16] == pytest.approx(1 + 0.6 / 3)


# --- guessing --------------------------------------------------------------------------------------------------------


def test_what_guessing_costs_follows_what_it_takes_and_is_a_guess_while_plain_steps_are_unknown() -> None:
    costs = DraftCosts(is_host_only=False)
    costs.learn(4, 2e-3)
    costs.learn(0, 5e-3)
    assert costs.token(1e-3) == pytest.approx(0.5)
    costs.learn(4, 4e-3)
    assert costs.token(1e-3) == pytest.approx(0.5 + 0.2 * 0.5)
    assert costs.token(0.0) == 0.3
    costs.learn_reading(100, 1e-3)
    assert costs.call(0.0, 100) == 0.0
    free = DraftCosts(is_host_only=True)
    for expected in (0.2, 0.2 + 0.2 * 0.8):
        free.learn(3, 1e-3)
        assert free.call(1e-3, 0) == pytest.approx(expected)
