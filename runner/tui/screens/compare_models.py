"""Two models side by side, line by line; what is better of two numbers is marked. Any key closes it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import ClassVar, Final, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from runner.measures import clip, text_width, wrap
from runner.safe_text import safe_line
from runner.tui.catalog import CatalogRow
from runner.tui.catalog_columns import BY_KEY
from runner.tui.widgets.live_section import LiveSection

Better = Literal["less", "more", ""]

# What a line is called, what it says, the number behind it, and which of two numbers is better.
_LINES: Final[tuple[tuple[str, str, Callable[[CatalogRow], float | None], Better], ...]] = (
    ("parameters", "parameters", lambda row: row.parameters or None, ""),
    ("quantization", "quant", lambda _: None, ""),
    ("size", "size", lambda row: row.size_bytes or None, "less"),
    ("fit", "fit", lambda row: row.fit.need_bytes or None, "less"),
    ("est. tok/s", "expected", lambda row: row.expected_tok_s, "more"),
    ("measured tok/s", "measured", lambda row: row.measured_tok_s, "more"),
    ("context", "context", lambda row: row.context or None, "more"),
    ("licence", "licence", lambda _: None, ""),
    ("gated", "gated", lambda _: None, ""),
    ("state", "state", lambda _: None, ""),
)
_LABEL: Final = 15
_LEAST_LABEL: Final = 13


def better(a: float | None, b: float | None, which: Better) -> tuple[bool, bool]:
    """Whether the first, and whether the second, is the better one."""
    if a is None or b is None or a == b or not which:
        return False, False
    return (a < b) == (which == "less"), (a > b) == (which == "less")


class Comparison(LiveSection):
    """The lines."""

    def __init__(self, a: CatalogRow, b: CatalogRow) -> None:
        super().__init__()
        self._a, self._b = a, b

    def rows(self, width: int) -> list[Content]:
        a, b = self._a, self._b
        label = min(_LABEL, max(_LEAST_LABEL, width // 3))
        column = max(6, (width - label - 2) // 2)
        rows = [*_row("", (a.name, "bold"), (b.name, "bold"), label, column), Content("")]
        for name, key, number, which in _LINES:
            shown = [_shown(key, row) for row in (a, b)]
            marks = better(number(a), number(b), which)
            cells = [
                (f"{text} ◀" if won else text, "bold $text-success" if won else "")
                for text, won in zip(shown, marks, strict=True)
            ]
            rows += _row(name, cells[0], cells[1], label, column)
        return [*rows, Content(""), *_words(a, width), *_words(b, width)]


def _shown(key: str, row: CatalogRow) -> str:
    """What the table has in that column, with a word where a mark or an empty cell is enough there."""
    text = " ".join(BY_KEY[key].cell(row).text.split()) or "no"
    return "○ not here" if key == "state" and text == "○" else text


def _row(name: str, a: tuple[str, str], b: tuple[str, str], label: int, column: int) -> Iterator[Content]:
    """As many lines as the longest of the three texts takes."""
    widths = (label - 1, column, column)
    parts = (textwrap.wrap(safe_line(text), width) for text, width in zip((name, a[0], b[0]), widths, strict=True))
    for texts in zip_longest(*parts, fillvalue=""):
        shown = [_cell(text, width) for text, width in zip(texts, widths, strict=True)]
        yield Content.assemble((f"{shown[0]} ", "$text-muted"), (shown[1], a[1]), "  ", (shown[2], b[1]))


def _cell(text: str, width: int) -> str:
    shown = clip(text, width)
    return shown + " " * (width - text_width(shown))


def _words(row: CatalogRow, width: int) -> list[Content]:
    if not row.description:
        return []
    words = wrap(safe_line(f"{row.name}: {row.description}"), width)
    return [Content.styled(line, "$text-muted") for line in words.split("\n")]


class CompareModels(ModalScreen[None]):
    """a and b: the rows to compare."""

    DEFAULT_CSS = """
    CompareModels { align: center middle; }
    CompareModels > VerticalScroll { width: 88; max-width: 100%; height: auto; max-height: 96%; padding: 1 2;
        scrollbar-size-vertical: 1; background: $surface; border: round $border; }
    CompareModels #keys { height: 1; margin-top: 1; color: $text-muted; }
    CompareModels.-flat > VerticalScroll { padding: 0 1; }
    """
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (20, "-low")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,c,q", "dismiss(None)", "Close")]

    def __init__(self, a: CatalogRow, b: CatalogRow) -> None:
        super().__init__()
        self._a, self._b = a, b

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Comparison(self._a, self._b)
            yield Static("esc close", id="keys")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
