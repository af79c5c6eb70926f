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
        width = min(_width(name, rows), 12) if name in elastic else _width(name, rows)
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
    """The rows as a table; on a terminal without the columns that it has no room for. right: numbers.

    Where the first of by_worth is not elastic it stays whole, unless it takes more than two thirds of the room.
    """
    columns, key, is_whole = tuple(shown), by_worth[0], False
    if render.is_terminal():
        room = render.terminal_size().columns - 1
        is_whole = key not in elastic and _width(key, rows) <= room * 2 // 3
        may_be_cut = frozenset(elastic) if is_whole else frozenset([key, *elastic])
        columns = fitting(shown, by_worth, rows, room, elastic=may_be_cut)
    cells = [[row.get(name, "") for name in columns] for row in rows]
    right_ones = [index for index, name in enumerate(columns) if name in right]
    render.table(columns, cells, right_ones, whole=[columns.index(key)] if is_whole else [])


def _width(name: str, rows: Sequence[Mapping[str, str]]) -> int:
    return max([len(name), *(render.text_width(safe_line(row.get(name, ""))) for row in rows)])
