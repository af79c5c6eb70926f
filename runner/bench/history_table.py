"""Earlier runs as people read them: a line for each backend of a run, and how each figure went on over time.

Pure: runs and a width come in, lines of styled text go out. It knows no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from runner.bench.figures import INVALID, doubt, figure
from runner.bench.formats import escaped, markdown_table
from runner.bench.record import NOT_REACHED, BenchBackend, BenchRow, BenchRun
from runner.bench.request import GENRES
from runner.bench.styled import Cells, Column, Line, Segment, cell_text, table_lines
from runner.bench.text_plot import sparkline

_LEAST_OF_A_TREND: Final = 3
_NARROW: Final = 48  # columns below which ids and trends are shorter, so that figures have room
_SECONDS: Final = len("20260131-120000")  # of an id: its beginning, which means it wherever an id is asked for
_COLUMNS: Final = (
    Column(name="ID", worth=0),
    Column(name="MODEL", worth=3, is_elastic=True),
    Column(name="QUANT", worth=6),
    Column(name="BACKEND", worth=2),
    Column(name="PREFILL", worth=4, is_right=True),
    Column(name="DECODE", worth=1, is_right=True),
    Column(name="TTFT", worth=5, is_right=True),
    Column(name="LABEL", worth=4),
    Column(name="SPECULATION", worth=4, is_elastic=True),
    Column(name="DEVICE", worth=7, is_elastic=True),
    Column(name="COMMIT", worth=8),
)
_ROOMY: Final = 72  # columns below which what speculation gained comes before the model's name, as DECODE does anyway
_FIGURES_FIRST: Final = tuple(
    replace(column, worth=2) if column.name == "SPECULATION" else column for column in _COLUMNS
)


def history_lines(runs: Sequence[BenchRun], width: int | None, *, is_ascii: bool = False) -> list[Line]:
    """Runs, the last one last, and the trends of those that measured the same thing."""
    is_narrow = width is not None and width < _NARROW
    columns = _COLUMNS if width is None or width >= _ROOMY else _FIGURES_FIRST
    n_id = _SECONDS if is_narrow and len({run.id[:_SECONDS] for run in runs}) == len(runs) else None
    rows = [{**_cells(run, backend), "ID": run.id[:n_id]} for run in runs for backend in run.backends]
    lines = table_lines(columns, rows, width)
    trends = list(_trends(runs, width, _SHORT_TREND if is_narrow else _LONGEST_TREND, is_ascii))
    return [*lines, (), *trends] if trends else lines


def history_markdown(runs: Sequence[BenchRun]) -> str:
    """The same runs for a document."""
    cells = [_cells(run, backend) for run in runs for backend in run.backends]
    rows = [{name: escaped(cell_text(cell)) for name, cell in row.items()} for row in cells]
    right = frozenset(column.name for column in _COLUMNS if column.is_right)
    return "\n".join(markdown_table([column.name for column in _COLUMNS], rows, right)) if rows else ""


def _cells(run: BenchRun, backend: BenchBackend) -> Cells:
    return {
        "ID": run.id,
        "MODEL": run.model,
        "QUANT": run.quantization,
        "BACKEND": backend.name,
        "PREFILL": _figure(backend, "pp"),
        "DECODE": _figure(backend, "tg"),
        "TTFT": _figure(backend, "ttft"),
        "LABEL": _label(run, backend),
        "SPECULATION": _gains(backend),
        "DEVICE": run.machine.device,
        "COMMIT": run.machine.versions.get("commit", ""),
    }


def _figure(backend: BenchBackend, kind: str) -> Segment:
    """The first row of that kind, the one at the least depth."""
    if backend.refused is not None:
        return Segment("not reached", "dim") if backend.refused == NOT_REACHED else Segment("refused", "bad")
    row = _first(backend, kind)
    if row is None:
        return Segment("")
    size = "" if kind == "ttft" else f"{row.test.removeprefix(kind).replace(' ', '')}: "
    if row.invalid is not None:
        return Segment(f"{size}{INVALID}", "bad")
    if row.mean is None:
        return Segment("")
    shown = f"{figure(row.mean)} ms" if row.unit == "ms" else figure(row.mean)
    return Segment(f"{size}{shown}", "doubt" if doubt(row) else "")


def _first(backend: BenchBackend, kind: str) -> BenchRow | None:
    return next((row for row in backend.rows if row.test.startswith(kind)), None)


def _label(run: BenchRun, backend: BenchBackend) -> Segment:
    """Why figures of the line, which are coloured, are to be doubted: "noisy" if one is, else "few"; or "partial"."""
    found = {doubt(row) for kind in ("pp", "tg", "ttft") if (row := _first(backend, kind)) is not None}
    doubted = next((word for word in ("noisy", "few") if word in found), "")
    return Segment(f"{'partial' if run.is_partial else ''} {doubted}".strip(), "doubt")


def _gains(backend: BenchBackend) -> str:
    """What speculation gained on each genre: "2.31x code128, 1.00x prose128 noisy". What is cut off is no figure."""
    return ", ".join(
        f"{INVALID} {row.test}" if row.gain is None else f"{row.gain:.2f}x {row.test} {doubt(row)}".rstrip()
        for row in backend.rows
        if row.gain is not None or (row.invalid is not None and row.test.startswith(GENRES))
    )


Measured: TypeAlias = tuple[str, ...]
TrendKey: TypeAlias = tuple[Measured, str, str]


def what_was_measured(run: BenchRun) -> Measured:
    """The model, the device, and how it was loaded and drafted for: runs that differ in these are of no one trend."""
    options = run.options
    loading = (options.kv_type, options.n_gpu_layers, options.n_threads, options.batch_size)
    drafting: tuple[Any, ...] = ()
    if options.genres:
        drafting = (options.speculation, options.draft, options.draft_max, options.draft_file, options.temperatures)
    return (run.model, run.quantization, run.machine.device, *map(str, (*loading, *drafting)))


def trend_series(runs: Sequence[BenchRun]) -> dict[TrendKey, list[BenchRow]]:
    """The valid rows of each (what was measured, backend, test) that at least three runs have, in order."""
    series: dict[TrendKey, list[BenchRow]] = {}
    for run in runs:
        measured = what_was_measured(run)
        for row in run.rows:
            if row.mean is not None:
                key = (measured, row.backend, row.test)
                series.setdefault(key, []).append(row)
    return {key: rows for key, rows in series.items() if len(rows) >= _LEAST_OF_A_TREND}


def _trends(runs: Sequence[BenchRun], width: int | None, longest: int, is_ascii: bool) -> Iterator[Line]:
    """A sparkline for each series, of its last `longest` runs."""
    rows = [_trend(key, rows, longest, is_ascii) for key, rows in trend_series(runs).items()]
    if rows:
        yield from table_lines(_TREND_COLUMNS, rows, width)


_TREND_COLUMNS: Final = (
    Column(name="TREND", worth=1),
    Column(name="BACKEND", worth=2),
    Column(name="TEST", worth=0),
    Column(name="FIRST", worth=5, is_right=True),
    Column(name="LAST", worth=3, is_right=True),
    Column(name="BEST", worth=6, is_right=True),
    Column(name="UNIT", worth=4),
    Column(name="MODEL", worth=7, is_elastic=True),
    Column(name="RUNS", worth=8, is_right=True),
)
_LONGEST_TREND, _SHORT_TREND = 24, 8


def _trend(key: TrendKey, rows: Sequence[BenchRow], longest: int, is_ascii: bool) -> Cells:
    (model, quantization, *_), backend, test = key
    means = [row.mean for row in rows if row.mean is not None]
    best = max(means) if rows[0].is_higher_better else min(means)
    return {
        "TREND": Segment(sparkline(means[-longest:], is_ascii=is_ascii), "accent"),
        "BACKEND": backend,
        "TEST": test,
        "FIRST": figure(means[0]),
        "LAST": figure(means[-1]),
        "BEST": figure(best),
        "UNIT": rows[0].unit,
        "MODEL": f"{model} {quantization}",
        "RUNS": str(len(means)),
    }
