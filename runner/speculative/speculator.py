"""A drafter at work: asked before each step of the target, told after it, and kept quiet while it does not pay.

It lives as long as the loaded model, so that what it learns in one answer serves the next. What a round costs and
when drafting pays is the controller's; how a guess is made is the drafter's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runner.config import SamplingParams
from runner.speculative.drafter import NO_DRAFT, Draft, Drafter
from runner.speculative.record import Round, SpeculationRecord

StepSeconds = Callable[[int], float]
"""Seconds that a step of the target takes now for so many tokens at once."""


class Speculator:
    """draft_max: the longest draft; the target takes one token more at once."""

    def __init__(self, drafter: Drafter, draft_max: int) -> None:
        self.drafter = drafter
        self._draft_max = draft_max
        self.begin()

    def calibrate(self, step_s: StepSeconds) -> None:
        """Measure the target's step for the numbers of tokens that matter; called once, when it is loaded."""

    def begin(self) -> None:
        """An answer begins: the record counts from here."""
        self._rounds: list[Round] = []

    def draft(self, history: Sequence[int], params: SamplingParams, room: int) -> Draft:
        """What to verify after `history`, at most `room` tokens; empty for a plain step."""
        limit = min(room, self._draft_max)
        return self.drafter.propose(history, params, _Most(limit)) if limit > 0 else NO_DRAFT

    def learn(self, done: Round) -> None:
        """A step is over, with a draft or without."""
        self._rounds.append(done)

    @property
    def record(self) -> SpeculationRecord:
        """What happened since `begin`."""
        return SpeculationRecord(drafter=self.drafter.name, state="on")

    def close(self) -> None:
        self.drafter.close()


class _Most:
    def __init__(self, limit: int) -> None:
        self._left = limit

    def admits(self, bucket: int) -> bool:
        del bucket
        self._left -= 1
        return self._left >= 0
