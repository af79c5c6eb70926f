"""The speculator between a loop and a drafter: what it counts, times and passes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count, repeat

import pytest
from test_rounds import Scripted

from runner.config import LONGEST_DRAFT, SamplingParams
from runner.errors import DoesNotFit
from runner.speculative.control import EagerController
from runner.speculative.drafter import NO_DRAFT, Draft, Gate, sound
from runner.speculative.record import Passed, Round, SpeculationRecord
from runner.speculative.rounds import decode
from runner.speculative.speculator import Speculator
from runner.speculative.suffix import SuffixDrafter
from runner.speculative.tally import Tally

PARAMS = SamplingParams(temperature=0)
V = 1000
STEP_S = {n: 1e-3 * (1 + 0.1 * (n - 1)) for n in range(1, 17)}


class Clocked:
    """A target that writes 0, 1, 2, ... and takes its time."""

    vocab_size = V

    def __init__(self, n_ctx: int) -> None:
        self.n_ctx = n_ctx
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def choices(self, draft: Sequence[int], params: SamplingParams, history: Sequence[int]) -> Iterator[int]:
        del params
        self.now += STEP_S[len(draft) + 1]
        return iter(range(len(history), len(history) + len(draft) + 1))

    def keep(self, length: int) -> None:
        pass


def coming(n: int, n_right: int) -> Callable[[Sequence[int]], list[int]]:
    """Guesses of n tokens, of which so many are right; none near the end, where there is no room for all."""
    return lambda history: [len(history) + i if i < n_right else 999 for i in range(n)] if len(history) < 38 else []


def run(guess: Callable[[Sequence[int]], list[int]], n: int = 42, pause_s: float = 0.0) -> Speculator:
    target = Clocked(n + 1)
    speculator = Speculator(Scripted(guess), 15, control=EagerController(15), clock=target.clock)
    speculator.calibrate(STEP_S.__getitem__)
    speculator.begin()
    for _ in decode(target, PARAMS, [0], speculator, target.clock):
        target.now += pause_s
    return speculator


def test_rounds_are_counted_by_position_and_length() -> None:
    record = run(coming(4, 2)).record  # three tokens a round
    assert record.drafter == "scripted"
    assert record.rounds == 13
    assert record.drafted_at == (13, 13, 13, 13)
    assert record.reached_at == (13, 13, 13, 0)
    assert record.accepted_at == (13, 13, 0, 0)
    assert record.lengths == (0, 0, 13)
    assert record.draft_length == 4
    assert record.acceptance_rate == 0.5
    assert record.acceptance_length == 3
    assert record.conditional_acceptance == (1, 1, 0, 0)


def test_the_gain_is_what_plain_steps_would_have_taken_over_what_was_spent() -> None:
    record = run(coming(4, 2)).record
    assert record.verify_s == pytest.approx(13 * STEP_S[5])
    assert record.plain_s == pytest.approx(42 * STEP_S[1])
    assert record.spent_s == pytest.approx(13 * STEP_S[5] + 3 * STEP_S[1])
    assert record.gain == pytest.approx(42 / (13 * 1.4 + 3))


def test_a_consumer_that_takes_its_time_changes_no_number() -> None:
    quick, slow = run(coming(3, 2)).record, run(coming(3, 2), pause_s=5.0).record
    assert slow.gain == pytest.approx(quick.gain)
    assert slow.spent_s == pytest.approx(quick.spent_s)
    assert slow.lengths == quick.lengths


def test_the_step_in_which_a_drafts_tokens_are_taken_is_no_measure_of_plain_ones() -> None:
    tally = Tally(LONGEST_DRAFT)
    for _ in range(3):
        tally.add(Round(Draft((5,) * 7, (0,) * 7), 7, (5,) * 8, 0.0, 1.4, 0.0, overlaps=True), 0.0, 0.0, 1.0)
        tally.add(Round(NO_DRAFT, 0, (5,), 0.0, 6.0, 0.0, True, True), 0.0, 0.0, 1.0)
        tally.add(Round(NO_DRAFT, 0, (5,), 0.0, 1.0, 0.0, True, True), 0.0, 0.0, 1.0)
    assert tally.record("suffix", "on", "", 0, 0).gain == pytest.approx(10 / 8.4)
    tally.add(Round(Draft((5,) * 7, (0,) * 7), 7, (5,) * 8, 0.0, 1.4, 0.0, overlaps=True), 0.0, 0.0, 1.0)
    passed = Passed.of(Round(NO_DRAFT, 0, (5,), 0.0, 6.0, 0.0, True, True))
    passed.add(Round(NO_DRAFT, 0, (5,), 0.0, 1.0, 0.0, True, True))
    tally.pass_by(passed, 0.0, 1.0)
    assert tally.record("suffix", "on", "", 0, 0).gain == pytest.approx(10 / 8.4)


def test_a_gain_that_no_round_can_bring_is_not_told() -> None:
    counts = {"drafter": "suffix", "state": "on", "rounds": 2, "drafted_at": (2,), "accepted_at": (2,), "spent_s": 1.0}
    assert SpeculationRecord(**counts, plain_s=1.9).gain == pytest.approx(1.9)
    assert SpeculationRecord(**counts, plain_s=2.1).gain == pytest.approx(2.0), "noise"
    assert SpeculationRecord(**counts, plain_s=8.0).gain is None


def test_plain_steps_are_neither_rounds_nor_gain() -> None:
    record = run(lambda _: []).record
    assert record.rounds == 0
    assert record.gain == pytest.approx(1.0)
    assert record.acceptance_length is None
    assert record.lengths == ()


def test_the_record_begins_anew_with_each_answer_and_what_was_learned_stays() -> None:
    target = Clocked(200)
    speculator = Speculator(Scripted(lambda history: range(len(history), len(history) + 8)), 15, clock=target.clock)
    speculator.calibrate(STEP_S.__getitem__)
    seen = []
    for _ in range(2):
        speculator.begin()
        list(decode(target, PARAMS, [0], speculator, target.clock))
        seen.append(speculator.record)
    first, second = seen
    assert first.state == second.state == "on"
    assert sum(second.lengths) == second.rounds
    assert second.gain > first.gain > 2


def test_a_target_that_drafts_more_by_itself_than_was_asked_for_is_learnt_of() -> None:
    for draft_max in (1, 2, 5, 15):
        for control in (None, EagerController(draft_max)):
            speculator = Speculator(SuffixDrafter(), draft_max, control=control)
            speculator.begin([1, 2, 3])
            wish = speculator.wish([1, 2, 3], (15,))
            speculator.learn_stride(Round(Draft((4,) * 15, (wish.kind,) * 15), 15, (4,) * 16, 0.0, 1e-3, 0.0, True))
            assert speculator.record.lengths[15] == 1


def test_drafts_are_never_longer_than_the_room_or_the_most_allowed() -> None:
    speculator = Speculator(Scripted(coming(60, 60)), 6, control=EagerController(6))
    assert len(speculator.draft([0], PARAMS, 100, V)) == 6
    assert len(speculator.draft([0], PARAMS, 2, V)) == 2
    assert len(speculator.draft([0], PARAMS, 0, V)) == 0


def test_of_a_draft_without_an_end_no_more_is_read_than_can_be_verified() -> None:
    endless = Draft(count(1), repeat(0))  # type: ignore[arg-type]
    assert sound(endless, 4, 1, V) == Draft((1, 2, 3, 4), (0,) * 4)
    assert sound(Draft(tuple(range(50)), (0,) * 2), 4, 1, V) == Draft((0, 1), (0, 0))


class Reading:
    """A drafter that takes the device's time and remembers what it was asked."""

    name = "model"
    n_buckets = 1
    is_host_only = False
    is_quoting = False
    n_given = 0
    nbytes = 77

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[tuple[list[int], int]] = []
        self.is_closed = False

    def clock(self) -> float:
        return self.now

    def may_guess(self, history: Sequence[int]) -> bool:
        return bool(history)

    def propose(self, history: Sequence[int], params: SamplingParams, gate: Gate) -> Draft:
        del params
        tokens: list[int] = []
        while gate.is_open and gate.admits(0):
            self.now += 2e-4
            tokens.append(1)
        self.asked.append((list(history), len(tokens)))
        return Draft(tuple(tokens), (0,) * len(tokens))

    def close(self) -> None:
        self.is_closed = True


def test_a_drafter_is_timed_at_load_and_reads_the_prompt_when_an_answer_begins() -> None:
    drafter = Reading()
    speculator = Speculator(drafter, 15, clock=drafter.clock)
    speculator.calibrate(STEP_S.__getitem__)
    assert [n for _, n in drafter.asked] == [3, 3]
    speculator.begin([4, 5, 6])
    assert drafter.asked[-1] == ([4, 5, 6], 0)
    assert speculator.record.drafter_bytes == 77
    speculator.close()
    assert drafter.is_closed


def test_a_drafter_that_fails_where_it_is_timed_is_none_for_an_answer_and_no_fault_of_the_load() -> None:
    class Failing(Reading):
        error: Exception = ZeroDivisionError("by zero")

        def propose(self, history: Sequence[int], params: SamplingParams, gate: Gate) -> Draft:
            del history, params, gate
            raise self.error

    drafter = Failing()
    speculator = Speculator(drafter, 15, clock=drafter.clock)
    speculator.calibrate(STEP_S.__getitem__)
    speculator.begin([4, 5, 6])
    assert not speculator.draft([4, 5, 6], PARAMS, 15, V)
    assert speculator.record.reason == "the drafter failed (ZeroDivisionError: by zero); `runner logs` has the details"
    drafter.error = DoesNotFit("There is no room.")
    with pytest.raises(DoesNotFit):  # what has a remedy is told to who loads
        speculator.calibrate(STEP_S.__getitem__)


def test_what_a_drafter_reads_at_load_and_of_a_prompt_cannot_be_changed_and_its_slices_are_lists() -> None:
    class Meddling(Reading):
        def propose(self, history: Sequence[int], params: SamplingParams, gate: Gate) -> Draft:
            with pytest.raises((AttributeError, TypeError)):
                history.clear()  # type: ignore[attr-defined]
            assert isinstance(history[-2:], list)
            return super().propose(history, params, gate)

    drafter = Meddling()
    speculator = Speculator(drafter, 15, clock=drafter.clock)
    speculator.calibrate(STEP_S.__getitem__)
    prompts: tuple[Sequence[int], ...] = ((4, 5, 6), [4, 5, 6])
    for prompt in prompts:
        speculator.begin(prompt)
        assert speculator.record.state != "off", speculator.record.reason
        assert drafter.asked[-1] == ([4, 5, 6], 0)
    assert prompts[1] == [4, 5, 6]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), "(MemoryError);"),
        (RuntimeError("No memory.\n  1 GiB\tasked"), "(RuntimeError: No memory. 1 GiB asked);"),
    ],
)
def test_what_a_drafter_fails_with_is_told_on_a_line(error: Exception, told: str) -> None:
    def fail(_history: Sequence[int]) -> list[int]:
        raise error

    speculator = Speculator(Scripted(fail), 15, control=EagerController(15))
    speculator.begin([4, 5, 6])
    assert told in speculator.record.reason


def test_a_drafter_that_something_held_up_at_load_is_timed_once_more() -> None:
    told: list[float] = []

    class HeldUp(Reading):
        def propose(self, history: Sequence[int], params: SamplingParams, gate: Gate) -> Draft:
            self.now += 0.3 if len(self.asked) == 1 else 0.0
            return super().propose(history, params, gate)

    class Noting(EagerController):
        def learn_guessing(self, n_tokens: int, seconds: float) -> None:
            assert n_tokens == 3
            told.append(seconds)

    drafter = HeldUp()
    Speculator(drafter, 15, control=Noting(15), clock=drafter.clock).calibrate(STEP_S.__getitem__)
    assert told == [pytest.approx(6e-4)]


def test_the_time_that_deciding_takes_is_counted() -> None:
    ticks = iter(range(10**6))
    speculator = Speculator(Scripted(lambda _: []), 15, control=EagerController(15), clock=lambda: next(ticks) * 1e-4)
    speculator.begin()
    plain = Round(draft=Draft(), n_accepted=0, tokens=(1,), draft_s=0.0, verify_s=1e-3, sample_s=0.0)
    for _ in range(11):
        speculator.draft([0], PARAMS, 10, V)
        speculator.learn(plain)
    # Each call of the clock is a tick: one passes while guessing, and one while learning, which the next step bears.
    assert speculator.record.spent_s == pytest.approx(11 * (1e-3 + 1e-4) + 10 * 1e-4)
    assert speculator.record.gain < 1


class Ticking:
    """A clock that advances by a tick with each look at it."""

    def __init__(self, tick_s: float) -> None:
        self.now = 0.0
        self._tick_s = tick_s

    def __call__(self) -> float:
        self.now += self._tick_s
        return self.now


def test_what_learning_of_unasked_steps_takes_is_no_part_of_the_next_look() -> None:
    """It would become the dearer the longer it waits, and wait the longer the dearer it is."""
    heard: list[tuple[str, float]] = []

    class Rarely(Scripted):
        def may_guess(self, history: Sequence[int]) -> bool:
            return len(history) % 100 == 1

    class Noting(EagerController):
        def learn(self, done: Round) -> Callable[[float], None]:
            del done
            return lambda own_s: heard.append(("asked", own_s))

        def pass_by(self, passed: Passed, own_s: float) -> None:
            heard.append(("passed", own_s))
            super().pass_by(passed, own_s)

    control = Noting(15)
    control.steps.calibrate(STEP_S.__getitem__)
    speculator = Speculator(Rarely(list), 15, control=control, clock=Ticking(1e-4))
    speculator.begin()
    for n in range(200):
        speculator.draft([0] * (n + 1), PARAMS, 10, V)
        speculator.learn(Round(draft=Draft(), n_accepted=0, tokens=(1,), draft_s=0.0, verify_s=1e-3, sample_s=0.0))
    assert max(own_s for _, own_s in heard) <= 2.5e-4
    # What was passed by is learnt of before a look, and so in its round.
    assert [own_s for kind, own_s in heard if kind == "asked"] == pytest.approx([0.0, 2e-4])
    assert len(heard) < 40


def test_where_nothing_may_be_guessed_nothing_is_asked_and_little_is_told() -> None:
    n_told: list[int] = []

    class Silent(Scripted):
        def may_guess(self, _history: Sequence[int]) -> bool:
            return False

        def propose(self, _history: Sequence[int], _params: SamplingParams, _gate: Gate) -> Draft:
            raise AssertionError("it said that it has nothing to guess")

    class Noting(EagerController):
        def pass_by(self, passed: Passed, own_s: float) -> None:
            n_told.append(len(passed))
            super().pass_by(passed, own_s)

    control = Noting(15)
    control.steps.calibrate(lambda n: STEP_S[n] / 10)
    speculator = Speculator(Silent(list), 15, control=control)
    speculator.begin()
    for _ in range(1200):
        speculator.draft([0], PARAMS, 10, V)
        speculator.learn(Round(Draft(), 0, (1,), 0.0, 1e-4, 0.0, is_ahead=True))
    assert speculator.record.plain_s == pytest.approx(0.12)
    assert sum(n_told) == 1200
    assert max(n_told) >= 500
    assert len(n_told) < 6


def test_a_drafter_is_not_asked_while_its_guess_would_not_be_wanted() -> None:
    """Reading costs time, too, and takes less for many tokens at once."""
    n_read: list[int] = []

    class Reading(Scripted):
        def may_guess(self, history: Sequence[int]) -> bool:
            n_read.append(len(history))
            return True

    class Resting(EagerController):
        wait = 8

        def gate(self, _limit: int) -> Gate | None:
            return None

    control = Resting(15)
    control.steps.calibrate(STEP_S.__getitem__)
    speculator = Speculator(Reading(list), 15, control=control)
    speculator.begin()
    for n in range(80):
        speculator.draft([0] * (n + 1), PARAMS, 10, V)
        speculator.learn(Round(Draft(), 0, (1,), 0.0, 1e-3, 0.0))
    assert n_read[-1] > 70
    assert len(n_read) <= 11


def test_plain_steps_that_nothing_was_asked_for_are_all_counted() -> None:
    """Nothing is drafted without room, and the loop then asks for nothing."""
    speculator = Speculator(Scripted(coming(3, 3)), 15)
    speculator.calibrate(STEP_S.__getitem__)
    speculator.begin()
    for n in range(1, 30):
        assert speculator.draft([0], PARAMS, 0, V) == Draft()
        speculator.learn(Round(draft=Draft(), n_accepted=0, tokens=(1,), draft_s=0.0, verify_s=1e-3, sample_s=0.0))
        if n % 5 == 0:
            assert speculator.record.spent_s == pytest.approx(n * 1e-3, rel=0.05)


def test_what_a_device_hid_is_no_loss_in_the_record() -> None:
    speculator = Speculator(Scripted(lambda _: []), 15, control=EagerController(15), clock=Ticking(0.0))
    speculator.begin()
    for _ in range(100):
        speculator.draft([0], PARAMS, 0, V)
        speculator.learn(Round(Draft(), 0, (1,), 0.2e-3, 0.8e-3, 0.0, is_ahead=True))
    assert speculator.record.gain == pytest.approx(1, abs=0.01)


def test_the_first_draft_of_an_answer_comes_after_two_steps_however_short_they_are() -> None:
    """Which it is compared with; later, many short ones are learnt of at once."""
    speculator = Speculator(Scripted(lambda _: [0] * 8), 15, clock=lambda: 0.0)
    speculator.calibrate(lambda _: 1e-4)
    for _ in range(2):
        speculator.begin()
        drafted = []
        for _ in range(4):
            draft = speculator.draft((0,), PARAMS, 15, V)
            drafted.append(len(draft) > 0)
            speculator.learn(Round(draft, len(draft), (0,) * (len(draft) + 1), 0.0, 1e-4, 0.0))
        assert drafted == [False, False, True, True]
