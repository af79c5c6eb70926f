"""Lays out a table for a width: columns as wide as they need, the widest ones narrower where there is no room.

Where even that is too narrow for the columns, each row becomes a list of "header: cell". Pure functions of values.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from runner.tui.markdown.blocks import Table
from runner.tui.markdown.styles import FAINT

_GAP = "  "
_LEAST = 6  # columns of a cell: with less, words fall apart


def table_rows(table: Table, width: int) -> list[Content]:
    """The rows of the table at `width` columns."""
    header, *body = table.rows
    natural = _natural_widths(table)
    room = width - len(_GAP) * (len(natural) - 1)
    if sum(natural) > room and room < _LEAST * len(natural):
        return _records(header, body, width)
    widths = _fitted(natural, room)
    rule = Content.styled(_GAP.join("─" * each for each in widths), FAINT)
    rows = _row([cell.stylize("bold") for cell in header], widths, table)
    rows.append(rule)
    for cells in body:
        rows += _row(cells, widths, table)
    return rows


def _natural_widths(table: Table) -> list[int]:
    widths = [1] * len(table.aligns)
    for row in table.rows:
        for column, cell in enumerate(row[: len(widths)]):
            widths[column] = max(widths[column], cell.cell_length)
    return widths


def _fitted(natural: Sequence[int], room: int) -> list[int]:
    """Take from the widest columns until all fit."""
    widths = list(natural)
    while (excess := sum(widths) - room) > 0:
        widest = max(widths)
        if widest <= 1:
            break
        places = [place for place, width in enumerate(widths) if width == widest]
        below = max((width for width in widths if width < widest), default=1)
        step = max(1, min(widest - max(below, 1), excess // len(places)))
        for place in places:
            widths[place] -= step
    return widths


def _row(cells: Sequence[Content], widths: Sequence[int], table: Table) -> list[Content]:
    wrapped = [cell.wrap(width) or [Content()] for cell, width in zip(cells, widths, strict=False)]
    height = max((len(lines) for lines in wrapped), default=1)
    rows = []
    for line in range(height):
        parts = [
            _padded(lines[line] if line < len(lines) else Content(), width, align)
            for lines, width, align in zip(wrapped, widths, table.aligns, strict=False)
        ]
        rows.append(Content(_GAP).join(parts).rstrip())
    return rows


def _padded(cell: Content, width: int, align: str) -> Content:
    space = max(0, width - cell.cell_length)
    left = space if align == "right" else space // 2 if align == "center" else 0
    return cell.pad(left, space - left)


def _records(header: Sequence[Content], body: Sequence[Sequence[Content]], width: int) -> list[Content]:
    rows: list[Content] = []
    for cells in body or [header]:
        for name, cell in zip(header, cells, strict=False):
            label = Content(name.plain).stylize("bold") + Content(": ") if body else Content()
            rows += (label + cell).wrap(max(1, width))
        rows.append(Content())
    return rows[:-1]
