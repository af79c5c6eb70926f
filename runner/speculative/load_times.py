"""Timing a target's steps when it is loaded, within half a second. It knows nothing of what they are compared with."""

from __future__ import annotations

from collections.abc import Callable

from runner.speculative.plain_steps import lower

StepSeconds = Callable[[int], float]
"""Seconds that a step of the target takes now for so many tokens at once."""

_BUDGET_S = 0.5


class LoadTimes:
    """Steps that are timed until half a second is over; a first call warms up: it may set up what later ones use."""

    def __init__(self, step_s: StepSeconds) -> None:
        self._step_s = step_s
        self._left_s = _BUDGET_S
        self._found: dict[int, list[float]] = {}

    def has_room(self, seconds: float) -> bool:
        return seconds <= self._left_s

    def add(self, n_tokens: int, repeats: int) -> None:
        """Time as many steps, and one before them, as there is time for."""
        last = 0.0
        for i in range(1 + repeats):
            if not self.has_room(last):
                return
            last = self._step_s(n_tokens)
            self._left_s -= last
            # Of the plain step a cold one is better than none.
            if i or (n_tokens == 1 and n_tokens not in self._found):
                self._found.setdefault(n_tokens, []).append(last)

    @property
    def known(self) -> list[int]:
        return sorted(self._found)

    def least(self, n_tokens: int) -> float:
        """Seconds of the fastest."""
        return min(self._found[n_tokens])

    def typical(self, n_tokens: int) -> float:
        return lower(self._found[n_tokens])
