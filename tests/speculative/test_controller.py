"""The controller against traces of acceptance and tables of costs: it gains, it never loses, and it says why.

The decode loop is the product's; target and drafter take their time on a simulated clock, see
benchmarks/simulated_machines.py.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_machines import DRAFT_MAX, RIGHT, WRONG, Machine, Playing, Trace, World, answer, play, speculate
from speculation_adversity import SPOILS, gains_of
from speculation_controller import (
    CPU,
    FAST,
    FLAT,
    MACHINES,
    MODEL,
    OURS,
    SLOW_HOST,
    TEXTS,
    code,
    confident,
    fixed,
    oracle,
    prose,
    steady,
    switching,
    turning,
)

from runner.speculative.control import EagerController
from runner.speculative.controller import Controller
from runner.speculative.drafter import NO_DRAFT, Draft
from runner.speculative.record import Passed, Round

LEAST = 0.97


# --- never slower ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [128, 700])
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_no_text_is_slower_than_plain_decoding(machine: Machine, n: int) -> None:
    for text in TEXTS:
        for seed in range(3 if n == 128 else 1):
            trace = text(n, seed)
            assert play(trace, machine, seed)[0] >= LEAST, (trace.name, seed)


@pytest.mark.parametrize("at", [0.02, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("token", [0.05, 0.3, 0.6])
def test_a_drafter_that_suddenly_takes_ten_times_as_long_loses_no_more(token: float, at: float) -> None:
    machine = replace(MODEL, draft_token=token, draft_grows_at=at)
    for text in TEXTS:
        for seed in range(2):
            trace = text(128, seed)
            assert play(trace, machine, seed)[0] >= LEAST, (trace.name, seed)


@settings(max_examples=50)
@given(st.integers(0, 1 << 30))
def test_nothing_is_ever_slower_than_plain_decoding(seed: int) -> None:
    """Several answers with one speculator, each for itself."""
    assert min(gains_of(seed, SPOILS["nothing"])) >= LEAST


ADVERSE = {
    "t(1) too long at load": {"plain_at_load": 2.5},
    "t(1) too short at load": {"plain_at_load": 0.4},
    "asking takes time": {"draft_call": 0.05, "draft_token": 0.0},
    "asking takes time, and the step after it": {"draft_call": 0.05, "draft_token": 0.0, "unseen": 0.05},
    "steps deepen": {"deepens": 1.5},
    "all of it": {"plain_at_load": 2.0, "draft_call": 0.05, "draft_token": 0.0, "unseen": 0.05, "deepens": 1.0},
}


@pytest.mark.parametrize("what", ADVERSE)
def test_a_machine_that_is_not_what_it_seemed_costs_no_more(what: str) -> None:
    for machine in MACHINES:
        adverse = replace(machine, **ADVERSE[what])
        for text in TEXTS:
            for n in (128, 300):
                assert play(text(n, 0), adverse)[0] >= LEAST, (machine.name, text(n, 0).name)


def test_noise_and_stalls_cost_no_more_on_average() -> None:
    for machine in (FLAT, OURS, CPU, MODEL):
        noisy = replace(machine, noise=0.2, stall=0.01)
        for text in (prose, lambda n, seed: steady("wrong", n, seed, 0.0)):
            gains = [play(text(300, seed), noisy, seed)[0] for seed in range(12)]
            assert sum(gains) / len(gains) >= LEAST + 0.005, machine.name


def test_a_drafter_that_finds_nothing_is_asked_for_one_percent_of_the_time() -> None:
    machine = replace(CPU, draft_call=0.05, unseen=0.05)
    trace = steady("wrong", 2000, 0, 0.0)
    world = World(Trace("nothing after a while", (True,) * 60 + trace.right, (1,) * 60 + (None,) * 2000), machine, 0)
    assert answer(world, machine, speculate(world, machine)) >= 0.985


def test_where_drafts_gain_much_dear_looks_are_paid_by_that() -> None:
    """One in three of its looks finds nothing: at 1 % of the time, each would be followed by 30 tokens without one."""
    for machine in (OURS, FAST):
        assert mean_gain(replace(machine, draft_call=0.3, unseen=0.05), code, 1000) >= 2.2


def test_what_the_controller_prevents_is_real() -> None:
    """The worst case without it: the same traces lose when every guess is verified."""
    for machine in MACHINES:
        trace = steady("wrong", 300, 0, 0.0)
        assert play(trace, machine, 0, EagerController(DRAFT_MAX))[0] < 0.8


# --- gain ------------------------------------------------------------------------------------------------------------


def mean_gain(machine: Machine, text, n: int, seeds: int = 4) -> float:
    return sum(play(text(n, seed), machine, seed)[0] for seed in range(seeds)) / seeds


def test_code_is_twice_as_fast_where_steps_are_flat() -> None:
    assert mean_gain(FLAT, code, 128) >= 3.0
    assert mean_gain(FLAT, code, 1000) >= 4.5
    assert mean_gain(OURS, code, 1000) >= 3.5
    assert mean_gain(CPU, code, 1000) >= 1.5


def gains_in_turn(machine: Machine, text, n_answers: int = 5) -> list[float]:
    """Of answers of 300 tokens, one after the other with one speculator."""
    world = World(text(300, 0), machine, 0)
    speculator = speculate(world, machine)
    gains = []
    for number in range(n_answers):
        world.begin(text(300, number))
        gains.append(answer(world, machine, speculator))
    return gains


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("machine", [FAST, SLOW_HOST], ids=lambda machine: machine.name)
def test_where_steps_begin_early_code_is_twice_as_fast_once_the_machine_is_known(
    machine: Machine, noise: float
) -> None:
    """Asking and deciding take an eighth to a third of a step there, hidden behind the device while it works on one."""
    first, *later = gains_in_turn(replace(machine, noise=noise), code)
    assert first > 1.2
    assert sum(later) / len(later) > 1.9
    assert min(gains_in_turn(replace(machine, noise=noise), prose)) >= LEAST


def test_looks_that_are_hidden_are_not_charged() -> None:
    """A drafter that is always wrong is asked again and again, and nothing is lost by it."""
    trace = steady("wrong", 600, 0, 0.0)
    world = World(trace, FAST, 0)
    speculator = speculate(world, FAST)
    for _ in range(2):
        world.begin(trace)
        assert answer(world, FAST, speculator) > 0.995
        assert speculator.record.gain > 0.98


def test_prose_with_rare_repeats_gains_what_there_is() -> None:
    assert mean_gain(FLAT, prose, 1000) >= 1.04


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_it_comes_near_the_best_constant_draft_length(machine: Machine) -> None:
    texts = [code, lambda n, seed: confident("code", n, seed, (0.1, 0.15, 0.75))]
    for text in texts:
        trace = text(2000, 1)
        gain = play(trace, machine, 1)[0]
        # What the host does beside a device is told from its first steps alone on a slow one.
        share = 0.8 if machine.host is not None else 0.85
        assert share * fixed(trace, machine)[1] <= gain <= oracle(trace, machine)


def test_it_beats_every_constant_length_on_a_text_that_turns() -> None:
    for machine in (FLAT, OURS, CPU, MODEL):
        trace = turning(1000, 0)
        assert play(trace, machine, 0)[0] > 1.05 * fixed(trace, machine)[1]


def test_what_was_learned_serves_the_next_answer() -> None:
    trace = code(128, 2)
    world = World(trace, FLAT, 0)
    speculator = speculate(world, FLAT)
    first = answer(world, FLAT, speculator)
    later = [answer(world, FLAT, speculator) for _ in range(3)]
    assert min(later) > first


def test_a_draft_that_the_account_does_not_cover_is_waited_for_whole() -> None:
    """Looks take a fourteenth of a step, and one token drafted does not pay there: waiting for what covers only that
    would spend it on looks, again and again."""
    machine = replace(CPU, draft_call=0.07, deciding=0.03, unseen=0.03)
    assert min(gains_in_turn(machine, lambda n, seed: steady("right", n, seed, 1.0), 3)) > 1.3


def test_an_uncalibrated_target_is_learned_live() -> None:
    trace = steady("right", 600, 0, 1.0)
    world = World(trace, FLAT, 0)
    speculator = speculate(world, FLAT, Controller(Playing(world, True), DRAFT_MAX, world.clock), is_calibrated=False)
    assert answer(world, FLAT, speculator) > 4
    assert speculator.record.lengths[-1] > 0


# --- states and reasons ----------------------------------------------------------------------------------------------


def state_after(machine: Machine, trace: Trace) -> tuple[str, str]:
    record = play(trace, machine)[1].record
    return record.state, record.reason


def test_drafts_that_pay_are_on_with_their_numbers() -> None:
    state, reason = state_after(FLAT, steady("right", 300, 0, 1.0))
    assert state == "on"
    assert re.fullmatch(r"drafts of 1[0-9.]+ cost 1\.\d plain steps and bring 1[0-9.]+ tokens", reason)


def test_wrong_guesses_are_only_compared_and_say_what_a_draft_would_bring() -> None:
    state, reason = state_after(CPU, steady("wrong", 300, 0, 0.0))
    assert state == "learning"
    assert re.fullmatch(r"a draft of \d+ would cost \d\.\d plain steps and bring 1\.\d tokens", reason)


def test_before_any_guess_there_is_a_reason_too() -> None:
    trace = Trace("nothing", (False,) * 20, (None,) * 20)
    assert state_after(FLAT, trace) == ("learning", "no guess yet")


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (0.05, r"a draft of 1 could lose 1\.\d plain steps, and 0\.\d may be lost by it now"),
        (0.6, r"a guess takes 0\.60 plain steps, and 10 times that, if it is held up, may not be lost"),
        (8.0, r"a guess takes 8\.00 plain steps, and 1\.\d\d may be lost now"),
    ],
)
def test_a_drafter_that_takes_time_and_is_not_asked_says_why(token: float, words: str) -> None:
    state, reason = state_after(replace(CPU, draft_call=0.0, draft_token=token), steady("right", 16, 0, 1.0))
    assert state == "on"
    assert re.fullmatch(words, reason)


class Driven:
    """A controller whose rounds a test plays one by one: plain steps take 1 s, guessing what is said."""

    def __init__(self, is_host_only: bool = True, t: float = 1.1) -> None:
        world = World(steady("none", 1, 0, 0.0), FLAT, 0)
        self.now = 0.0
        self.t = t
        self.control = Controller(Playing(world, is_host_only), DRAFT_MAX, lambda: self.now)
        self.control.steps.calibrate(lambda n: 1e-3 * (1.0 if n == 1 else t))
        self.control.begin()

    def step(self, guess: Draft, written: int, guess_s: float = 0.0, if_drafted: int | None = None) -> Round:
        """A round: what is guessed if the gate lets it, and the token that the target writes again and again.

        if_drafted: what it writes instead where a draft is verified.
        """
        gate = self.control.gate(DRAFT_MAX)
        began = self.now
        draft = NO_DRAFT
        if gate is not None:
            n = 0
            for bucket in guess.buckets:
                if not gate.is_open:
                    break
                self.now += guess_s
                if not gate.admits(bucket):
                    break
                n += 1
            draft = self.control.cut(Draft(guess.tokens[:n], guess.buckets[:n]))
        if if_drafted is not None and len(draft):
            written = if_drafted
        n_right = next((i for i, token in enumerate(draft.tokens) if token != written), len(draft))
        done = Round(
            draft=draft,
            n_accepted=n_right,
            tokens=(written,) * (n_right + 1),
            draft_s=self.now - began,
            verify_s=1e-3 * (self.t if len(draft) else 1.0),
            sample_s=0.0,
        )
        self.now += done.verify_s
        self.control.learn(done)(0.0)
        return done


GOOD = Draft((RIGHT,) * 8, (1,) * 8)


def test_a_first_guess_is_verified_where_it_would_pay_at_even_chances() -> None:
    driven = Driven()
    rounds = [driven.step(GOOD, RIGHT) for _ in range(4)]
    assert [len(done.draft) for done in rounds] == [0, 0, 8, 8]  # after two plain steps, which drafts are compared with
    assert driven.control.state == "on"


def test_no_more_than_the_gate_lets_through_is_admitted_and_none_while_it_waits() -> None:
    driven = Driven()
    for _ in range(4):
        driven.step(GOOD, RIGHT)
    gate = driven.control.gate(3)
    assert gate is not None
    assert [gate.admits(1) for _ in range(5)] == [True] * 3 + [False] * 2
    driven = Driven()
    for _ in range(4):
        driven.step(GOOD, RIGHT)
    driven.control.wait = 2
    assert [len(driven.step(GOOD, RIGHT).draft) for _ in range(4)] == [0, 0, 8, 8]


def test_a_guess_has_to_promise_a_tenth_before_any_is_verified() -> None:
    driven = Driven(t=1.85)
    assert not any(len(driven.step(GOOD, RIGHT).draft) for _ in range(3))
    assert driven.control.reason == "a draft of 8 promises 1.08x, and 1.10x is wanted"
    assert driven.control.state == "learning"


def test_where_a_draft_is_dear_guesses_are_compared_before_any_is_verified() -> None:
    driven = Driven(t=2.2)
    rounds = [driven.step(GOOD, RIGHT) for _ in range(12)]
    assert not any(len(done.draft) for done in rounds[:3])
    assert driven.control.state == "on"
    assert len(rounds[-1].draft) == 8


def test_a_text_that_turns_is_noticed_within_sixteen_drafts_and_after_the_rest_when_it_turns_back() -> None:
    driven = Driven()
    for _ in range(40):
        driven.step(GOOD, RIGHT)
    wrong = [driven.step(GOOD, WRONG) for _ in range(60)]
    assert sum(len(done.draft) > 0 for done in wrong) <= 16
    assert not any(len(done.draft) for done in wrong[-20:])
    back = [driven.step(GOOD, RIGHT) for _ in range(300)]
    assert sum(len(done.draft) == 8 for done in back[-10:]) >= 7


def test_a_drafter_that_is_right_only_while_it_is_watched_rests_longer_each_time() -> None:
    """It promises what it never keeps."""
    driven = Driven(t=1.5)
    spent, n, rests = 0.0, 0, []
    was_off = False
    for _ in range(9000):
        done = driven.step(GOOD, RIGHT, if_drafted=WRONG)
        spent += done.total_s
        n += len(done.tokens)
        is_off = driven.control.state == "off"
        if is_off and not was_off:
            match = re.fullmatch(
                r"drafts of 8\.0 cost 1\.5 plain steps and bring 1\.0 tokens; again in (\d+) tokens",
                driven.control.reason,
            )
            assert match, driven.control.reason
            rests.append(int(match[1]))
        was_off = is_off
    assert n * 1e-3 / spent >= LEAST
    assert rests[:3] == [256, 512, 1024]


def test_after_a_rest_drafts_are_judged_anew_and_once_they_paid_the_rest_is_short_again() -> None:
    driven = Driven(t=1.5)
    rests: list[tuple[int, int]] = []  # the drafts before each, and its tokens
    n_drafts, was_off = 0, False
    for n_rounds, if_drafted in ((1500, WRONG), (200, RIGHT), (1500, WRONG)):
        for _ in range(n_rounds):
            n_drafts += len(driven.step(GOOD, RIGHT, if_drafted=if_drafted).draft) > 0
            is_off = driven.control.state == "off"
            if is_off and not was_off:
                rests.append((n_drafts, int(driven.control.reason.split()[-2])))
                n_drafts = 0
            was_off = is_off
    assert [n_tokens for _, n_tokens in rests] == [256, 512, 256, 512]
    assert all(n_before == 16 for n_before, _ in rests[:2] + rests[3:])


def test_looks_are_charged_for_choosing_too() -> None:
    """They may take 1 % of the time: here each takes a twentieth of a plain step to guess, and as much to choose."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.05e-3
        return now

    control = Controller(Playing(World(steady("none", 1, 0, 0.0), FLAT, 0), True), DRAFT_MAX, clock)
    control.steps.calibrate(lambda n: 1e-3 * (1.0 if n == 1 else 3.0))
    control.begin()
    wrong = Round(draft=NO_DRAFT, n_accepted=0, tokens=(RIGHT + 1,), draft_s=0.0, verify_s=1e-3, sample_s=0.0)
    n_looks = n_tokens = 0
    while n_tokens < 2000:
        n_tokens += 1
        if (gate := control.gate(DRAFT_MAX)) is None:
            control.pass_by(Passed.of(wrong), 0.0)
            continue
        for bucket in GOOD.buckets:
            gate.admits(bucket)
        assert not control.cut(GOOD)
        control.learn(wrong)(0.0)
        n_looks += 1
    assert 0.005 * n_tokens < n_looks * 0.1 < 0.012 * n_tokens


def test_a_draft_that_came_too_late_is_judged_by_what_was_written() -> None:
    """A device may have begun its next step already: the draft is dropped, which does not make it wrong."""
    driven = Driven()
    for _ in range(20):
        driven.step(GOOD, RIGHT)
    dropped = Round(draft=NO_DRAFT, n_accepted=0, tokens=(RIGHT,), draft_s=0.0, verify_s=1e-3, sample_s=0.0)
    n_wanted = 0
    for _ in range(100):
        gate = driven.control.gate(DRAFT_MAX)
        if gate is None:  # a plain step to compare with
            driven.control.pass_by(Passed.of(dropped), 0.0)
            continue
        for bucket in GOOD.buckets:
            gate.admits(bucket)
        n_wanted += len(driven.control.cut(GOOD)) == 8
        driven.control.learn(dropped)(0.0)
    assert driven.control.state == "on"
    assert n_wanted >= 95


def test_a_guess_for_what_follows_is_not_compared_with_the_round_before_that_is_learnt_of_later() -> None:
    bad = Draft((WRONG,) * 8, (2,) * 8)
    driven = Driven()
    for _ in range(20):
        driven.step(GOOD, RIGHT)
        driven.step(bad, RIGHT)

    def look(guess: Draft) -> Draft:
        gate = driven.control.gate(DRAFT_MAX)
        assert gate is not None
        assert all(gate.admits(bucket) for bucket in guess.buckets)
        return driven.control.cut(guess)

    for _ in range(5):
        driven.step(GOOD, RIGHT)
    done = Round(look(GOOD), 8, (RIGHT,) * 9, 0.0, 1.1e-3, 0.0)
    learn = driven.control.learn(done)
    assert not look(bad)
    acceptance = driven.control._outlook.acceptance
    before = acceptance.chances((2,))
    learn(0.0)
    assert acceptance.chances((2,)) == before
    driven.control.learn(Round(NO_DRAFT, 0, (RIGHT,), 0.0, 1e-3, 0.0))(0.0)
    assert acceptance.chances((2,)) < before


def test_tokens_that_the_target_cannot_compute_are_wrong() -> None:
    driven = Driven()
    for _ in range(20):
        driven.step(GOOD, RIGHT)
    # The loop cuts such a draft to nothing, and the step is a plain one.
    wanted = []
    for _ in range(150):
        gate = driven.control.gate(DRAFT_MAX)
        if gate is not None:
            for bucket in GOOD.buckets:
                gate.admits(bucket)
            wanted.append(len(driven.control.cut(Draft((10**9,) * 8, GOOD.buckets))) > 0)
        plain = Round(draft=NO_DRAFT, n_accepted=0, tokens=(RIGHT,), draft_s=0.0, verify_s=1e-3, sample_s=0.0)
        driven.control.learn(plain)(0.0)
    assert wanted[0]
    assert not any(wanted[-20:])


def test_a_paid_drafter_is_stopped_in_the_middle_of_a_draft_when_its_time_is_up() -> None:
    driven = Driven(is_host_only=False)
    for _ in range(40):
        driven.step(GOOD, RIGHT, guess_s=1e-4)
    assert len(driven.step(GOOD, RIGHT, guess_s=1e-4).draft) == 8
    slow = driven.step(GOOD, RIGHT, guess_s=3e-3)
    assert slow.draft_s < 8 * 3e-3


def test_guesses_that_take_time_and_are_only_compared_take_one_percent_of_it() -> None:
    driven = Driven(is_host_only=False)
    for _ in range(50):
        driven.step(GOOD, WRONG, guess_s=1e-4)
    before = driven.now
    rounds = [driven.step(GOOD, WRONG, guess_s=1e-4) for _ in range(3000)]
    spent = sum(done.draft_s for done in rounds)
    assert 0 < spent < 0.02 * (driven.now - before)
    assert not any(done.n_accepted for done in rounds)


def test_plain_steps_are_taken_now_and_then_to_compare_with() -> None:
    driven = Driven()
    rounds = [driven.step(GOOD, RIGHT) for _ in range(300)]
    n_plain = sum(not len(done.draft) for done in rounds[20:])
    assert 4 <= n_plain <= 16


def test_cheap_short_drafts_that_fail_do_not_hide_a_long_one_that_pays() -> None:
    trace = code(1500, 3)
    lengths = play(trace, CPU)[1].record.drafted_at
    assert sum(lengths[8:]) > 0
    assert play(switching(2000, 0), CPU)[0] > 1.1
