"""What steps cost: t(M) of the target for M tokens at once, in plain steps, and what a drafter takes for a token.

Measured when a model is loaded and kept true by live rounds. Durations are passed in; it knows no clock, no
acceptance, and not what the numbers decide.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Final

StepSeconds = Callable[[int], float]
"""Seconds that a step of the target takes now for so many tokens at once."""

CALIBRATED: Final = (2, 4, 8, 16)
"""Numbers of tokens whose step is measured at load, beside 1."""

_BUDGET_S = 0.5  # of the load
_REPEATS = 3
_PLAIN_STEPS = 7  # the median of so many is the plain step
_UNPLAIN_ROUNDS = 64  # after so many rounds without a plain step, the old ones say little
_STALL = 3.0  # a step that takes so many times what it should was held up by something else
_WEIGHT = 0.2  # of a live round in a moving average
_GUESSED_SLOPE = 0.1  # plain steps that a further token is taken to cost before any is measured
_GUESSED_DRAFT = 0.3  # and that drafting one on the device is


class StepCosts:
    """t(M) for M up to `most` tokens, relative to the plain step t(1), which grows as the context does.

    plain_s: seconds of a plain step now, 0.0 while it is not known. likely[M], worst[M]: t(M) in plain steps; they
    differ for M beyond what was measured: linear as it looks so far, and in proportion to M. Index 0 is unused.
    """

    def __init__(self, most: int) -> None:
        self.plain_s = 0.0
        self._n_unplain = 0
        self._is_after_plain = True
        self._measured = {1: 1.0}
        self._loaded: dict[int, float] = {}  # what of it was measured at load
        self._window: deque[float] = deque(maxlen=_PLAIN_STEPS)
        self._most = most
        self._tabulate()

    def calibrate(self, step_s: StepSeconds) -> None:
        """Measure t(1), then as many others as fit into half a second: a machine with slow steps learns live."""
        spent = 0.0

        def fastest(n_tokens: int) -> float:
            nonlocal spent
            found: list[float] = []
            # The first call warms up: it may set up what later ones use.
            for _ in range(1 + _REPEATS):
                found.append(step_s(n_tokens))
                spent += found[-1]
                if spent + found[-1] > _BUDGET_S:
                    break
            return min(found)

        self.plain_s = fastest(1)
        if self.plain_s <= 0:
            return
        for n_tokens in CALIBRATED:
            if n_tokens > self._most or spent + 2 * self.worst[n_tokens] * self.plain_s > _BUDGET_S:
                break
            # More than in proportion is a first call's set-up that no second one followed.
            self._measured[n_tokens] = min(fastest(n_tokens) / self.plain_s, float(n_tokens))
            self._tabulate()
        self._loaded = dict(self._measured)

    def begin(self) -> None:
        """An answer begins, at another depth of the context: plain steps are measured anew."""
        self._window.clear()
        self._is_after_plain = True
        for n_tokens, ratio in self._loaded.items():
            # A disturbance in one answer must not decide the next ones.
            self._measured[n_tokens] += (ratio - self._measured[n_tokens]) / 2
        self._tabulate()

    @property
    def is_fresh(self) -> bool:
        """Whether plain steps were measured lately enough to compare with."""
        return len(self._window) >= 2 and self.plain_s > 0 and self._n_unplain < _UNPLAIN_ROUNDS

    def learn_plain(self, seconds: float) -> None:
        """A plain step took so long."""
        if not self._is_after_plain:
            # The first after a draft fills the device's pipeline again: it says nothing of plain decoding.
            self._is_after_plain = True
            return
        self._n_unplain = 0
        self._window.append(seconds)
        # The lower median: a step that was held up must not make drafts look cheap.
        self.plain_s = sorted(self._window)[(len(self._window) - 1) // 2]

    def learn_step(self, n_tokens: int, seconds: float) -> float:
        """A step for more than one token took so long; gives what it counts as, in plain steps, but for a stall."""
        self._n_unplain += 1
        self._is_after_plain = False
        if self.plain_s <= 0:
            return float(n_tokens)
        expected = self.likely[n_tokens] if n_tokens in self._measured else self.worst[n_tokens]
        ratio = min(seconds / self.plain_s, _STALL * expected)
        known = self._measured.get(n_tokens)
        self._measured[n_tokens] = ratio if known is None else known + _WEIGHT * (ratio - known)
        self._tabulate()
        return ratio

    def _tabulate(self) -> None:
        """Straight lines between what was measured, never falling, and both ways beyond it."""
        table = [0.0, 1.0]
        points = sorted(self._measured.items())
        for (low, start), (high, end) in pairwise(points):
            start = max(start, table[low])
            slope = max(0.0, (end - start) / (high - low))
            table.extend(start + slope * (n - low) for n in range(low + 1, high + 1))
        last = len(table) - 1
        slope = (table[last] - 1) / (last - 1) if last > 1 else _GUESSED_SLOPE
        beyond = range(last + 1, self._most + 1)
        self.likely = [*table, *(table[last] + slope * (n - last) for n in beyond)]
        self.worst = [*table, *(max(self.likely[n], table[last] * n / last) for n in beyond)]


class DraftCosts:
    """Seconds that a drafter takes for each token, and for a call that brings nothing; moving averages.

    A drafter that works on the host has its draft whole at once: a token more costs nothing, a call does.
    """

    def __init__(self, is_host_only: bool) -> None:
        self._is_host_only = is_host_only
        self._token_s: float | None = None
        self._call_s = self._reading_s = 0.0

    def learn(self, n_tokens: int, seconds: float) -> None:
        """Guessing so many tokens, in one call, took so long."""
        if self._is_host_only:
            self._call_s += _WEIGHT * (seconds - self._call_s)
        elif n_tokens:
            each = seconds / n_tokens
            self._token_s = each if self._token_s is None else self._token_s + _WEIGHT * (each - self._token_s)

    def learn_reading(self, n_tokens: int, seconds: float) -> None:
        """Reading a text of so many tokens, part of which may have been known, took so long."""
        self._reading_s = max(self._reading_s / 2, seconds / n_tokens)

    def token(self, plain_s: float) -> float:
        """Plain steps that one token more takes."""
        if self._is_host_only:
            return 0.0
        return _GUESSED_DRAFT if self._token_s is None or plain_s <= 0 else self._token_s / plain_s

    def call(self, plain_s: float, n_unread: int) -> float:
        """Plain steps that a call takes whatever it brings, after so many tokens that the drafter did not see."""
        return (self._call_s + n_unread * self._reading_s) / plain_s if plain_s > 0 else 0.0
