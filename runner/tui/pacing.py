"""Frames wait for the terminal: over a slow line, what is on the screen must not lag behind what there is.

With each frame the terminal is asked whether it is well (DSR 5, which terminals answer since the VT100). While two
answers are owed no frame is made, and the next one shows all that has come since. Else seconds of frames lie in the
buffers of ssh, and a key's effect is seen behind them. A line may stand still and an answer may be lost: a frame goes
out after a second without one, the next after two more, and so on. Who never answers is never waited for.
It knows no screen, and nothing of what a frame shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import Final

ASK: Final = "\x1b[5n"
ANSWER: Final = "\x1b[0n"
_FRAMES_OWED: Final = 2  # one on its way while the terminal shows the one before
_PATIENCE_S: Final = 1.0  # a frame goes out after that, answered or not; twice that for the next
_N_UNANSWERED: Final = 5  # such frames, half a minute: who answers none of them answers no more
_PROMPT_S: Final = 0.5  # an answer so soon after such a frame is its own, and those before it were lost


class Pace:
    """begin, may_show, shown and settle are called by the UI's thread, answered by the one that reads the terminal."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ask: Callable[[], object] | None = None
        self._wake: Callable[[], object] = int
        self._n_asked = 0
        self._n_answered = 0
        self._is_answering = False
        self._n_forced = 0  # frames that went out though answers were owed, since the last answer
        self._asked_at = 0.0
        self._is_withheld = False
        self._has_answered = Event()

    def begin(self, ask: Callable[[], object], wake: Callable[[], object]) -> None:
        """From now on `ask` is called to send ASK; `wake`, from any thread, when a frame that was withheld may go."""
        self._ask, self._wake = ask, wake
        self._n_answered = self._n_asked
        self._send()

    def may_show(self) -> bool:
        """Whether a frame may go to the terminal now; if not, `wake` says when."""
        self._is_withheld = True  # before looking: an answer that comes in between has to wake
        if self._is_answering and self._owed() >= _FRAMES_OWED:
            if self._clock() - self._asked_at < _PATIENCE_S * 2**self._n_forced:
                return False
            self._n_forced += 1
            self._is_answering = self._n_forced < _N_UNANSWERED
        self._is_withheld = False
        return True

    def shown(self) -> None:
        """A frame went to the terminal."""
        if self._is_answering:
            self._send()

    def answered(self) -> None:
        """The terminal sent ANSWER."""
        is_its_own = self._n_forced > 0 and self._clock() - self._asked_at < _PROMPT_S
        self._n_answered = self._n_asked if is_its_own else min(self._n_answered + 1, self._n_asked)
        self._n_forced = 0
        self._is_answering = True
        self._has_answered.set()
        if self._is_withheld:
            self._wake()

    def settle(self, silence_s: float) -> None:
        """Ask no more, and wait for what is owed: an answer after the end would be typed into the shell.

        That takes as long as the line needs for what is on its way. silence_s: who says nothing for so long is gone.
        """
        self._ask = None
        while self._is_answering and self._owed() > 0:
            self._has_answered.clear()
            if self._owed() > 0 and not self._has_answered.wait(silence_s):
                return

    def _owed(self) -> int:
        return self._n_asked - self._n_answered

    def _send(self) -> None:
        if self._ask is not None:
            self._n_asked += 1
            self._asked_at = self._clock()
            self._ask()
