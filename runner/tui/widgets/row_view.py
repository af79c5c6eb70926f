"""A window over the rows of a Document: scrolling, following the end, drawing, clicks and selected text.

What is seen stays where it is while rows above or below change, unless the view follows the end. It knows nothing of
chats: entries say what they show, and a click on something that does something is posted as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual.content import Content
from textual.events import Click, Resize
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from runner.tui.turns.document import Document, Row
from runner.tui.turns.entries import Entry, Look
from runner.tui.turns.pieces import GUTTER, Piece
from runner.tui.widgets.row_painter import DRAFTED_CLASS, RowPainter

_MARGIN = 1  # columns between the text and the scroll bar


class RowView(ScrollView):
    """A subclass says by `look` how an entry is to be shown. empty: rows to show when there is no entry.

    The class "-plain" leaves out the tint of what a drafter had guessed.
    """

    DEFAULT_CSS = """
    RowView { height: 1fr; width: 1fr; overflow-x: hidden; overflow-y: auto; scrollbar-gutter: stable;
        scrollbar-size-vertical: 1; background: $background; color: $foreground; }
    RowView > .row-view--drafted { background: $accent 12%; color: transparent; }
    RowView:ansi > .row-view--drafted { background: transparent; color: ansi_cyan; }
    RowView.-plain > .row-view--drafted { background: transparent; color: transparent; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {DRAFTED_CLASS}

    @dataclass
    class Clicked(Message):
        """Something of an entry that does something was clicked: what, and with which values."""

        entry: Entry
        do: tuple[Any, ...]

    def __init__(self, *, id: str | None, empty: Sequence[Content]) -> None:
        super().__init__(id=id)
        self.document = Document(self.look)
        self._empty = empty
        self._painter = RowPainter(self)
        self._rows: list[Row] = []
        self._is_following = True
        self._n_new = 0
        self._is_placing = False
        self._place = (0, 0.0)

    def look(self, entry: Entry) -> Look:
        """How an entry is to be shown now."""
        raise NotImplementedError

    # --- what is shown ---------------------------------------------------------------------------------------------

    @property
    def is_following(self) -> bool:
        """Whether new rows move the view, which is at the end then."""
        return self._is_following

    @property
    def shown_entries(self) -> list[Entry]:
        """The entries in the window, from top to bottom."""
        return list(dict.fromkeys(row.entry for row in self._rows))

    def replace(self, entries: Sequence[Entry]) -> None:
        """Show other entries, from their end."""
        self.document = Document(self.look, self.document.width)
        self.document.entries[:] = entries
        self._painter.forget()
        # Every cell knows its row, so Textual has kept the escape sequences of each row apart: up to 16 MiB of them.
        Strip.render_ansi.cache_clear()
        self.focus_end()

    def changed(self) -> None:
        """Entries came, went, or are to be shown differently."""
        self.document.lay_again()
        self._settle()

    def grown(self, entry: Entry) -> None:
        """An entry changed, at its end as a rule."""
        before = entry.height(self.document.width)
        self.document.lay(entry)
        if not self._is_following:
            self._n_new += max(0, entry.height(self.document.width) - before)
        self._settle()

    def stay(self) -> None:
        """Do not follow the end any more, unless the view is there still when all is shown."""
        self._is_following = False

    def focus_end(self) -> None:
        """Go to the end, and follow it from now on."""
        self._is_following, self._n_new = True, 0
        self.changed()

    def go_to(self, entry: Entry, is_wanted: Callable[[Piece], bool] | None = None) -> None:
        """Put the beginning of an entry, or the piece of it that is wanted, into view."""
        self._is_following = False
        self.document.lay_again()
        top = self.document.top_of(entry, is_wanted)
        height = self.size.height
        if is_wanted is None or not self.scroll_offset.y <= top < self.scroll_offset.y + height - 2:
            self._settle(max(0, top - (height // 4 if is_wanted else 0)))
            top = self.document.top_of(entry, is_wanted)  # what came into view is measured now
            self._settle(max(0, top - (height // 4 if is_wanted else 0)))
        else:
            self._settle()

    # --- scrolling -------------------------------------------------------------------------------------------------

    def action_scroll_up(self) -> None:
        self._scroll_by(-1)

    def action_scroll_down(self) -> None:
        self._scroll_by(1)

    def action_page_up(self) -> None:
        self._scroll_by(-max(1, self.size.height - 2))

    def action_page_down(self) -> None:
        self._scroll_by(max(1, self.size.height - 2))

    def action_scroll_home(self) -> None:
        self.scroll_to(y=0, animate=False)

    def action_scroll_end(self) -> None:
        self.focus_end()

    def _scroll_by(self, rows: int) -> None:
        self.scroll_to(y=self.scroll_offset.y + rows, animate=False)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self._is_placing or round(old_value) == round(new_value):
            return
        self._is_following = False  # unless that is the end
        self._settle(round(new_value))

    def on_resize(self, event: Resize) -> None:
        del event
        width = self._text_width
        if width == self.document.width:
            self._settle()
            return
        place = self._place
        self.document.width = width
        self._painter.forget()
        self._settle(self.document.row_at(place))

    @property
    def _text_width(self) -> int:
        return max(1, self.size.width - GUTTER - _MARGIN)

    def _settle(self, top: int | None = None) -> None:
        """Put the window where it belongs, and draw it. top: where it shall begin, now where it is."""
        height = self.size.height
        if not height or not self.is_attached:
            return
        wanted = self.scroll_offset.y if top is None else top
        top = self.document.settle(wanted, height, at_end=self._is_following)
        self._rows = self.document.rows(top, height)
        self._place = self.document.place_of(top)
        if top + height >= self.document.height:
            self._is_following, self._n_new = True, 0
        self._is_placing = True
        try:
            self._set_height(self.document.height)
            self.scroll_y = self.scroll_target_y = top
        finally:
            self._is_placing = False
        self.refresh()

    def _set_height(self, height: int) -> None:
        """So many rows in all. Setting virtual_size would lay out and draw the whole screen; only the bar changes."""
        size = Size(self.size.width, height)
        if size != self.virtual_size:
            self.set_reactive(Widget.virtual_size, size)
            self._scroll_update(size)

    # --- drawing ---------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if not self.document.entries:
            return self._painter.centred(self._empty, y, width, self.size.height)
        row = self._rows[y] if y < len(self._rows) else None
        strip = self._painter.row(row, width, self._text_width, self.text_selection)
        if y == self.size.height - 1 and not self._is_following:
            strip = self._painter.pill(strip, self._n_new, width)
        return strip

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._painter.forget()

    # --- mouse and selection ---------------------------------------------------------------------------------------

    def on_click(self, event: Click) -> None:
        meta = event.style.meta
        if "pill" in meta:
            event.stop()
            self.action_scroll_end()
            return
        row = self._rows[event.y] if 0 <= event.y < len(self._rows) else None
        do = meta.get("do") or (("link", meta["link"]) if "link" in meta else None)
        if row is not None and do:
            event.stop()
            self.post_message(self.Clicked(row.entry, do))

    @property
    def allow_select(self) -> bool:
        return True

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        start, end = (None if place is None else (place.y, place.x) for place in selection)
        return self.document.text_between(start, end), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        del selection
        self.refresh()
