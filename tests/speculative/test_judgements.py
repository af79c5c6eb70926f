"""What the controller decides, one judgement a test: when a drafter is asked, how far, and what of it is verified.

Rounds are told to it, not played: plain steps take one unit of time, and what looks take is said.
"""

from __future__ import annotations

import pytest
from simulated_machines import DRAFT_MAX, RIGHT, WRONG, Machine, Playing, Trace, World

from runner.speculative.account import INITIAL_ALLOWANCE
from runner.speculative.controller import Controller
from runner.speculative.drafter import NO_DRAFT, Draft
from runner.speculative.record import Passed, Round

UNIT = 1e-3  # seconds of a plain step


def guess(n: int, token: int = RIGHT, bucket: int = 1) -> Draft:
    return Draft((token,) * n, (bucket,) * n)


class Told:
    """A controller after two plain steps. t: of a step for more tokens, or for each number of them."""

    def __init__(self, t: float | list[float] = 1.1, *, is_host_only: bool = True) -> None:
        self.now = 0.0
        self._t = t
        drafter = Playing(World(Trace("none", (), ()), Machine("none", {1: 1.0}), 0), is_host_only)
        self.control = Controller(drafter, DRAFT_MAX, lambda: self.now)
        self.control.steps.calibrate(lambda n: UNIT * self.step(n))
        self.control.begin()
        self.plain(2)

    def step(self, n_tokens: int) -> float:
        return 1.0 if n_tokens == 1 else self._t[n_tokens] if isinstance(self._t, list) else self._t

    @property
    def balance(self) -> float:
        return self.control._account.balance

    @balance.setter
    def balance(self, steps: float) -> None:
        self.control._account.balance = steps

    def plain(self, n: int, *, is_ahead: bool = False) -> None:
        """So many plain steps for which nothing is asked."""
        for _ in range(n):
            self.control.pass_by(Passed.of(Round(NO_DRAFT, 0, (RIGHT,), 0.0, UNIT, 0.0, is_ahead, is_ahead)), 0.0)

    def is_asked(self) -> bool:
        return self.control.gate(DRAFT_MAX) is not None

    def look(self, draft: Draft, *, takes: float = 0.0, each: float = 0.0) -> Draft | None:
        """Ask: what of that draft is to be verified; None where nothing is asked for. each: of a token of it."""
        gate = self.control.gate(DRAFT_MAX)
        if gate is None:
            return None
        self.now += UNIT * takes
        n = 0
        while n < len(draft) and gate.is_open:
            self.now += UNIT * each
            if not gate.admits(draft.buckets[n]):
                break
            n += 1
        return self.control.cut(Draft(draft.tokens[:n], draft.buckets[:n]))

    def over(
        self, draft: Draft = NO_DRAFT, *, is_right: bool = True, looked: float = 0.0, is_ahead: bool = False
    ) -> None:
        """The step for that draft is over. looked: what asking took. is_ahead: see Round; a look makes it longer."""
        n_right = len(draft) if is_right else 0
        longer = looked if is_ahead else 0.0
        step = self.step(len(draft) + 1) + longer
        tokens = (RIGHT,) * (n_right + 1)
        done = Round(draft, n_right, tokens, UNIT * (looked - longer), UNIT * step, 0.0, is_ahead, is_ahead)
        self.control.learn(done)(0.0)

    def rounds(self, n: int, *, length: int = 8, is_right: bool = True) -> list[int]:
        """Drafts one after the other, which stand or fail; gives how much of each was verified."""
        lengths = []
        for _ in range(n):
            draft = self.look(guess(length)) or NO_DRAFT
            self.over(draft, is_right=is_right)
            lengths.append(len(draft))
        return lengths

    def in_vain(self, takes: float) -> bool:
        """A look that finds nothing; False where none is taken."""
        found = self.look(NO_DRAFT, takes=takes)
        self.over(looked=takes if found is not None else 0.0)
        return found is not None

    def tokens_until_asked(self, most: int = 200) -> int:
        for n in range(most):
            if self.is_asked():
                return n
            self.plain(1)
        return most


def trust(told: Told) -> Told:
    """What is guessed has stood twenty times."""
    for _ in range(20):
        told.control._outlook.acceptance.learn(0, (1,) * 8, 8)
    return told


def owing() -> Told:
    """It trusts its drafts, and owes for looks in vain."""
    told = Told(1.4)
    told.rounds(20, length=2)
    told.balance = INITIAL_ALLOWANCE - 0.1
    assert told.in_vain(2.0)
    return told


def trusting(t: float | list[float]) -> Told:
    return trust(Told(t))


def too_late(told: Told, draft: Draft, takes: float) -> None:
    """A draft is wanted after a look that took so long, and the step that had begun meanwhile is over without it."""
    told.plain(1, is_ahead=True)
    told.balance = INITIAL_ALLOWANCE
    assert told.look(draft, takes=takes) == draft
    told.over(looked=takes, is_ahead=True)


# --- when a drafter is asked -----------------------------------------------------------------------------------------


def test_while_drafts_rest_nothing_is_asked() -> None:
    told = Told(1.5)
    while told.control.state != "off":
        told.rounds(1, is_right=False)
    assert told.tokens_until_asked(1000) == 256


@pytest.mark.parametrize(("takes", "waited"), [(0.1, 7), (0.2, 17)])  # the first three tokens count
def test_looks_in_vain_are_paid_by_a_hundredth_of_the_time(takes: float, waited: int) -> None:
    told = Told()
    assert told.in_vain(takes)
    assert told.tokens_until_asked() == waited


def test_what_is_saved_for_looks_in_vain_is_one_plain_step_and_a_draft_that_stands_leaves_it() -> None:
    told = Told()
    told.plain(1000)
    assert told.rounds(1, length=1) == [1]
    assert [told.in_vain(0.3) for _ in range(6)] == [True] * 4 + [False] * 2


@pytest.mark.parametrize(("t", "is_asked"), [(1.4, True), (1.6, False)])
def test_where_drafts_double_the_speed_looks_in_vain_are_paid_by_that(t: float, is_asked: bool) -> None:
    """Drafts of two that stand: three tokens a step."""
    told = Told(t)
    told.rounds(20, length=2)

    def looks(balance: float) -> list[bool]:
        taken = []
        for _ in range(3):
            told.balance = balance
            taken.append(told.in_vain(1.0))
        return taken

    assert looks(2.1) == [True, is_asked, is_asked]  # one is saved for
    # What an answer begins with is not for looks.
    assert looks(INITIAL_ALLOWANCE) == [is_asked, False, False]


def test_what_is_owed_for_looks_is_waited_for_no_longer_than_until_drafts_have_earned_one() -> None:
    told = owing()
    told.balance = INITIAL_ALLOWANCE
    assert told.tokens_until_asked() == 32  # where a hundredth of the time would be 140 tokens


def test_a_look_that_can_never_be_covered_is_taken_once_waiting_makes_it_no_better() -> None:
    told = Told()
    for _ in range(40):
        told.control.learn_guessing(0, 5 * UNIT)
    assert not told.is_asked()
    told.plain(300)
    assert told.is_asked()


def test_what_a_model_did_not_read_yet_is_a_part_of_what_asking_it_takes() -> None:
    told = Told(is_host_only=False)
    told.control.learn_guessing(1, 0.01 * UNIT)
    told.control.learn_reading(100, 10 * UNIT)
    assert told.is_asked()
    told.plain(20)
    assert not told.is_asked()
    assert told.control.reason.startswith("a guess takes 2.01 plain steps")


def test_a_model_is_asked_only_if_its_time_can_be_lost_now() -> None:
    told = Told(is_host_only=False)
    told.control.learn_guessing(1, 0.2 * UNIT)
    told.balance = 0.1
    assert not told.is_asked()
    assert told.control.reason == "a guess takes 0.20 plain steps, and 0.10 may be lost now"


def refused(t: float | list[float]) -> Told:
    """A model whose drafts promised too little sixteen times."""
    told = Told(t, is_host_only=False)
    told.control.learn_guessing(1, 0.001 * UNIT)
    told.control._outlook.acceptance.learn(0, (1,), 0)
    states = []
    for _ in range(16):
        told.balance = 9.0
        assert not told.is_asked()
        states.append(told.control.state)
        told.plain(1)
    assert states == ["on"] * 15 + ["learning"]
    return told


def test_guesses_of_a_model_that_promise_too_little_are_only_compared_three_tokens_each_to_their_end() -> None:
    told = refused(5.0)
    asked = []
    for _ in range(7):
        told.balance = 0.5  # which need not cover a draft
        gate = told.control.gate(DRAFT_MAX)
        asked.append(gate is not None)
        if gate is not None:
            assert gate.reach == 3
            assert [gate.is_open and gate.admits(1) for _ in range(5)] == [True] * 3 + [False] * 2
            assert not told.control.cut(guess(3))
        told.over()
    assert asked == [True, False, False] * 2 + [True]


def test_a_guess_that_a_model_took_its_time_for_is_verified_if_that_alone_pays() -> None:
    told = refused(3.6)
    trust(told)
    told.balance = 9.0
    assert told.look(guess(8)) == guess(3)  # 3.8 tokens for 3.6 plain steps
    assert told.control.state == "learning"


def test_a_model_that_promises_enough_is_asked_whatever_comparing_it_took() -> None:
    told = refused(3.0)
    trust(told)
    told.balance = 9.0
    told.over(told.look(guess(8), takes=0.5) or NO_DRAFT, is_right=False, looked=0.5)
    assert told.control.state == "on"
    told.balance = 9.0
    assert told.is_asked()


def test_guesses_of_eight_tokens_are_compared_where_there_is_room_for_them() -> None:
    for room, n in ((1, 1), (15, 8)):
        gate = Told(9.0).control.gate(room)
        assert gate is not None
        assert gate.reach == n
        assert [gate.admits(1) for _ in range(9)] == [True] * n + [False] * (9 - n)


def test_a_look_is_in_vain_if_it_found_nothing_or_what_it_found_is_only_compared() -> None:
    told = trusting(1.5)
    told.rounds(1)  # which is "on" from there
    too_late(told, guess(8, WRONG), 0.6)
    told.balance = INITIAL_ALLOWANCE
    assert told.is_asked()
    told = Told(9.0)
    assert told.look(guess(8), takes=0.5) == NO_DRAFT
    told.over(looked=0.5)
    assert not told.is_asked()


def test_a_draft_that_stands_pays_what_is_owed_for_looks() -> None:
    told = owing()
    told.balance = 2.1
    told.over(told.look(guess(2)) or NO_DRAFT)
    told.balance = INITIAL_ALLOWANCE
    assert told.in_vain(1.0)


def test_a_hidden_look_is_learnt_to_take_nothing() -> None:
    told = Told()
    told.plain(2, is_ahead=True)
    assert told.look(NO_DRAFT, takes=0.5) is not None
    told.control.learn(Round(NO_DRAFT, 0, (RIGHT,), 0.5 * UNIT, 0.5 * UNIT, 0.0, True, True))(0.0)
    told.balance = 0.05
    assert told.is_asked()


# --- how far a model guesses -----------------------------------------------------------------------------------------


SLOPED = [0.0, *(1 + 0.1 * n for n in range(16))]


@pytest.mark.parametrize(("balance", "n"), [(0.3, 0), (0.5, 1), (0.9, 2), (1.29, 3)])
def test_a_model_guesses_as_long_as_half_of_what_may_be_lost_covers_it(balance: float, n: int) -> None:
    """Each token takes a tenth of a step to guess, and as much to verify."""
    told = Told(SLOPED, is_host_only=False)
    told.control.learn_guessing(1, 0.1 * UNIT)
    told.balance = balance
    draft = told.look(guess(8), each=0.1)
    assert len(draft or NO_DRAFT) == n


def test_a_chain_is_begun_as_long_as_half_of_what_may_be_lost_covers_it_and_taken_whole() -> None:
    """A device guesses it at once: it is there, however long that took."""
    told = Told(SLOPED, is_host_only=False)
    told.control.learn_guessing(1, 0.1 * UNIT)
    told.balance = 9.0
    gate = told.control.gate(DRAFT_MAX)
    assert gate is not None
    assert gate.reach == 4  # the chance of a fifth, 0.7 ** 5, is worth less than the fifth of a step that it takes
    told.balance = 1.29
    assert gate.reach == 3
    told.now += 5 * UNIT
    assert [gate.admits(1) for _ in range(4)] == [True] * 3 + [False]


@pytest.mark.parametrize(("takes", "is_admitted"), [(0.35, True), (0.45, False)])
def test_a_token_that_took_longer_to_guess_is_dropped_if_its_failing_is_not_covered_any_more(
    takes: float, is_admitted: bool
) -> None:
    told = Told(SLOPED, is_host_only=False)
    told.control.learn_guessing(1, 0.1 * UNIT)
    told.balance = 0.5
    gate = told.control.gate(DRAFT_MAX)
    assert gate is not None
    told.now += takes * UNIT
    assert gate.admits(1) == is_admitted


def test_a_token_of_a_kind_that_is_wrong_ends_a_draft() -> None:
    told = trust(Told(SLOPED, is_host_only=False))
    for _ in range(20):
        told.control._outlook.acceptance.learn(0, (0,), 0)
    trust(told)
    trust(told)
    gate = told.control.gate(DRAFT_MAX)
    assert gate is not None
    assert [gate.admits(bucket) for bucket in (1, 0)] == [True, False]


# --- what of a guess is verified -------------------------------------------------------------------------------------


def test_a_look_that_a_device_hides_is_not_held_against_the_draft_that_it_found() -> None:
    found = []
    for is_ahead in (True, False):
        told = Told()
        told.plain(2, is_ahead=is_ahead)
        found.append(len(told.look(guess(8), takes=2.0) or NO_DRAFT))
    assert found == [8, 0]


def test_a_hidden_look_that_was_quicker_than_usual_counts_as_what_it_took() -> None:
    told = Told()
    for _ in range(40):
        told.control.learn_guessing(0, 0.5 * UNIT)
    told.plain(2, is_ahead=True)
    told.balance = 0.55
    assert told.look(guess(8), takes=0.01) == guess(8)


@pytest.mark.parametrize(
    ("takes", "balance", "n"),
    [(0.6, 0.0, 8), (0.6, -0.2, 0), (3.0, -0.4, 8), (3.0, -0.6, 0)],  # a plain step at most
)
def test_what_the_look_took_whose_draft_came_too_late_is_not_held_against_the_next(
    takes: float, balance: float, n: int
) -> None:
    """A draft of eight could lose half a plain step."""
    told = trusting(1.5)
    too_late(told, guess(8), takes)
    told.balance = balance
    assert len(told.look(guess(8)) or NO_DRAFT) == n


def test_only_what_follows_a_draft_that_was_right_and_late_is_asked_for_again_at_once() -> None:
    for draft, n_between, is_asked in ((guess(8), 0, True), (guess(8, WRONG), 0, False), (guess(8), 1, False)):
        told = trusting(1.5)
        too_late(told, draft, 0.6)
        told.plain(n_between)
        told.balance = 0.0
        assert told.is_asked() == is_asked


def test_that_draft_is_asked_for_whatever_is_owed_for_looks() -> None:
    told = owing()
    told.balance = 2.1
    assert told.look(guess(2), takes=0.6) == guess(2)  # drafts have earned it
    told.over(looked=0.6, is_ahead=True)
    told.balance = 0.0
    assert told.is_asked()


@pytest.mark.parametrize(
    ("is_ahead", "length", "balance", "n"),
    [(False, 8, 0.15, 1), (True, 8, 0.15, 0), (True, 8, 0.25, 2), (True, 5, 0.15, 0)],
)
def test_where_steps_begin_early_less_than_a_quarter_of_what_is_wanted_stops_none(
    is_ahead: bool, length: int, balance: float, n: int
) -> None:
    """A draft of n could lose n tenths of a plain step."""
    told = trusting(SLOPED)
    told.plain(2, is_ahead=is_ahead)
    told.balance = balance
    assert len(told.look(guess(length)) or NO_DRAFT) == n


def test_what_was_stopped_already_may_be_used_for_less() -> None:
    told = trusting(SLOPED)
    too_late(told, guess(8), 0.1)
    told.balance = 0.05
    assert told.look(guess(8)) == guess(1)


def test_a_draft_that_is_not_covered_is_waited_for_until_the_shortest_that_pays_is() -> None:
    """One token drafted costs 2.1 plain steps, two cost 2.2."""
    told = trusting([0.0, 1.0, *(2.1 + 0.1 * n for n in range(15))])
    told.plain(2, is_ahead=True)
    told.balance = 1.12
    assert told.look(guess(4)) == NO_DRAFT
    told.over(is_ahead=True)
    assert told.tokens_until_asked() == 4


def test_after_gains_two_whole_drafts_may_fail() -> None:
    told = trusting(3.0)
    told.balance = 9.0
    told.rounds(8)
    assert told.rounds(4, is_right=False) == [8, 8, 0, 0]


# --- what came of it -------------------------------------------------------------------------------------------------


def test_drafts_that_fail_are_judged_after_four_where_no_more_may_be_lost() -> None:
    told, states = trusting(1.5), []
    for _ in range(4):
        told.balance = 5.0
        draft = told.look(guess(8))
        assert draft
        told.balance = -1.0  # the step was dearer than could be foreseen
        told.over(draft, is_right=False)
        states.append(told.control.state)
    assert states == ["on"] * 3 + ["off"]


def test_what_looks_took_since_the_last_draft_is_held_against_the_next_and_a_small_promise_is_enough_then() -> None:
    told = trusting(1.9)
    told.over(told.look(guess(8)) or NO_DRAFT, is_right=False)
    told.balance = 2.0
    assert told.in_vain(0.5)
    told.balance = 2.0
    assert told.tokens_until_asked() < 60
    draft = told.look(guess(1))
    assert draft == guess(1)
    told.over(draft)
    assert told.control.reason == "drafts of 4.5 cost 2.1 plain steps and bring 1.5 tokens"


def test_a_guess_that_is_compared_is_compared_to_its_end() -> None:
    told = Told(9.0)
    turning = Draft((RIGHT,) * 4 + (WRONG,) * 4, (1,) * 8)
    for _ in range(30):
        assert told.look(turning) == NO_DRAFT
        told.over()
    chances = told.control._outlook.acceptance.chances((1,) * 5)
    assert chances[3] > 0.7
    assert chances[4] < 0.5


def test_bad_luck_is_no_reason_to_rest_while_gains_cover_it() -> None:
    told = trusting(1.5)
    for balance, state in [(5.0, "on")] * 17 + [(0.5, "off")]:
        trust(told)
        told.balance = balance
        told.over(told.look(guess(8)) or NO_DRAFT, is_right=False)
        assert told.control.state == state
        told.plain(1)


def test_a_rest_is_never_longer_than_16384_tokens() -> None:
    told, rests = trusting(1.5), []
    while len(rests) < 8:
        trust(told)
        told.balance = 1.0
        told.rounds(1, is_right=False)
        if told.control.state == "off":
            rests.append(int(told.control.reason.split()[-2]))
            told.control.pass_by(Passed.of(Round(NO_DRAFT, 0, (RIGHT,) * rests[-1], 0.0, UNIT, 0.0)), 0.0)
            assert told.control.state == "learning"
            told.plain(2)
    assert rests == [256, 512, 1024, 2048, 4096, 8192, 16384, 16384]


def test_a_draft_that_could_lose_more_than_there_is_is_waited_for_until_it_could_not() -> None:
    told = trusting(4.0)
    told.balance = 1.0
    assert told.look(guess(8)) == NO_DRAFT
    told.over()
    assert told.tokens_until_asked() == 124  # of which each allows a loss of 0.016


def test_a_look_that_could_lose_more_than_there_ever_is_waits_until_waiting_makes_it_no_better() -> None:
    told = trusting(1.1)
    told.rounds(1)
    for _ in range(40):
        told.control.learn_guessing(0, 5 * UNIT)
    told.plain(100)
    assert told.look(guess(8), takes=5.0) == NO_DRAFT
    told.over(looked=5.0)
    assert 400 <= told.tokens_until_asked(1000) < 440  # 1 % of them is what it took beyond the step that was saved


def test_steps_that_draft_by_themselves_are_on_while_they_bring_three_percent() -> None:
    for seconds, state in ((1.9, "on"), (1.96, "learning")):  # for two tokens
        told = Told()
        for _ in range(16):
            told.control.learn_stride(Round(guess(3, bucket=4), 1, (RIGHT,) * 2, 0.0, seconds * UNIT, 0.0, True, True))
        told.control.learn_stride(Round(NO_DRAFT, 0, (RIGHT,), 0.0, UNIT, 0.0, True, True))
        assert told.control.state == state
        assert told.control.reason.startswith("drafts of 3.0 cost")
