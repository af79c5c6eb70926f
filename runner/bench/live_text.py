"""The words for a bench that is running: where it is, how far that is, and each row as it comes.

Pure functions of events; every front end says the same. It knows no stream and no screen.
"""

from __future__ import annotations

from dataclasses import dataclass

from runner.bench.events import BenchStep
from runner.bench.record import BenchRow
from runner.bench.speculation_text import gain_cell
from runner.events import Progress


@dataclass(frozen=True)
class Place:
    """Where a bench is. done of total: how far, total 0 where nobody knows."""

    text: str
    done: int
    total: int


def step_place(step: BenchStep) -> Place:
    """A step in words: "native, process 1 of 4: tg128, 3 of 5"."""
    where = f"{step.backend}, process {step.process} of {step.n_processes}: " if step.backend else ""
    count = ""
    if step.n_repetitions:
        count = f", {step.repetition} of {step.n_repetitions}" if step.repetition else ", warm-up"
    return Place(f"{where}{step.what}{count}", step.repetition, step.n_repetitions)


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
    digits = 0 if row.mean >= 1000 else 1 if row.mean >= 10 else 2
    spread = "" if row.stddev is None else f" ± {row.stddev:.{digits}f}"
    times = "once" if len(row.samples) == 1 else f"{len(row.samples)} times"
    gain = f"  {gain_cell(row)} the plain rate" if row.gains else ""
    return f"{start} {row.mean:.{digits}f}{spread} {row.unit}{gain}  {times}{'' if is_complete else ' so far'}"
