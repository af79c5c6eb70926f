"""A drafter at work: asked before each step of the target, told after it, and kept quiet while it does not pay.

It lives as long as the loaded model, so that what it learns in one answer serves the next. What a round costs and
when drafting pays is the controller's; how a guess is made is the drafter's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from runner.config import LONGEST_DRAFT, SamplingParams
from runner.errors import RunnerError
from runner.speculative.control import Control, Most
from runner.speculative.controller import Controller
from runner.speculative.drafter import NO_DRAFT, Clock, Draft, Drafter, Gate, clock_for, sound
from runner.speculative.history import ReadOnly
from runner.speculative.load_times import StepSeconds
from runner.speculative.record import Passed, Round, SpeculationRecord, SpeculationState
from runner.speculative.strides import Wish
from runner.speculative.tally import Tally

log = logging.getLogger(__name__)

_TIMED_TOKENS = 3
_PASSED_S = 2e-3  # plain steps are learned of when they took so long,
_LEAST_PASSED, _MOST_PASSED = 8, 32  # and are so many at least, or at most
_UNTOLD_S, _MOST_UNTOLD = 50e-3, 512  # and so long where there is nothing to guess, and nothing to decide
_REHEARSED = 256  # plain steps


class Speculator:
    """draft_max: the longest draft that is asked for; the target takes one token more at once.

    control: what decides, else a Controller. clock: see clock_for; what deciding takes itself is measured by it too.
    """

    def __init__(
        self,
        drafter: Drafter,
        draft_max: int,
        *,
        control: Control | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.drafter = drafter
        self.draft_max = draft_max
        self._clock = clock or clock_for(drafter)
        self._control = control or Controller(drafter, draft_max, self._clock)
        self._guess_s = 0.0
        self._own_s = self._passing_s = 0.0  # what learning of an asked round, and of some others, took the last time
        self._has_gate = False
        self._failure = ""  # what the drafter did wrong in this answer
        self._passed: Passed | None = None
        self._n_waiting = 0  # plain tokens that pass before the control is asked again
        self._n_passing = self._n_untold = _LEAST_PASSED  # and what they are learned of after, at the latest
        self._tally = Tally(LONGEST_DRAFT)
        self._put_off: Callable[[], None] | None = None  # of a round, which is learnt of while the next one goes on

    def calibrate(self, step_s: StepSeconds) -> None:
        """Measure the target's step for the numbers of tokens that matter, and the drafter's; once, after the load."""
        self._control.steps.calibrate(step_s)
        self._rehearse()
        if self.drafter.is_host_only:
            return
        self._time_guess()  # warms up
        if self._failure:
            return
        n_tokens, elapsed = self._time_guess()
        if (
            n_tokens and elapsed > n_tokens * self._control.steps.plain_s
        ):  # it would never pay: something may have held it up
            elapsed = min(elapsed, self._time_guess()[1])
        if n_tokens:
            self._control.learn_guessing(n_tokens, elapsed)

    def _time_guess(self) -> tuple[int, float]:
        """Tokens of a draft, and the seconds that it took. Raises RunnerError as the drafter does: the load is told."""
        began = self._clock()
        try:
            draft = self.drafter.propose(ReadOnly([0]), SamplingParams(temperature=0), Most(_TIMED_TOKENS))
            return len(draft), self._clock() - began
        except RunnerError:
            raise
        except Exception as error:
            self._fail(error)
            return 0, self._clock() - began

    def _rehearse(self) -> None:
        """Learn of steps that never were, and asked for nothing: the first times take many times as long."""
        if self.drafter.is_quoting:
            for _ in range(3):
                self._read(range(_REHEARSED))
                self.drafter.close()  # which leaves it as it was made
        scratch = Speculator(self.drafter, self.draft_max, clock=self._clock)
        plain_s = self._control.steps.plain_s or 1e-3
        scratch._control.steps.calibrate(lambda _: plain_s)
        for _ in range(_REHEARSED):
            scratch.draft((0,), SamplingParams(temperature=0), 0, 1)
            scratch.learn(Round(NO_DRAFT, 0, (0,), 0.0, plain_s, 0.0, True))
        for _ in range(_REHEARSED if self.drafter.is_quoting else 0):
            wish = scratch.wish((0,), (1,))
            scratch.learn_stride(Round(Draft((0,), (wish.kind,)), 1, (0, 0), 0.0, plain_s, 0.0, True, True))
            scratch.learn_stride(Round(NO_DRAFT, 0, (0,), 0.0, plain_s, 0.0, True, True))

    def begin(self, prompt: Sequence[int] = ()) -> None:
        """An answer begins: the record counts from here.

        prompt: what it will follow; a drafter reads it here, where it takes its time from the prefill's, not from the
        first step's.
        """
        self.catch_up()
        self._pass_by()
        self._failure = ""
        self._own_s = self._passing_s = 0.0  # that was no time of this answer
        self._tally = Tally(LONGEST_DRAFT)
        self._control.begin()
        self._n_waiting = 0
        if prompt:
            began = self._clock()
            self._read(ReadOnly(list(prompt)))
            self._control.learn_reading(len(prompt), self._clock() - began)

    def _read(self, history: Sequence[int]) -> None:
        self._guess(history, SamplingParams(temperature=0), Most(0), 0, 1)

    def _may_guess(self, history: Sequence[int]) -> bool:
        if self._failure:
            return False
        try:
            return bool(self.drafter.may_guess(history))
        except Exception as error:
            self._fail(error)
            return False

    def _guess(self, history: Sequence[int], params: SamplingParams, gate: Gate, most: int, vocab_size: int) -> Draft:
        try:
            return sound(self.drafter.propose(history, params, gate), most, self.drafter.n_buckets, vocab_size)
        except Exception as error:
            self._fail(error)
            return NO_DRAFT

    def _fail(self, error: Exception) -> None:
        """A drafter that fails is not asked again in this answer, which goes on as it would without one."""
        log.exception("the %s drafter failed: this answer goes on without drafts", self.drafter.name)
        name, why = type(error).__name__, " ".join(str(error).split())
        self._failure = f"{name}: {why}" if why else name

    def draft(self, history: Sequence[int], params: SamplingParams, room: int, vocab_size: int) -> Draft:
        """What to verify after `history`, at most `room` tokens of the vocabulary; empty for a plain step."""
        self._has_gate = False
        self._guess_s = 0.0
        passed = self._passed
        n_passed = 0 if passed is None else len(passed)
        if n_passed < self._n_waiting or not self._may_guess(history):
            return NO_DRAFT
        if passed is not None and n_passed > 1:
            self._pass_by()
            if passed.last.is_ahead:  # a device hides more of this and of a look beside two steps than beside one
                self._n_waiting = 0
                return NO_DRAFT
        gate = self._control.gate(min(room, self.draft_max))
        if gate is None:
            self._n_waiting = min(self._control.wait or self._lasting(_PASSED_S, 1, _LEAST_PASSED), self._n_passing)
            return NO_DRAFT
        self._has_gate, self._n_waiting = True, 0
        self._pass_by()
        # That was in this round, and not before the next that is passed by.
        self._own_s, self._passing_s = self._own_s + self._passing_s, 0.0
        began = self._clock()
        guess = self._guess(history, params, gate, min(room, self.draft_max), vocab_size)
        draft = self._control.cut(guess)
        self._guess_s = self._clock() - began
        return draft

    def learn(self, done: Round, *, may_wait: bool = False) -> None:
        """A step is over, with a draft or without.

        may_wait: `catch_up` is called as soon as the next step has begun. What has lost nothing is learnt of then,
        when a device works meanwhile.
        """
        self.catch_up()
        if may_wait and done.draft and len(done.tokens) * self._control.steps.plain_s > done.total_s:
            self._put_off = partial(
                self._learn, done, self._control.learn(done), guess_s=self._guess_s, own_s=self._own_s
            )
            self._own_s = 0.0
            return
        if not self._has_gate and not done.draft:
            # Little as it is, learning takes longer than most plain steps can spare: many at once take less.
            if self._passed is None:
                self._passed = Passed.of(done)
            else:
                self._passed.add(done)
            if len(self._passed) >= self._n_untold:
                self._pass_by()
            return
        self._pass_by()
        began = self._clock()
        self._learn(done, self._control.learn(done), self._guess_s, self._own_s)
        self._own_s = self._clock() - began

    def wish(self, history: Sequence[int], lengths: Sequence[int]) -> Wish:
        """What the next step to begin is to draft by itself, one that may begin now; see rounds.Stretch."""
        return self._control.wish(self._may_guess(history), lengths)

    def learn_stride(self, done: Round) -> None:
        """A step is over that might have drafted by itself."""
        self._control.learn_stride(done)
        steps = self._control.steps
        if done.draft:
            self._tally.add(done, 0.0, 0.0, steps.plain_s, steps.unseen)
        else:
            self._tally.add_plain(done.total_s, steps.plain_s)

    def catch_up(self) -> None:
        """The next step has begun: learn of what waits for that."""
        put_off, self._put_off = self._put_off, None
        if put_off is not None:
            put_off()

    def _learn(self, done: Round, learn: Callable[[float], None], guess_s: float, own_s: float) -> None:
        learn(own_s)
        guess_s = guess_s if self.drafter.is_host_only else done.draft_s
        steps = self._control.steps
        charged_s = done.unhidden_s(guess_s + own_s, steps.plain_s)
        self._tally.add(done, min(guess_s, charged_s), max(0.0, charged_s - guess_s), steps.plain_s, steps.unseen)

    def _pass_by(self) -> None:
        passed, steps = self._passed, self._control.steps
        if passed is None:
            return
        began, passing_s = self._clock(), self._passing_s
        self._control.pass_by(passed, passing_s)
        self._tally.pass_by(passed, passed.first.unhidden_s(passing_s, steps.plain_s), steps.plain_s)
        self._passed = None
        self._passing_s = self._clock() - began
        self._n_passing = self._lasting(_PASSED_S, _LEAST_PASSED, _MOST_PASSED)
        self._n_untold = self._lasting(_UNTOLD_S, _LEAST_PASSED, _MOST_UNTOLD)

    def _lasting(self, seconds: float, least: int, most: int) -> int:
        """How many plain steps take so long, within bounds."""
        plain_s = self._control.steps.plain_s
        return min(max(least, int(seconds / plain_s)), most) if plain_s > 0 else least

    @property
    def record(self) -> SpeculationRecord:
        """What happened since `begin`."""
        self.catch_up()
        self._pass_by()
        control, drafter = self._control, self.drafter
        state: SpeculationState = "off" if self._failure else control.state
        has_failed = f"the drafter failed ({self._failure}); `runner logs` has the details"
        reason = has_failed if self._failure else control.reason
        return self._tally.record(drafter.name, state, reason, drafter.nbytes, drafter.n_given)

    def close(self) -> None:
        self.drafter.close()
