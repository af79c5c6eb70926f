"""The live status line: the line below the cursor while an answer streams.

The answer is written as it comes; the line is taken away before the answer reaches it, and drawn again below. All
moves are relative to the cursor, so a resize that the terminal tells late (tmux does) spoils nothing. Leaving the
context always takes the line away: at the end, on an error, on Ctrl+C, around Ctrl+Z. It knows nothing of what the line
says.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from runner.cli import render
from runner.safe_text import safe_line

_MIN_ROWS, _MIN_COLUMNS = 4, 20
_PERIOD_S = 0.1
_ROOM_BELOW = "\x1bD\x1bM"  # index, reverse index: on the last row the screen scrolls; the column stays
_DOWN = _ROOM_BELOW + "\x1b7\x1b[B\r"  # save the cursor, go to the line below
_BACK = "\x1b8"
_CLEAR = _DOWN + "\x1b[J" + _BACK
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"  # a line that is too long for a width we do not know yet stays one line


def terminal_size() -> tuple[int, int]:
    """(columns, rows) of the terminal on stdout, or (0, 0) when it does not say."""
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return (0, 0)
    return size.columns, size.lines


class Live:
    """A context in which `show(text)` keeps `text` below the cursor, at most ten times a second and after a new line.

    It must be told what else is written: `before_writing(text)`, then `wrote(text)`. The context begins at the start
    of a line. It draws nothing when it is not wanted, or in a terminal smaller than 20 x 4; not wanted,
    `show_now` writes a line.
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
        self._is_drawn = False
        self._drawn_at = 0.0
        self._line = ""  # what was written since the last newline
        self._column = 0
        self._columns = 0
        self._stop_handler: Any = None

    def __enter__(self) -> Live:
        if self._is_wanted and (number := getattr(signal, "SIGTSTP", None)):
            try:
                self._stop_handler = signal.signal(number, self._on_stop)
            except ValueError:
                pass  # not the main thread: Ctrl+Z leaves the line on the screen
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        if self._stop_handler is not None:
            signal.signal(signal.SIGTSTP, self._stop_handler)
            self._stop_handler = None

    def before_writing(self, text: str) -> None:
        """Take the line away if `text`, safe, could reach it: it goes on to a new line, or is of unsure width."""
        is_sure = text.isprintable() and text.isascii() and self._line.isascii()
        if not is_sure or self._column + len(text) >= self._columns:
            self.clear()

    def wrote(self, text: str) -> None:
        """`text`, safe, was written where the cursor was."""
        if not self._is_wanted:
            return
        _, newline, rest = text.rpartition("\n")
        if newline:
            self._line, self._column = "", 0
        self._line += rest
        self._column = column_after(rest, self._column, self._columns)

    def show(self, text: str) -> None:
        """Put `text` below the cursor when it is due."""
        if not self._is_wanted:
            return
        columns, rows = self._size()
        if columns != self._columns:
            self._columns = columns
            self._column = column_after(self._line, 0, columns)  # terminals wrap their lines anew
        if columns < _MIN_COLUMNS or rows < _MIN_ROWS:
            self.clear()
        # A cursor that waits behind the last column is not restored there by every terminal (tmux): the next character
        # would replace the last one. So nothing is drawn then.
        elif self._column < columns and (not self._is_drawn or self._clock() - self._drawn_at >= _PERIOD_S):
            self._drawn_at = self._clock()
            self._write(_drawn(text, columns))
            self._is_drawn = True

    def show_now(self, text: str) -> None:
        """Replace what is shown below the cursor, if something is; a line of its own where nothing ever is.

        For signal handlers.
        """
        if not self._is_wanted:
            render.narrate_now(text)
        elif self._is_drawn:
            # The buffered stream may be in the middle of a write: it cannot be entered again.
            os.write(sys.stdout.fileno(), _drawn(text, self._columns).encode("utf-8", "replace"))

    def clear(self) -> None:
        """Take the line away."""
        if self._is_drawn:
            self._is_drawn = False
            self._write(_CLEAR)

    def _on_stop(self, number: int, _frame: FrameType | None) -> None:
        """Ctrl+Z: take the line away and stop; the answer goes on at the start of a line when the shell lets us."""
        if self._is_drawn:
            self._is_drawn = False
            os.write(sys.stdout.fileno(), _CLEAR.encode())  # this may interrupt a write of the buffered stream
        keys = _keys()
        handler = signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, handler)
        _set_keys(keys)  # the shell has its own
        self._line, self._column = "", 0


def _drawn(text: str, columns: int) -> str:
    shown = render.paint(render.clip(safe_line(text), columns - 1), "dim")
    return f"{_DOWN}{_NO_WRAP}\x1b[2K{shown}{_WRAP}{_BACK}"


def column_after(text: str, column: int, columns: int) -> int:
    """Where the cursor is after one line of safe text that began at `column`; `columns`: behind the last one."""
    for character in text:
        if character == "\t":
            column = min((column // 8 + 1) * 8, columns - 1)
            continue
        width = render.text_width(character)
        column = column + width if column + width <= columns else width
    return column


# --- keys ----------------------------------------------------------------------------------------------------------


def _keys() -> list[Any] | None:
    """How the terminal on stdin treats keys now, or None when there is no terminal."""
    try:
        import termios

        return termios.tcgetattr(sys.stdin.fileno())
    except (ImportError, AttributeError, OSError, ValueError):
        return None
    except termios.error:
        return None


def _set_keys(keys: list[Any] | None) -> None:
    if keys is not None:
        import termios

        try:
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, keys)
        except (OSError, ValueError, termios.error):
            return  # the terminal is gone


@contextmanager
def silent_keys() -> Iterator[None]:
    """Keys are not echoed into the answer, but kept for the next prompt; Ctrl+C still interrupts."""
    before, silent = _keys(), _keys()
    if silent is not None:
        import termios

        silent[0] &= ~termios.ICRNL  # Enter stays Enter: the prompt tells it from Ctrl+J
        silent[3] &= ~(termios.ECHO | termios.ICANON)
    _set_keys(silent)
    try:
        yield
    finally:
        _set_keys(before)
