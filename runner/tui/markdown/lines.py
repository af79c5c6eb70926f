"""Blocks as rows of a width: what a widget draws, and what of it is text to copy. It knows no widget and no turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rich.cells import chop_cells
from textual.content import Content

from runner.tui.markdown.blocks import EMPTY, Block
from runner.tui.markdown.code import highlighted
from runner.tui.markdown.styles import FAINT, GROUND
from runner.tui.markdown.table import table_rows

_LEAST = 8  # columns that text keeps, however deep it is nested
CODE_BAR = Content.styled("▎", FAINT)


@dataclass(frozen=True)
class Line:
    """A row. skip: characters at its beginning that are drawn and not text. fill: the style of the whole row.

    is_wrapped: the text goes on in the next row without a line end. tail: stands at the right end, if there is room.
    gutter: stands to the left of the text.
    """

    content: Content
    skip: int = 0
    is_wrapped: bool = False
    fill: str = ""
    tail: Content | None = None
    gutter: Content | None = None


BLANK = Line(EMPTY)


def wrapped(
    content: Content, width: int, first: Content = EMPTY, rest: Content | None = None, decoration: int = 0
) -> list[Line]:
    """Rows of a text with `first` to the left of the first one and `rest` of the others."""
    rest = first if rest is None else rest
    room = max(_LEAST, width - max(first.cell_length, rest.cell_length))
    lines: list[Line] = []
    for paragraph in content.split("\n", allow_blank=True):
        rows = paragraph.wrap(room) or [Content()]
        for number, row in enumerate(rows):
            left = rest if lines else first
            skip = len(left) if number else min(decoration, len(left))
            lines.append(Line(left + row, skip, number < len(rows) - 1))
    return lines


def code_lines(code: str, language: str, width: int, left: Content = EMPTY, drafted: str = "") -> list[Line]:
    """Rows of code on a ground of their own; lines that are too long go on in the next row."""
    bar = left + CODE_BAR + " "
    room = max(_LEAST, width - bar.cell_length - 1)
    lines: list[Line] = []
    for line in highlighted(code, language, drafted).split("\n", allow_blank=True):
        rows = _folded(line, room)
        lines += [Line(bar + row, len(bar), number < len(rows) - 1, GROUND) for number, row in enumerate(rows)]
    return lines


def _folded(line: Content, room: int) -> list[Content]:
    """The rows of a line, cut wherever they are full. Content.fold takes a row for the last one when some of its
    characters have no width, and leaves out what comes after it."""
    if line.cell_length <= room:
        return [line]
    ends = accumulate(len(row) for row in chop_cells(line.plain, room))
    return line.divide(list(ends)[:-1])


def block_lines(blocks: Iterable[Block], width: int) -> list[Line]:
    """Rows of blocks, a blank one between two that are not of one list."""
    lines: list[Line] = []
    for block in blocks:
        if lines and not _is_item(block):
            lines.append(Line(block.rest, len(block.rest)) if block.n_decoration else BLANK)
        lines += _one_block(block, width)
    return lines


def _is_item(block: Block) -> bool:
    return block.first.plain != block.rest.plain


def _one_block(block: Block, width: int) -> list[Line]:
    room = max(_LEAST, width - block.rest.cell_length)
    if block.kind == "rule":
        return [Line(block.first + Content.styled("─" * min(room, 40), FAINT), block.n_decoration)]
    if block.kind == "code":
        return code_lines(block.content.plain, "", width, block.first)
    if block.kind == "table" and block.table is not None:
        rows = table_rows(block.table, room)
        return [
            Line((block.rest if number else block.first) + row, block.n_decoration) for number, row in enumerate(rows)
        ]
    return wrapped(block.content, width, block.first, block.rest, block.n_decoration)


def text_of(lines: Sequence[Line], start: int = 0, end: int | None = None) -> str:
    """What is copied of rows: `start` is a place in the first one, `end` in the last."""
    parts: list[str] = []
    for number, line in enumerate(lines):
        is_last = number == len(lines) - 1
        text = line.content.plain
        begin = max(line.skip, start if number == 0 else 0)
        parts.append(text[begin : end if is_last and end is not None else None].rstrip())
        if not is_last:
            parts.append(" " if line.is_wrapped and not line.fill else "" if line.is_wrapped else "\n")
    return "".join(parts)
