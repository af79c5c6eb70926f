"""The live status line: the terminal's bottom row while an answer streams, the answer scrolling above it.

The row is kept out of the scrolling region (DECSTBM), so the answer is written as it comes, wraps as it likes, and
never mixes with the line. It knows nothing of what the line says. Leaving the context always gives the row back: at
the end, on an error, on Ctrl+C, and around Ctrl+Z.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from runner.cli import render
from runner.safe_text import safe_line

_MIN_ROWS, _MIN_COLUMNS = 4, 20
_PERIOD_S = 0.1
_SAVE, _RESTORE = "\x1b7", "\x1b8"  # DECSC and DECRC keep a pending line wrap too
_ERASE_LINE, _ERASE_BELOW = "\x1b[2K", "\x1b[J"
_WHOLE_SCREEN = _SAVE + "\x1b[r" + _RESTORE  # setting a region moves the cursor home
_ROOM_BELOW = "\x1bD\x1bM"  # index, reverse index: on the last row the screen scrolls, the column stays


def terminal_size() -> tuple[int, int]:
    """(columns, rows) of the terminal on stdout, or (0, 0) when it does not say."""
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return (0, 0)
    return size.columns, size.lines


class Live:
    """A context in which `show(text)` keeps `text` on the bottom row, at most ten times a second.

    It does nothing where it cannot work: no terminal, TERM=dumb, a terminal smaller than 20 x 4, or not wanted.
    """

    def __init__(
        self,
        *,
        is_wanted: bool = True,
        write: Callable[[str], None] = render.control,
        size: Callable[[], tuple[int, int]] = terminal_size,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_wanted = is_wanted
        self._write = write
        self._size = size
        self._clock = clock
        self._text = ""
        self._columns = self._rows = 0
        self._is_on = False
        self._is_resized = False
        self._drawn_at = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Live:
        if self._is_wanted:
            self._take_row()
            self._handle_signals()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        self._give_row_back()

    def show(self, text: str) -> None:
        """Put `text` on the bottom row when it is due. Call it often: a resize is followed here too."""
        if not self._is_wanted:
            return
        if self._is_resized:
            self._is_resized = False
            self._write(_WHOLE_SCREEN + _ERASE_BELOW)  # nothing but the old line can be below the cursor
            self._is_on = False
            self._take_row()
        self._text = text
        if self._is_on and self._clock() - self._drawn_at >= _PERIOD_S:
            self._drawn_at = self._clock()
            self._write(self._line())

    def _take_row(self) -> None:
        self._columns, self._rows = self._size()
        if self._columns < _MIN_COLUMNS or self._rows < _MIN_ROWS:
            return
        self._write(_ROOM_BELOW + _SAVE + f"\x1b[1;{self._rows - 1}r" + _RESTORE + self._line())
        self._is_on = True

    def _give_row_back(self) -> None:
        if self._is_on:
            self._is_on = False
            self._write(self._release())

    def _line(self) -> str:
        shown = render.clip(safe_line(self._text), self._columns - 1)
        return f"{_SAVE}\x1b[{self._rows};1H{_ERASE_LINE}{render.paint(shown, 'dim')}{_RESTORE}"

    def _release(self) -> str:
        return f"{_SAVE}\x1b[{self._rows};1H{_ERASE_LINE}\x1b[r{_RESTORE}"

    # --- signals ---------------------------------------------------------------------------------------------------

    def _handle_signals(self) -> None:
        handlers: Mapping[str, Callable[[int, FrameType | None], None]] = {
            "SIGWINCH": self._on_resize,
            "SIGTSTP": self._on_stop,
        }
        for name, handler in handlers.items():
            if number := getattr(signal, name, None):
                try:
                    self._before[number] = signal.signal(number, handler)
                except ValueError:  # not the main thread: the line works, resizes are not followed
                    return

    def _on_resize(self, _number: int, _frame: FrameType | None) -> None:
        self._is_resized = True  # written by show(): a handler may interrupt a write

    def _on_stop(self, number: int, _frame: FrameType | None) -> None:
        """Ctrl+Z: give the row back, stop, and take it again when the shell continues us."""
        if self._is_on:
            os.write(sys.stdout.fileno(), self._release().encode())
        handler = signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, handler)
        self._is_resized = True


@contextmanager
def silent_keys() -> Iterator[None]:
    """Keys are not echoed into the answer, but kept for the next prompt; Ctrl+C still interrupts."""
    try:
        import termios

        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (ImportError, OSError, ValueError, termios.error):
        yield
        return
    silent = termios.tcgetattr(descriptor)
    silent[0] &= ~termios.ICRNL  # Enter stays Enter: the prompt tells it from Ctrl+J
    silent[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(descriptor, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
