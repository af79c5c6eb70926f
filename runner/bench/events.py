"""What a running bench tells its front end: where it is, rows as they grow, and the whole run at its end.

Beside these it passes on what loading tells: Progress and Notice of runner.events.
"""

from __future__ import annotations

from dataclasses import dataclass

from runner.bench.record import BenchRow, BenchRun
from runner.events import Notice, Progress
from runner.types import BackendName


@dataclass(frozen=True, kw_only=True)
class BenchStep:
    """What is being done. process of n_processes: which of the processes, from 1; 0 when none is meant.

    repetition of n_repetitions: 0 is the warm-up; both are 0 where nothing is repeated.
    """

    what: str
    backend: BackendName | None = None
    process: int = 0
    n_processes: int = 0
    repetition: int = 0
    n_repetitions: int = 0


@dataclass(frozen=True, kw_only=True)
class RowMeasured:
    """A process has done its share of a row. is_complete: no other process will add to it."""

    row: BenchRow
    is_complete: bool


@dataclass(frozen=True, kw_only=True)
class BackendRefused:
    backend: BackendName
    reason: str


@dataclass(frozen=True, kw_only=True)
class BenchFinished:
    """The last event. The run is partial when it was cancelled."""

    run: BenchRun


BenchEvent = BenchStep | RowMeasured | BackendRefused | BenchFinished | Progress | Notice
