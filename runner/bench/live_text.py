"""The words for a bench that is running: where it is, how far that is, and each row as it comes.

Pure functions of events; every front end says the same. It knows no stream and no screen.
"""

from __future__ import annotations

from dataclasses import dataclass

from runner.bench.events import BenchStep
from runner.bench.figures import with_unit
from runner.bench.record import BenchRow
from runner.bench.speculation_text import gain_cell
from runner.events import Progress
from runner.measures import text_width


@dataclass(frozen=True)
class Place:
    """Where a bench is. done of total: how far, total 0 where nobody knows. short: the text for a narrow place."""

    text: str
    done: int
    total: int
    short: str = ""

    def text_for(self, width: int) -> str:
        """The text, or the short one if there is no room for it."""
        return self.short if self.short and text_width(self.text) > width else self.text


def step_place(step: BenchStep) -> Place:
    """A step in words: "native, process 1 of 4: tg128, 3 of 5"; in short "native 1/4: tg128 3/5"."""
    where = f"{step.backend}, process {step.process} of {step.n_processes}: " if step.backend else ""
    count = short_count = ""
    if step.n_repetitions:
        count = f", {step.repetition} of {step.n_repetitions}" if step.repetition else ", warm-up"
        short_count = f" {step.repetition}/{step.n_repetitions}" if step.repetition else " warm-up"
    short = f"{step.backend} {step.process}/{step.n_processes}: {step.what}{short_count}" if step.backend else ""
    return Place(f"{where}{step.what}{count}", step.repetition, step.n_repetitions, short)


def progress_place(event: Progress) -> Place:
    """The progress of loading, in percent where the whole is known."""
    if not event.total:
        return Place(f"{event.stage}, {event.done} {event.unit}", event.done, 0)
    return Place(f"{event.stage}, {100 * event.done // event.total} %", event.done, event.total)


def row_line(row: BenchRow, *, is_complete: bool) -> str:
    """One row on one line: a backend's test and what is known of it now."""
    start = f"{row.backend:<9} {row.test:<14}"
    if row.invalid is not None:
        return f"{start} INVALID: {row.invalid}"
    if row.mean is None:
        return f"{start} nothing yet"
    times = "once" if len(row.samples) == 1 else f"{len(row.samples)} times"
    gain = f"  {gain_cell(row)} the plain rate" if row.gains else ""
    return f"{start} {with_unit(row)}{gain}  {times}{'' if is_complete else ' so far'}"
