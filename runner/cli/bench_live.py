"""A bench while it runs, on stderr: a line for each row as it comes, and under them where it is.

A terminal has the line of where it is redrawn in place; a pipe gets the rows alone, and `--format json` NDJSON. It
knows no measuring.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from runner.cli import render
from runner.cli.loading import show_notice
from runner.safe_text import safe_line

if TYPE_CHECKING:
    from runner.bench.events import BenchEvent, BenchStep
    from runner.bench.record import BenchRow
    from runner.events import Progress

_SHOWN_PERCENT = 5  # a step of the progress of loading that is worth showing


class Live:
    """Shows events of a bench as they come. A context manager: leaving it clears the line of where it is."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._is_drawn = False
        self._shown = -1
        self._is_drawing = not as_json and render.is_loud() and render.is_terminal(sys.stderr) and not render.is_dumb()

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def show(self, event: BenchEvent) -> None:
        from runner.bench.events import BackendRefused, BenchStep, RowMeasured
        from runner.events import Notice, Progress

        if isinstance(event, BenchStep):
            self._step(event)
        elif isinstance(event, RowMeasured):
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
        if not event.total:
            self._place(f"{event.stage}, {event.done} {event.unit}", event.done, 0)
        elif (percent := 100 * event.done // event.total) // _SHOWN_PERCENT != self._shown:
            self._shown = percent // _SHOWN_PERCENT
            self._place(f"{event.stage}, {percent} %", event.done, event.total)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        render.narrate(text)

    def _step(self, step: BenchStep) -> None:
        self._shown = -1
        where = f"{step.backend}, process {step.process} of {step.n_processes}: " if step.backend else ""
        count = ""
        if step.n_repetitions:
            count = f", {step.repetition} of {step.n_repetitions}" if step.repetition else ", warm-up"
        self._place(f"{where}{step.what}{count}", step.repetition, step.n_repetitions)

    def _place(self, text: str, done: int, total: int) -> None:
        if self._as_json:
            if render.is_loud():
                render.emit_progress({"stage": text, "done": done, "total": total})
        elif self._is_drawing:
            shown = render.clip(safe_line(text), shutil.get_terminal_size().columns - 1)
            render.draw("\r" + render.paint(shown, "dim", sys.stderr) + "\x1b[K")
            self._is_drawn = True

    def _clear(self) -> None:
        if self._is_drawn:
            render.draw("\r\x1b[K")
            self._is_drawn = False


def row_line(row: BenchRow, *, is_complete: bool) -> str:
    """One row on one line: a backend's test and what is known of it now."""
    start = f"{row.backend:<9} {row.test:<14}"
    if row.invalid is not None:
        return f"{start} INVALID: {row.invalid}"
    if row.mean is None:
        return f"{start} nothing yet"
    digits = 0 if row.mean >= 1000 else 1 if row.mean >= 10 else 2
    spread = "" if row.stddev is None else f" ± {row.stddev:.{digits}f}"
    times = "once" if len(row.samples) == 1 else f"{len(row.samples)} times"
    return f"{start} {row.mean:.{digits}f}{spread} {row.unit}  {times}{'' if is_complete else ' so far'}"
