"""A bench while it runs, on stderr: a line for each row as it comes, and under them where it is.

A terminal has the line of where it is redrawn in place; a pipe gets the rows alone, and `--format json` NDJSON. It
knows no measuring.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from runner.cli import render
from runner.cli.loading import show_notice
from runner.safe_text import safe_line

if TYPE_CHECKING:
    from runner.bench.events import BenchEvent, BenchStep
    from runner.bench.live_text import Place
    from runner.events import Progress

_SHOWN_PERCENT = 5  # a step of the progress of loading that is worth showing


class Live:
    """Shows events of a bench as they come. A context manager: leaving it clears the line of where it is."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._is_drawn = False
        self._shown = -1
        self._has_rows = self._is_stopping = False
        self._is_drawing = not as_json and render.is_loud() and render.is_terminal(sys.stderr) and not render.is_dumb()

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def show(self, event: BenchEvent) -> None:
        from runner.bench.events import BackendRefused, BenchStep, RowMeasured
        from runner.bench.live_text import row_line
        from runner.events import Notice, Progress

        if isinstance(event, BenchStep):
            self._step(event)
        elif isinstance(event, RowMeasured):
            self._has_rows = True
            if not self._as_json:
                self.say(row_line(event.row, is_complete=event.is_complete))
        elif isinstance(event, BackendRefused):
            self.say(f"{event.backend} does not run it: {event.reason}")
        elif isinstance(event, Notice):
            self._clear()
            show_notice(event)
        elif isinstance(event, Progress):
            self._progress(event)

    def _progress(self, event: Progress) -> None:
        from runner.bench.live_text import progress_place

        place = progress_place(event)
        if not place.total:
            self._place(place)
        elif (share := 100 * place.done // place.total // _SHOWN_PERCENT) != self._shown:
            self._shown = share
            self._place(place)

    def stopping(self) -> None:
        """The user asked for an end: say how to insist. May be called from a signal handler."""
        self._is_stopping = True
        if self._is_drawing:
            shown = render.clip("stopping · Ctrl+C again ends it without a report", render.terminal_size().columns - 1)
            self._is_drawn = True
            # The buffered stream may be in the middle of a write: it cannot be entered again.
            os.write(sys.stderr.fileno(), f"\r{shown}\x1b[K".encode())

    def say_nothing_is_kept(self) -> None:
        lost = "at once: what was measured is not kept" if self._has_rows else "before anything was measured"
        self.say(f"Stopped {lost}.")

    def say(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        render.narrate(text)

    def _step(self, step: BenchStep) -> None:
        from runner.bench.live_text import step_place

        self._shown = -1
        self._place(step_place(step))

    def _place(self, place: Place) -> None:
        if self._is_stopping:
            return
        if self._as_json:
            if render.is_loud():
                render.emit_progress({"stage": place.text, "done": place.done, "total": place.total})
        elif self._is_drawing:
            width = render.terminal_size().columns - 1
            shown = render.clip(safe_line(place.text_for(width)), width)
            render.draw("\r" + render.paint(shown, "dim", sys.stderr) + "\x1b[K")
            self._is_drawn = True

    def _clear(self) -> None:
        if self._is_drawn:
            render.draw("\r\x1b[K")
            self._is_drawn = False
