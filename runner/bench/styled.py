"""Lines of styled text, and columns that fit a width: what reports and plots are before anybody draws them.

Front ends draw them, the CLI with escape sequences and the TUI with its own styles. Text from outside becomes safe for
a terminal here. It knows no stream and no benchmark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from runner.measures import clip, text_width
from runner.safe_text import safe_line

Style = Literal["", "bold", "dim", "good", "bad", "doubt", "accent"]
_ENOUGH, _SHORTEST = 24, 12  # what an elastic column takes before others get theirs, and what it keeps
_GAP = 2


@dataclass(frozen=True)
class Segment:
    """A piece of one line. Its text is safe for a terminal, whatever it was made of."""

    text: str
    style: Style = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", safe_line(self.text))


Line: TypeAlias = tuple[Segment, ...]


def plain(line: Line) -> str:
    """The line without its styles."""
    return "".join(segment.text for segment in line)


# Spaces, though not those before a unit.
_BREAK = re.compile(r" +(?!(?:%|m?s|min|[kKMGT]?i?B(?:/s)?|tok/s|MHz|°C|W)(?:[ ,.;:)]|$))")


def wrapped(label: str, style: Style, text: str, indent: int, width: int | None) -> list[Line]:
    """A label of `indent` columns, then text broken at spaces, its lines under each other; None: one line."""
    words, lines, current = _BREAK.split(safe_line(text).strip()), [], ""
    for word in words:
        longer = f"{current} {word}" if current else word
        if current and width is not None and indent + text_width(longer) > width:
            lines.append(current)
            longer = word
        current = longer
    lines.append(current)
    first = Segment(padded(safe_line(label), indent), style)
    return [(first if not number else Segment(" " * indent), Segment(line)) for number, line in enumerate(lines)]


def padded(text: str, width: int, *, is_right: bool = False) -> str:
    """Safe text cut or filled to `width` columns."""
    shown = clip(text, width)
    space = " " * (width - text_width(shown))
    return space + shown if is_right else shown + space


# --- columns ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Column:
    """worth: columns of a lower number stay when there is no room for all. An elastic one may be cut."""

    name: str
    worth: int
    is_right: bool = False
    is_elastic: bool = False


Cells: TypeAlias = Mapping[str, str | Segment]


def table_lines(columns: Sequence[Column], rows: Sequence[Cells], width: int | None) -> list[Line]:
    """A heading and the rows, aligned; without columns that are empty, or for which `width` columns have no room."""
    segments = [{name: _segment(cell) for name, cell in row.items()} for row in rows]
    needed = {
        column.name: max([text_width(column.name), *(text_width(row[column.name].text) for row in segments)])
        for column in columns
        if any(row[column.name].text for row in segments)
    }
    shown = [column for column in columns if column.name in needed]
    widths = needed if width is None else _fitted(shown, needed, width)
    shown = [column for column in shown if column.name in widths]
    heading = {column.name: Segment(column.name, "bold") for column in shown}
    return [_laid_out(shown, widths, row) for row in (heading, *segments)]


def cell_text(cell: str | Segment) -> str:
    """What a cell says, without its style."""
    return _segment(cell).text


def _segment(cell: str | Segment) -> Segment:
    return cell if isinstance(cell, Segment) else Segment(cell)


def _fitted(columns: Sequence[Column], needed: Mapping[str, int], width: int) -> dict[str, int]:
    """Widths of the columns that fit, by their worth; elastic ones leave room for others, and shrink before they go."""
    widths: dict[str, int] = {}
    room = width
    for column in sorted(columns, key=lambda column: column.worth):
        wanted = min(needed[column.name], _ENOUGH) if column.is_elastic else needed[column.name]
        least = min(wanted, _SHORTEST) if column.is_elastic else wanted
        free = room - (_GAP if widths else 0)
        if not widths:
            least = max(1, min(wanted, free))  # the first one is shown, though it be cut
        if least <= free:
            widths[column.name] = min(wanted, max(least, free))
            room = free - widths[column.name]
    for name in widths:
        more = min(room, needed[name] - widths[name])
        widths[name] += more
        room -= more
    return widths


def _laid_out(columns: Sequence[Column], widths: Mapping[str, int], row: Mapping[str, Segment]) -> Line:
    line: list[Segment] = []
    for column in columns:
        cell = row[column.name]
        if line:
            line.append(Segment(" " * _GAP))
        line.append(Segment(padded(cell.text, widths[column.name], is_right=column.is_right), cell.style))
    while line and not line[-1].text.strip():
        del line[-1]
    if line:
        line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
    return tuple(line)
