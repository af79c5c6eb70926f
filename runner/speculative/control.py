"""What decides for a Speculator how much to draft: the protocol, and the simplest that there is.

The one that serves users is in controller.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from runner.speculative.costs import LEAST_STRIDE, StepCosts
from runner.speculative.drafter import Draft, Gate
from runner.speculative.record import Passed, Round, SpeculationState
from runner.speculative.strides import Wish


class Control(Protocol):
    """Decides how much to draft.

    steps: what the target's steps cost, as measured. wait: plain tokens that must pass before a gate may open again.
    """

    steps: StepCosts
    wait: int

    @property
    def state(self) -> SpeculationState: ...

    @property
    def reason(self) -> str:
        """Why the state is what it is, in a sentence with numbers."""
        ...

    def begin(self) -> None:
        """An answer begins."""
        ...

    def learn_guessing(self, n_tokens: int, seconds: float) -> None:
        """The drafter took so long to guess so many tokens that nobody wanted."""
        ...

    def learn_reading(self, n_tokens: int, seconds: float) -> None:
        """The drafter took so long to read an answer's prompt."""
        ...

    def gate(self, limit: int) -> Gate | None:
        """How far to guess now, at most `limit` tokens; None: not at all."""
        ...

    def cut(self, proposed: Draft) -> Draft:
        """What to verify of the guess that the last gate let through."""
        ...

    def learn(self, done: Round) -> Callable[[float], None]:
        """The step is over that the last gate was for. What this gives is to be called to learn of it.

        That is done before the next step is learnt of, but a gate for that may be opened first. Its argument: seconds
        that the last call took.
        """
        ...

    def pass_by(self, passed: Passed, own_s: float) -> None:
        """Plain steps are over for which there was no gate. own_s: seconds that the last call took."""
        ...

    def wish(self, is_known: bool, lengths: Sequence[int]) -> Wish:
        """What a step is to draft by itself; see Strides.wish."""
        ...

    def learn_stride(self, done: Round) -> None:
        """One of those steps is over, whether it drafted or not."""
        ...


class EagerController(Control):
    """Verifies whatever is drafted, whatever it costs: for tests, and to measure what the other one prevents."""

    state: SpeculationState = "on"
    wait = 0
    reason = "every guess is verified, whatever it costs"

    def __init__(self, draft_max: int) -> None:
        self.steps = StepCosts(max(draft_max, LEAST_STRIDE) + 1)
        self._draft_max = draft_max

    def begin(self) -> None:
        self.steps.begin()

    def learn_guessing(self, n_tokens: int, seconds: float) -> None:
        pass

    def learn_reading(self, n_tokens: int, seconds: float) -> None:
        pass

    def gate(self, limit: int) -> Gate | None:
        return Most(limit) if limit > 0 else None

    def cut(self, proposed: Draft) -> Draft:
        return proposed

    def learn(self, done: Round) -> Callable[[float], None]:
        def learn(own_s: float) -> None:
            del own_s
            if len(done.draft):
                self.steps.learn_step(len(done.draft) + 1, done.step_s)
            else:
                self.steps.learn_plain(done.step_s, is_ahead=done.is_ahead)

        return learn

    def pass_by(self, passed: Passed, own_s: float) -> None:
        del own_s
        self.steps.learn_passed(len(passed), passed.first.step_s, passed.last.step_s, is_ahead=passed.last.is_ahead)

    def wish(self, is_known: bool, lengths: Sequence[int]) -> Wish:
        del is_known
        return Wish(max((n for n in lengths if n <= self._draft_max), default=lengths[0]), 0)

    def learn_stride(self, done: Round) -> None:
        if not len(done.draft):
            self.steps.learn_plain(done.step_s, is_ahead=done.is_ahead)


class Most(Gate):
    """Admits so many tokens, whatever they are."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    @property
    def is_open(self) -> bool:
        return self._left > 0

    @property
    def reach(self) -> int:
        return max(0, self._left)

    def admits(self, bucket: int) -> bool:
        del bucket
        self._left -= 1
        return self._left >= 0
