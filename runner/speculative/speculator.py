"""A drafter at work: asked before each step of the target, told after it, and kept quiet while it does not pay.

It lives as long as the loaded model, so that what it learns in one answer serves the next. What a round costs and
when drafting pays is the controller's; how a guess is made is the drafter's.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner.config import LONGEST_DRAFT, SamplingParams
from runner.speculative.control import Control, Most
from runner.speculative.controller import Clock, Controller, clock_for
from runner.speculative.drafter import NO_DRAFT, Draft, Drafter
from runner.speculative.load_times import StepSeconds
from runner.speculative.record import Passed, Round, SpeculationRecord
from runner.speculative.tally import Tally

_TIMED_TOKENS = 3
_PASSED = 8  # plain steps that are learned of at once, or more
_PASSED_S, _MOST_PASSED = (
    2e-3,
    32,
)  # until they have taken so long, or are so many: learning is to be little beside them
_REHEARSED = 256  # plain steps
_READ_AT_ONCE = 8  # tokens, or more, where a device hides it


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
        self._draft_max = draft_max
        self._clock = clock or clock_for(drafter)
        self._control = control or Controller(drafter, draft_max, self._clock)
        self._guess_s = 0.0
        self._own_s = self._passing_s = 0.0  # what learning of an asked round, and of some others, took the last time
        self._has_gate = False
        self._passed: Passed | None = None
        self._n_passing = _PASSED
        self._is_fresh = False  # what steps said when they were last told of any
        self._is_ahead = False  # whether a device works while the host reads
        self._n_unread = 0  # tokens that the drafter has not seen
        self._tally = Tally(LONGEST_DRAFT)

    def calibrate(self, step_s: StepSeconds) -> None:
        """Measure the target's step for the numbers of tokens that matter, and the drafter's; once, after the load."""
        self._control.steps.calibrate(step_s)
        self._rehearse()
        if self.drafter.is_host_only:
            return
        for _ in range(2):  # the first warms up
            began = self._clock()
            draft = self.drafter.propose((0,), SamplingParams(temperature=0), Most(_TIMED_TOKENS))
            elapsed = self._clock() - began
        if len(draft):
            self._control.learn_guessing(len(draft), elapsed)

    def _rehearse(self) -> None:
        """Learn of plain steps that never were, and asked for nothing: the first times take many times as long."""
        if self.drafter.is_quoting:
            for _ in range(3):
                self.drafter.propose(range(_REHEARSED), SamplingParams(temperature=0), Most(0))
                self.drafter.close()  # which leaves it as it was made
        scratch = Speculator(self.drafter, self._draft_max, clock=self._clock)
        for _ in range(_REHEARSED):
            scratch.draft((0,), SamplingParams(temperature=0), 0)
            scratch.learn(Round(NO_DRAFT, 0, (0,), 0.0, self._control.steps.plain_s or 1e-3, 0.0, True))

    def begin(self, prompt: Sequence[int] = ()) -> None:
        """An answer begins: the record counts from here.

        prompt: what it will follow; a drafter reads it here, where it takes its time from the prefill's, not from the
        first step's.
        """
        self._pass_by()
        self._own_s = self._passing_s = 0.0  # that was no time of this answer
        self._tally = Tally(LONGEST_DRAFT)
        self._control.begin()
        self._is_fresh = False
        self._is_ahead = False
        if prompt:
            self._n_unread = len(prompt)
            self._read(prompt)

    def _read(self, history: Sequence[int]) -> float:
        """Have the drafter read what it has not seen; the seconds that it took."""
        began = self._clock()
        self.drafter.propose(history, SamplingParams(temperature=0), Most(0))
        elapsed = self._clock() - began
        self._control.learn_reading(self._n_unread, elapsed)
        self._n_unread = 0
        return elapsed

    def draft(self, history: Sequence[int], params: SamplingParams, room: int, n_drafting: int = 0) -> Draft:
        """What to verify after `history`, at most `room` tokens; empty for a plain step.

        n_drafting: tokens of a draft of its own that the target is verifying already; what it emits is not known.
        """
        gate = self._control.gate(min(room, self._draft_max), n_drafting)
        self._has_gate = gate is not None
        if gate is None:
            self._guess_s = 0.0
            if self._is_ahead and self.drafter.is_quoting and self._n_unread >= _READ_AT_ONCE:
                self._passing_s += self._read(history)
            return NO_DRAFT
        self._pass_by()
        # That was in this round, and not before the next that is passed by.
        self._own_s, self._passing_s = self._own_s + self._passing_s, 0.0
        began = self._clock()
        draft = self._control.cut(self.drafter.propose(history, params, gate))
        self._guess_s = self._clock() - began
        self._n_unread = 0
        return draft

    def learn(self, done: Round) -> None:
        """A step is over, with a draft or without."""
        self._is_ahead = done.is_ahead
        self._n_unread += len(done.tokens)
        if not self._has_gate and not done.draft:
            # Little as it is, learning takes longer than most plain steps can spare: many at once take less.
            if self._passed is None:
                self._passed = Passed.of(done)
            else:
                self._passed.add(done)
            if len(self._passed.tokens) >= self._n_passing or not self._is_fresh:
                self._pass_by()
            return
        self._pass_by()
        began = self._clock()
        own_s = self._own_s
        self._control.learn(done, own_s)
        guess_s = self._guess_s if self.drafter.is_host_only else done.draft_s
        steps = self._control.steps
        charged_s = done.unhidden_s(guess_s + own_s, steps.plain_s)
        self._tally.add(done, min(guess_s, charged_s), max(0.0, charged_s - guess_s), steps.plain_s, steps.unseen)
        self._is_fresh = steps.is_fresh
        self._own_s = self._clock() - began

    def _pass_by(self) -> None:
        passed, steps = self._passed, self._control.steps
        if passed is None:
            return
        began, passing_s = self._clock(), self._passing_s
        self._control.pass_by(passed, passing_s)
        self._tally.pass_by(passed, passed.first.unhidden_s(passing_s, steps.plain_s), steps.plain_s)
        self._passed = None
        self._n_passing = min(max(_PASSED, int(_PASSED_S / steps.plain_s)), _MOST_PASSED) if steps.plain_s > 0 else 1
        self._is_fresh = steps.is_fresh
        self._passing_s = self._clock() - began

    @property
    def record(self) -> SpeculationRecord:
        """What happened since `begin`."""
        self._pass_by()
        control, drafter = self._control, self.drafter
        return self._tally.record(drafter.name, control.state, control.reason, drafter.nbytes, drafter.n_given)

    def close(self) -> None:
        self.drafter.close()
