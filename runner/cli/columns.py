"""Which columns of a table a narrow terminal shows: a few whole ones say more than many cut ones.

Pure: widths come in, names go out. Drawing is render.py's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner.cli import render
from runner.safe_text import safe_line


def fitting(
    shown: Sequence[str],
    by_worth: Sequence[str],
    rows: Sequence[Mapping[str, str]],
    room: int,
    *,
    elastic: frozenset[str],
) -> tuple[str, ...]:
    """The columns of `shown` for which `room` columns of text suffice, taken in the order of `by_worth`.

    rows: cells by column; one that is not there is empty. elastic: columns that may be cut, though not below 12.
    """
    kept: list[str] = []
    taken = 0
    for name in by_worth:
        width = max([len(name), *(render.text_width(safe_line(row.get(name, ""))) for row in rows)])
        width = min(width, 12) if name in elastic else width
        if not kept or taken + 2 + width <= room:
            taken += width + (2 if kept else 0)
            kept.append(name)
    return tuple(name for name in shown if name in kept)


def print_table(
    shown: Sequence[str],
    by_worth: Sequence[str],
    rows: Sequence[Mapping[str, str]],
    *,
    elastic: Sequence[str],
    right: Sequence[str],
) -> None:
    """The rows as a table; on a terminal without the columns that it has no room for. right: numbers."""
    columns = tuple(shown)
    if render.is_terminal():
        room = render.terminal_size().columns - 1
        columns = fitting(shown, by_worth, rows, room, elastic=frozenset(elastic))
    cells = [[row.get(name, "") for name in columns] for row in rows]
    render.table(columns, cells, right=[index for index, name in enumerate(columns) if name in right])
