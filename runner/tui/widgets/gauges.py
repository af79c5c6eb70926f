"""Small drawings in characters: a gauge, a sparkline, items that flow over lines. Each also reads without colour.

Pure functions of values; they know nothing of what is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from textual.content import Content

_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
SEPARATOR: Final = Content.styled(" · ", "$text-muted")


def gauge(share: float, width: int, style: str = "$primary") -> Content:
    """A bar of `width` columns, of which `share` (0 to 1) is heavy; half columns are told apart."""
    halves = round(2 * width * min(1.0, max(0.0, share)))
    heavy = "━" * (halves // 2) + ("╸" if halves % 2 else "")
    return Content.assemble((heavy, style), ("─" * (width - len(heavy)), "$text-muted"))


def sparkline(
    columns: Sequence[float | None], width: int, height: int = 1, *, top: float | None = None, style: str = "$primary"
) -> list[Content]:
    """`columns` as bars from zero to `top` (the highest of them), the newest at the right; None leaves a gap.

    A bar that is not zero is never invisible.
    """
    shown = list(columns)[-width:] if width > 0 else []
    highest = max((value for value in shown if value is not None), default=0.0) if top is None else top
    levels = [_level(value, highest, 8 * height) for value in shown]
    levels = [0] * (width - len(levels)) + levels
    rows = []
    for row in reversed(range(height)):
        text = "".join(_EIGHTHS[min(8, max(0, level - 8 * row))] for level in levels)
        rows.append(Content.styled(text, style))
    return rows


def bars(values: Sequence[float], width: int, height: int, *, first: int, top: float | None = None) -> list[Content]:
    """`values` as bars with gaps between them where there is room, and under them the numbers of the first and last.

    first: the number of the first bar; top: the value of the highest bar there may be, else the highest of them.
    """
    if not values or width <= 0:
        return []
    column = max(1, min(4, (width + 1) // len(values)))
    bar = max(1, column - 1)
    columns: list[float | None] = []
    for value in values:
        columns += [None] * (column - bar if columns else 0) + [value] * bar
    n_columns = min(width, len(columns))
    last = str(first + len(values) - 1)
    numbers = str(first) if len(values) == 1 else str(first) + last.rjust(n_columns - len(str(first)))
    return [*sparkline(columns, n_columns, height, top=top), Content.styled(numbers, "$text-muted")]


def _level(value: float | None, highest: float, n_levels: int) -> int:
    if value is None or highest <= 0 or value <= 0:
        return 0
    return max(1, round(n_levels * min(1.0, value / highest)))


def flow(items: Sequence[Content], width: int, separator: Content = SEPARATOR) -> list[Content]:
    """Items on as few lines of `width` columns as they need; an item stays on one line, whatever its length."""
    lines: list[Content] = []
    for item in items:
        if lines and lines[-1].cell_length + separator.cell_length + item.cell_length <= width:
            lines[-1] = Content.assemble(lines[-1], separator, item)
        else:
            lines.append(item)
    return lines


def both_ends(left: Content, right: Content, width: int) -> Content:
    """`left` and `right` at the two ends of a line; where they do not fit, the left one is cut."""
    room = width - right.cell_length - 1
    if room < 2:
        return left.truncate(width, ellipsis=True)
    return Content.assemble(left.truncate(room, ellipsis=True, pad=True), " ", right)
