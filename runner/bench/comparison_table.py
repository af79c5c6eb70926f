"""A comparison of two runs as people read it: what differs between them, then the rows with their intervals.

Pure: a comparison and a width come in, lines of styled text go out, or Markdown. It knows no statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from runner.bench.comparison import RowComparison, RunComparison, Verdict
from runner.bench.figures import figure, mean_and_spread
from runner.bench.formats import escaped, markdown_table
from runner.bench.noise import Ratio
from runner.bench.record import BenchRow, BenchRun
from runner.bench.styled import Column, Line, Segment, Style, cell_text, table_lines, wrapped
from runner.wire import to_plain

_INDENT = 10
_WORDS: Final[dict[Verdict, str]] = {
    "faster": "faster",
    "slower": "slower",
    "same": "within noise",
    "unknown": "too few samples",
    "none": "not compared",
}
_STYLES: Final[dict[Verdict, Style]] = {
    "faster": "good",
    "slower": "bad",
    "same": "dim",
    "unknown": "dim",
    "none": "doubt",
}
_COLUMNS: Final = (
    Column(name="TEST", worth=0),
    Column(name="BACKEND", worth=1),
    Column(name="BEFORE", worth=6, is_right=True),
    Column(name="AFTER", worth=5, is_right=True),
    Column(name="UNIT", worth=7),
    Column(name="CHANGE", worth=3, is_right=True),
    Column(name="95 % INTERVAL", worth=4, is_right=True),
    Column(name="VERDICT", worth=2, is_elastic=True),
)


def comparison_lines(comparison: RunComparison, width: int | None) -> list[Line]:
    """Everything that is to be said of two runs; a `width` of None has room for everything."""
    lines = [
        *wrapped("before", "dim", describe(comparison.before), _INDENT, width),
        *wrapped("after", "dim", describe(comparison.after), _INDENT, width),
    ]
    for one in comparison.differences:
        lines += wrapped("differs", "doubt", f"{one.what}: {one.before} → {one.after}", _INDENT, width)
    if comparison.rows:
        lines += [(), *table_lines(_COLUMNS, [_cells(row) for row in comparison.rows], width), ()]
    for text in _remarks(comparison):
        lines += wrapped("note", "accent", text, _INDENT, width)
    return lines


def describe(run: BenchRun) -> str:
    """One run in a line: its id, model and machine."""
    partial = " · interrupted" if run.is_partial else ""
    return f"{run.id} · {run.model} {run.quantization} · {run.machine.device} · {run.started_at}{partial}"


def _cells(row: RowComparison) -> dict[str, str | Segment]:
    return {
        "TEST": row.test,
        "BACKEND": row.backend,
        "BEFORE": _side(row.before),
        "AFTER": _side(row.after),
        "UNIT": row.unit,
        "CHANGE": Segment(change_of(row.speed), _STYLES[row.verdict]),
        "95 % INTERVAL": _interval(row.speed),
        "VERDICT": Segment(_WORDS[row.verdict], _STYLES[row.verdict]),
    }


def _side(row: BenchRow | None) -> str:
    return "" if row is None else mean_and_spread(row)


def change_of(speed: Ratio | None) -> str:
    """How much faster: "+3.1 %", or "x 2.400" where percents would be hard to read; "" where nobody knows."""
    return "" if speed is None else _percent(speed.value)


def _percent(value: float) -> str:
    return f"x {figure(value)}" if value >= 2 else f"{100 * (value - 1):+.1f} %"


def _interval(speed: Ratio | None) -> str:
    if speed is None or speed.low is None or speed.high is None:
        return ""
    return f"{_percent(speed.low)} .. {_percent(speed.high)}"


def _remarks(comparison: RunComparison) -> Iterator[str]:
    verdicts = {row.verdict for row in comparison.rows}
    if "same" in verdicts:
        yield "within noise: no difference that can be told from noise."
    if "unknown" in verdicts:
        yield "too few samples: one repetition tells nothing of noise (-r 5)."
    without: dict[str, list[str]] = {}
    for row in comparison.rows:
        if row.missing:
            without.setdefault(row.missing, []).append(f"{row.backend} {row.test}")
    for reason, rows in without.items():
        yield f"{', '.join(rows)}: {reason}"
    if any(row.is_one_process for row in comparison.rows):
        yield "Some samples are of a single process: how much processes differ is not in their intervals."
    if any(row.speed is not None for row in comparison.rows):
        yield "CHANGE is of speed: more tok/s, or fewer ms, is faster."


def comparison_markdown(comparison: RunComparison) -> str:
    """The same for a document."""
    cells = [_cells(row) for row in comparison.rows]
    rows = [{name: escaped(cell_text(cell)) for name, cell in row.items()} for row in cells]
    right = frozenset(column.name for column in _COLUMNS if column.is_right)
    table = markdown_table(tuple(column.name for column in _COLUMNS), rows, right) if rows else []
    notes = [f"before: {describe(comparison.before)}", f"after: {describe(comparison.after)}"]
    notes += [f"differs: {one.what}: {one.before} → {one.after}" for one in comparison.differences]
    return "\n".join([*table, "", *(f"- {escaped(text)}" for text in (*notes, *_remarks(comparison)))])


def comparison_json(comparison: RunComparison) -> dict[str, Any]:
    """The same for programs; without "schema". speed: how many times faster, with the ends of its interval."""
    return {
        "before": comparison.before.id,
        "after": comparison.after.id,
        "differences": to_plain(comparison.differences),
        "rows": [
            {
                "backend": row.backend,
                "test": row.test,
                "before": None if row.before is None else row.before.mean,
                "after": None if row.after is None else row.after.mean,
                "unit": row.unit,
                "speed": None if row.speed is None else row.speed.value,
                "low": None if row.speed is None else row.speed.low,
                "high": None if row.speed is None else row.speed.high,
                "verdict": row.verdict,
                "missing": row.missing,
            }
            for row in comparison.rows
        ],
    }
