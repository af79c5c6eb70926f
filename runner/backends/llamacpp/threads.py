"""How many threads a step on a CPU takes: all of them, or one while other programs keep them from running side by side.

llama.cpp's threads wait for each other after every operation, and spin while they wait. When other programs hold the
other cores, two threads may come to share one, and every wait lasts as long as the scheduler's turns: a step of the
demo takes 400 ms in place of 1 (docs/LOG.md, 2026-11-25). A function of how long steps took; it knows no library.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from runner.config import LONGEST_DRAFT

log = logging.getLogger(__name__)

_LONGEST_STEP: Final = 1 + LONGEST_DRAFT  # tokens; longer ones are prefill, which computes more than it waits
_PATIENCE_S: Final = 0.02  # what all threads may lose against one before they are stopped
_PATIENCE_STEPS: Final = 4  # or so many steps of one thread, if that is longer
_FIRST_REST_S: Final = 1.0
_LONGEST_REST_S: Final = 32.0
_CORE_BYTES_S: Final = 5e9  # a guess of what one core computes with, until a step of one thread was timed


class Threads:
    """most: threads that there may be; is_fixed: that many compute, whatever it takes. weights_bytes: a token reads.

    clock: in seconds.
    """

    def __init__(
        self, most: int, *, is_fixed: bool, weights_bytes: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._is_fixed = is_fixed or most == 1
        self._one_s = 1e-3 + weights_bytes / _CORE_BYTES_S  # a step of one thread
        self._lost_s = 0.0  # by steps of all threads, against one
        self._rest_s = _FIRST_REST_S  # how long one thread computes, the next time
        self._is_one = False
        self._seconds = 0.0  # of steps of one token, since the number changed
        self._n_steps = 0
        self._clock = clock
        self._since = clock()

    def of(self, n_tokens: int) -> int:
        """How many threads are to compute so many tokens at once."""
        return 1 if self._is_one and n_tokens <= _LONGEST_STEP else self._most

    def took(self, seconds: float, n_tokens: int = 1) -> None:
        """A step of so many tokens took so long, with the threads that `of` gave it."""
        if self._is_fixed or n_tokens > _LONGEST_STEP:
            return
        if n_tokens == 1:
            self._seconds += seconds
            self._n_steps += 1
        has_rested = self._clock() - self._since >= self._rest_s
        if self._is_one:
            if has_rested:
                self._one_s = self._seconds / self._n_steps if self._n_steps else self._one_s
                self._turn(is_one=False)
                self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S)
            return
        # Several tokens take one thread no longer than one after the other would.
        self._lost_s = max(0.0, self._lost_s + seconds - n_tokens * self._one_s)
        if self._lost_s > max(_PATIENCE_S, _PATIENCE_STEPS * self._one_s):
            log.info("%d threads keep each other waiting: a step took %.4f s; one thread goes on", self._most, seconds)
            self._turn(is_one=True)
        elif has_rested:  # they have done well for as long
            self._rest_s = _FIRST_REST_S

    def _turn(self, *, is_one: bool) -> None:
        self._is_one = is_one
        self._lost_s = self._seconds = 0.0
        self._n_steps = 0
        self._since = self._clock()
