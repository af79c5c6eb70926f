"""Plots of characters: a bar with its error marks for each row of a run, and sparklines.

Pure functions that return lines of styled text. Block characters show eighths of a column; where an encoding does not
have them, plain ASCII takes their place. It knows no stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from runner.bench.figures import doubt, label, with_unit
from runner.bench.record import BenchRow
from runner.bench.styled import Line, Segment, Style, padded
from runner.measures import text_width

_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_LEVELS: Final = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS: Final = "_.-=+*#@"
_LEAST_BAR: Final = 8
_STYLES: Final[tuple[Style, ...]] = ("accent", "good", "doubt")


def can_show(encoding: str | None) -> bool:
    """Whether a stream of that encoding has the block characters."""
    try:
        (_EIGHTHS + _LEVELS + "├┤─┼").encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def sparkline(values: Sequence[float], *, is_ascii: bool = False) -> str:
    """One character a value, the lowest to the highest; a middle one where all are the same."""
    levels = _ASCII_LEVELS if is_ascii else _LEVELS
    if not values:
        return ""
    low, high = min(values), max(values)
    if high == low:
        return levels[len(levels) // 2] * len(values)
    return "".join(levels[min(len(levels) - 1, int((value - low) / (high - low) * len(levels)))] for value in values)


def bar_lines(rows: Sequence[BenchRow], width: int, *, is_ascii: bool = False) -> list[Line]:
    """The rows with their bars, test by test, each test on a scale of its own from zero; ± one sd is marked.

    Nothing where there is no room for bars.
    """
    tests = list(dict.fromkeys(row.test for row in rows))
    backends = list(dict.fromkeys(row.backend for row in rows))
    widths = [
        max((text_width(text) for text in texts), default=0)
        for texts in (tests, backends, [with_unit(row) for row in rows], [_mark(row) for row in rows])
    ]
    room = width - sum(widths) - 2 * sum(1 for one in widths if one)
    if not rows or room < _LEAST_BAR:
        return []
    lines: list[Line] = []
    for test in tests:
        members = [row for row in rows if row.test == test]
        top = max((_reach(row) for row in members), default=0.0)
        for number, row in enumerate(members):
            style = _STYLES[backends.index(row.backend) % len(_STYLES)]
            bar = Segment(bar_of(row, top, room, is_ascii=is_ascii), style)
            lines.append(_line("" if number else test, row, bar, widths))
    return lines


def _line(test: str, row: BenchRow, bar: Segment, widths: Sequence[int]) -> Line:
    style: Style = "bad" if row.invalid is not None else "doubt" if doubt(row) else ""
    gap, (of_test, of_backend, of_numbers, of_mark) = Segment("  "), widths
    cells = [
        Segment(padded(test, of_test), "bold"),
        Segment(padded(row.backend, of_backend)),
        bar,
        Segment(padded(with_unit(row), of_numbers, is_right=True), style),
        *([Segment(padded(_mark(row), of_mark), style)] if of_mark else []),
    ]
    return tuple(segment for cell in cells for segment in (cell, gap))[:-1]


def _mark(row: BenchRow) -> str:
    return "" if row.invalid is not None else label(row)


def _reach(row: BenchRow) -> float:
    return 0.0 if row.mean is None else row.mean + (row.stddev or 0.0)


def bar_of(row: BenchRow, top: float, width: int, *, is_ascii: bool = False) -> str:
    """A bar of `width` columns for values from 0 to `top`, with ├ and ┤ one sd around the mean; spaces without a mean.

    The mean is marked where they are far enough apart to hide the bar's end. Marks less than a column apart are left
    out: the bar's end says as much.
    """
    if row.mean is None or top <= 0:
        return " " * width
    columns = row.mean / top * width
    cells = list(_filled(columns, width, is_ascii))
    spread = row.stddev or 0.0
    first = min(width - 1, int((row.mean - spread) / top * width)) if spread < row.mean else 0
    last = min(width - 1, int((row.mean + spread) / top * width))
    if last > first and 2 * spread * width >= top:
        begin, middle, end, mean = ("|", "-", "|", "+") if is_ascii else ("├", "─", "┤", "┼")
        cells[first : last + 1] = [begin, *(middle * (last - first - 1)), end]
        if first < int(columns) < last:
            cells[int(columns)] = mean
    return "".join(cells)


def _filled(columns: float, width: int, is_ascii: bool) -> str:
    whole = min(width, int(columns))
    if is_ascii:
        return ("#" * max(1, whole)).ljust(width)[:width]
    part = _EIGHTHS[int((columns - whole) * 8)] if whole < width else ""
    return ("█" * whole + (part if whole or part != " " else "▏")).ljust(width)
