"""The table of models: a line a row, drawn only where it is seen, so that thousands of rows filter as one types.

Textual's DataTable takes 0.7 s to take up 5000 rows of these columns, which would be felt at each letter of a filter.
It shows rows in the order that it is given and posts what the user does with them; it neither filters nor sorts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from runner.measures import clip, text_width
from runner.safe_text import safe_line
from runner.tui.catalog import CatalogRow
from runner.tui.catalog_columns import Cell, Column, columns_for, empty_columns

_GAP = "  "
_MARGIN = 2  # columns before a row, for the mark of a chosen one


class ModelTable(ScrollView, can_focus=True):
    """Rows of the catalog. The last line may be an offer, such as to search the hub, which is chosen as a row is."""

    DEFAULT_CSS = """
    ModelTable { background: $background; color: $foreground; height: 1fr; scrollbar-size-horizontal: 0;
        scrollbar-size-vertical: 1; }
    ModelTable > .model-table--header { background: $panel; color: $text-muted; }
    ModelTable > .model-table--sorted { background: $panel; color: $text; text-style: bold; }
    ModelTable > .model-table--cursor {
        background: $block-cursor-blurred-background; color: $block-cursor-blurred-foreground;
        text-style: $block-cursor-blurred-text-style;
    }
    ModelTable:focus > .model-table--cursor {
        background: $block-cursor-background; color: $block-cursor-foreground; text-style: $block-cursor-text-style;
    }
    ModelTable > .model-table--hover { background: $block-hover-background; }
    ModelTable > .model-table--muted { color: $text-muted; }
    ModelTable > .model-table--good { color: $text-success; }
    ModelTable > .model-table--fair { color: $text-warning; }
    ModelTable > .model-table--bad { color: $text-error; }
    ModelTable > .model-table--accent { color: $text-accent; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"model-table--{name}"
        for name in ("header", "sorted", "cursor", "hover", "muted", "good", "fair", "bad", "accent")
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "move(-1000000)", "First", show=False),
        Binding("end", "move(1000000)", "Last", show=False),
        Binding("enter", "choose", "Chat"),
    ]
    ALLOW_SELECT = False
    cursor = reactive(0, init=False)
    hovered = reactive(-1)

    @dataclass
    class Highlighted(Message):
        """The cursor is on another row; None: on the offer, or there are no rows."""

        row: CatalogRow | None

    @dataclass
    class Chosen(Message):
        """Enter or a second click; row None: the offer."""

        row: CatalogRow | None

    @dataclass
    class SortWanted(Message):
        """A column's title was clicked."""

        key: str

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._rows: tuple[CatalogRow, ...] = ()
        self._states: Mapping[str, Cell] = {}
        self._marked: Collection[str] = ()
        self._offer = ""
        self._sort: tuple[str, bool] = ("", False)
        self._columns: tuple[tuple[Column, int], ...] = ()

    # --- what it shows ---------------------------------------------------------------------------------------------

    def show(self, rows: Sequence[CatalogRow], *, offer: str = "", sort: tuple[str, bool] = ("", False)) -> None:
        """Other rows; the cursor stays on its model. sort: a column's key, and whether it is reversed."""
        before = self.row
        self._rows, self._offer, self._sort = tuple(rows), offer, sort
        index = None if before is None else _place_of(before, rows)
        self._lay_out()
        target = index if index is not None else min(self.cursor, max(0, self.n_lines - 1))
        if before is None or index is None:
            target = 0
        changed = target != self.cursor
        self.cursor = target
        if not changed:
            self.post_message(self.Highlighted(self.row))
        self._reveal()
        self.refresh()

    def replace(self, name: str, change: Callable[[CatalogRow], CatalogRow]) -> None:
        """Change the row of that name where it stands."""
        self._rows = tuple(change(row) if row.name == name else row for row in self._rows)
        self.refresh()

    def show_states(self, states: Mapping[str, Cell]) -> None:
        """What jobs say of models, in place of what the catalog says."""
        if states != self._states:
            self._states = dict(states)
            self.refresh()

    def mark(self, names: Collection[str]) -> None:
        """Put a mark before these models."""
        self._marked = frozenset(names)
        self.refresh()

    @property
    def rows(self) -> tuple[CatalogRow, ...]:
        return self._rows

    @property
    def seen_columns(self) -> tuple[str, ...]:
        """The keys of the columns that have room."""
        return tuple(column.key for column, _ in self._columns)

    @property
    def row(self) -> CatalogRow | None:
        """The row of the cursor, or None."""
        return self._rows[self.cursor] if 0 <= self.cursor < len(self._rows) else None

    @property
    def is_on_offer(self) -> bool:
        return bool(self._offer) and self.cursor == len(self._rows)

    @property
    def n_lines(self) -> int:
        return len(self._rows) + bool(self._offer)

    def select(self, name: str) -> bool:
        """Move to the model of that name; False when it is not among the rows."""
        for index, row in enumerate(self._rows):
            if row.name == name:
                self.cursor = index
                return True
        return False

    def _lay_out(self) -> None:
        longest = max((text_width(safe_line(row.name)) for row in self._rows), default=5)
        width = max(0, self.scrollable_content_region.width - _MARGIN)
        # Without a width it is not laid out yet.
        self._columns = columns_for(width, max(8, longest), empty_columns(self._rows)) if width else ()
        self.virtual_size = Size(self.scrollable_content_region.width, self.n_lines + 1)

    def on_resize(self) -> None:
        self._lay_out()
        self._reveal()
        self.refresh()

    # --- drawing ---------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        if y == 0:
            return Strip(self._header()).adjust_cell_length(width, self._style("header"))
        index = self.scroll_offset.y + y - 1
        base = self.rich_style
        if index == self.cursor and self.n_lines:
            base += self._style("cursor")
        elif index == self.hovered:
            base += self._style("hover")
        if index < len(self._rows):
            segments = self._line(self._rows[index], base, has_cursor=index == self.cursor)
        elif index == len(self._rows) and self._offer:
            text = clip(safe_line(self._offer), max(0, width - _MARGIN))
            segments = [Segment(" " * _MARGIN, base), Segment(text, base + self._tone("accent", index == self.cursor))]
        else:
            segments = []
        return Strip(segments).adjust_cell_length(width, base)

    def _header(self) -> list[Segment]:
        plain, chosen = self._style("header"), self._style("sorted")
        segments = [Segment(" " * _MARGIN, plain)]
        for column, width in self._columns:
            is_sorted = column.key == self._sort[0]
            arrow = ("▾" if column.is_descending != self._sort[1] else "▴") if is_sorted else ""
            text = _padded(clip(column.title, width - len(arrow)) + arrow, width, is_right=column.is_right)
            segments += [Segment(text, chosen if is_sorted else plain), Segment(_GAP, plain)]
        return segments

    def _line(self, row: CatalogRow, base: Style, *, has_cursor: bool) -> list[Segment]:
        mark = "◆ " if row.name in self._marked else "▸ " if has_cursor else "  "
        segments = [Segment(mark, base + self._tone("accent", has_cursor))]
        for column, width in self._columns:
            cell = (self._job_state(row) if column.key == "state" else None) or column.cell(row)
            tone = "muted" if column.key == "name" and row.place != "here" and row.fit.verdict == "no" else cell.tone
            text = _padded(clip(safe_line(cell.text), width), width, is_right=column.is_right)
            segments += [Segment(text, base + self._tone(tone, has_cursor)), Segment(_GAP, base)]
        return segments

    def _job_state(self, row: CatalogRow) -> Cell | None:
        """What a job says of a model; what the hub found has no quantization in its name, and its download has."""
        if row.place != "hub":
            return self._states.get(row.name)
        return next((cell for name, cell in self._states.items() if name.partition(":")[0] == row.name), None)

    def _tone(self, tone: str, has_cursor: bool) -> Style:
        """The colour of a cell's text; on the cursor's line all text has the cursor's, which is readable there."""
        if tone == "plain" or has_cursor:
            return Style.null()
        return Style(color=self._style(tone).color)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"model-table--{name}")

    # --- keys and mouse --------------------------------------------------------------------------------------------

    def validate_cursor(self, value: int) -> int:
        return max(0, min(value, self.n_lines - 1))

    def watch_cursor(self) -> None:
        self._reveal()
        self.post_message(self.Highlighted(self.row))

    def _reveal(self) -> None:
        """Scroll so that the cursor is seen, below the header."""
        height = self.scrollable_content_region.height - 1
        top = self.scroll_offset.y
        if height <= 0:
            return
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, force=True)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False, force=True)

    def action_move(self, by: int) -> None:
        self.cursor += by

    def action_page(self, by: int) -> None:
        self.cursor += by * max(1, self.scrollable_content_region.height - 2)

    def action_choose(self) -> None:
        if self.n_lines:
            self.post_message(self.Chosen(self.row))

    def on_mouse_move(self, event: events.MouseMove) -> None:
        self.hovered = self._index_at(event.y)

    def on_leave(self) -> None:
        self.hovered = -1

    def on_click(self, event: events.Click) -> None:
        event.stop()
        if event.y == 0:
            if (key := self._column_at(event.x)) is not None:
                self.post_message(self.SortWanted(key))
            return
        index = self._index_at(event.y)
        if 0 <= index < self.n_lines:
            is_again = index == self.cursor and event.chain >= 2
            self.cursor = index
            if is_again:
                self.action_choose()

    def _index_at(self, y: int) -> int:
        return self.scroll_offset.y + y - 1 if y > 0 else -1

    def _column_at(self, x: int) -> str | None:
        start = _MARGIN
        for column, width in self._columns:
            if start <= x < start + width + len(_GAP):
                return column.key
            start += width + len(_GAP)
        return None


def _place_of(row: CatalogRow, rows: Sequence[CatalogRow]) -> int | None:
    """Where a model is now: under its name, or under another one since its repository was fetched."""
    names = [one.name for one in rows]
    if row.name in names:
        return names.index(row.name)
    return next((i for i, one in enumerate(rows) if one.repo and one.repo == row.repo), None)


def _padded(text: str, width: int, *, is_right: bool) -> str:
    padding = " " * max(0, width - text_width(text))
    return padding + text if is_right else text + padding
