"""One section of Markdown as blocks: paragraphs, headings, tables, code and rules, each with what stands to its left.

Nesting (quotes, items of lists) becomes that text to the left, so that blocks are a flat list. It knows no width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from markdown_it import MarkdownIt
from markdown_it.token import Token
from textual.content import Content

from runner.tui.markdown.drafted import Source
from runner.tui.markdown.inline import inline_content
from runner.tui.markdown.sections import Section
from runner.tui.markdown.styles import HEADINGS, MUTED

EMPTY = Content()
_BULLETS = ("•", "◦", "▪")
_TASKS = {"[ ] ": "○ ", "[x] ": "✓ "}
_QUOTE = Content.styled("▎ ", MUTED)


@dataclass(frozen=True)
class Table:
    """Cells by row, the header first. aligns: of each column."""

    rows: tuple[tuple[Content, ...], ...]
    aligns: tuple[Literal["left", "right", "center"], ...]


@dataclass(frozen=True)
class Block:
    """first, rest: what stands to the left of its first row and of the others. n_decoration: how much of both is
    drawn and not text, for copying.
    """

    kind: Literal["text", "table", "code", "rule"]
    content: Content = EMPTY
    first: Content = EMPTY
    rest: Content = EMPTY
    n_decoration: int = 0
    table: Table | None = None


def parse_section(section: Section) -> tuple[Block, ...]:
    """The blocks of a section of prose."""
    source = Source(section.text, section.drafted)
    walk = _Walk(left=Content(" " * section.indent), depth=section.indent // 2, source=source)
    return tuple(walk.blocks(_parser().parse(section.text)))


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    """CommonMark with tables and strikethrough; HTML is text, and a definition of a link stays to be seen.

    Text is not joined with what was escaped in it, so that each piece is in the source as it stands.
    """
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 12}).enable(["table", "strikethrough"])
    return parser.disable(["reference", "html_block", "html_inline", "text_join"])


@dataclass
class _Walk:
    """Where in the nesting the walk over the tokens is."""

    left: Content
    depth: int
    source: Source
    n_decoration: int = 0
    marker: Content | None = None  # of an item whose first block has not come yet
    stack: list[tuple[Content, int, int]] = field(default_factory=list)
    numbers: list[int | None] = field(default_factory=list)

    def blocks(self, tokens: list[Token]) -> Iterator[Block]:
        style = ""
        place = 0
        while place < len(tokens):
            token = tokens[place]
            if token.type == "table_open":
                end = next(i for i in range(place, len(tokens)) if tokens[i].type == "table_close")
                yield self._block("table", table=self._table(tokens[place:end]))
                place = end
            elif token.type == "heading_open":
                style = HEADINGS.get(token.tag, "bold")
            elif token.type == "inline":
                content = inline_content(token.children or [], self.source)
                yield self._block("text", content.stylize_before(style) if style else content)
                style = ""
            elif token.type in ("fence", "code_block"):
                yield self._block("code", Content(token.content.rstrip("\n")))
            elif token.type == "hr":
                yield self._block("rule")
            else:
                yield from self._nest(token)
            place += 1

    def _nest(self, token: Token) -> Iterator[Block]:
        if token.type in ("bullet_list_open", "ordered_list_open"):
            start = token.attrs.get("start", 1)
            self.numbers.append(int(start) if token.type == "ordered_list_open" else None)
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            self.numbers.pop()
        elif token.type == "list_item_open":
            self._open(self._marker(token))
        elif token.type == "blockquote_open":
            self.stack.append((self.left, self.depth, self.n_decoration))
            self.left += _QUOTE
            self.n_decoration = len(self.left)
        elif token.type in ("list_item_close", "blockquote_close"):
            if self.marker is not None:  # an item with nothing in it
                yield self._block("text")
            self.left, self.depth, self.n_decoration = self.stack.pop()

    def _marker(self, token: Token) -> Content:
        number = self.numbers[-1] if self.numbers else None
        if number is not None:
            self.numbers[-1] = number + 1
            return Content.styled(f"{number}{token.markup or '.'} ", MUTED)
        return Content.styled(_BULLETS[self.depth % len(_BULLETS)] + " ", MUTED)

    def _open(self, marker: Content) -> None:
        if self.marker is not None:
            marker = self.marker + marker
            self.marker = None
        self.stack.append((self.left, self.depth, self.n_decoration))
        self.marker = self.left + marker
        self.left += " " * len(marker)
        self.depth += 1

    def _block(
        self, kind: Literal["text", "table", "code", "rule"], content: Content = EMPTY, table: Table | None = None
    ) -> Block:
        first, self.marker = self.left if self.marker is None else self.marker, None
        if (mark := _TASKS.get(content.plain[:4].lower())) and len(first) > len(self.left) - 2:
            first, content = first[:-2] + Content.styled(mark, MUTED), content[4:]
        return Block(kind, content, first, self.left, self.n_decoration, table)

    def _table(self, tokens: list[Token]) -> Table:
        rows: list[tuple[Content, ...]] = []
        aligns: list[Literal["left", "right", "center"]] = []
        cells: list[Content] = []
        for token in tokens:
            if token.type == "th_open":
                style = str(token.attrs.get("style", ""))
                aligns.append("right" if "right" in style else "center" if "center" in style else "left")
            elif token.type == "inline":
                cells.append(inline_content(token.children or [], self.source))
            elif token.type == "tr_close":
                rows.append(tuple(cells))
                cells = []
        return Table(tuple(rows), tuple(aligns))
