"""Draws rows as strips: styles of the theme, the gutter, what stands at the right end, and what is selected.

Every cell of a row carries the row's id and the place in its text, which is how Textual selects. It decides nothing
about where rows are.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual.cache import LRUCache
from textual.content import Content
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget

from runner.tui.markdown.lines import Line
from runner.tui.markdown.styles import DRAFTED
from runner.tui.turns.document import Row
from runner.tui.turns.pieces import GUTTER

_KEPT = 300
DRAFTED_CLASS = "row-view--drafted"
_PILL_STYLE = "bold reverse $primary"


class RowPainter:
    """Strips of rows for one widget; the ones that were drawn lately are kept."""

    def __init__(self, widget: Widget) -> None:
        self._widget = widget
        self._strips: LRUCache[tuple[int, int], tuple[Line, Strip]] = LRUCache(_KEPT)
        self._styles: dict[str, Style] = {}
        self._base: Style | None = None

    def forget(self) -> None:
        """The theme or the width changed."""
        self._strips.clear()
        self._styles.clear()

    def row(self, row: Row | None, width: int, text_width: int, selection: Selection | None) -> Strip:
        """A row of the window; None is below the last one."""
        base = self._widget.visual_style
        if base != self._base:
            self.forget()
            self._base = base
        if row is None:
            return Strip.blank(width, base.rich_style)
        span = selection.get_span(row.id) if selection is not None else None
        if span is not None:
            return self._drawn(row, width, text_width, span)
        kept = self._strips.get((row.id, width))
        if kept is None or kept[0] is not row.line:
            kept = (row.line, self._drawn(row, width, text_width, None))
            self._strips[row.id, width] = kept
        return kept[1]

    def centred(self, lines: Sequence[Content], y: int, width: int, height: int) -> Strip:
        """Row `y` of a few lines in the middle of the window."""
        base = self._widget.visual_style
        place = y - max(0, (height - len(lines)) // 2)
        if not 0 <= place < len(lines):
            return Strip.blank(width, base.rich_style)
        line = lines[place].truncate(width, ellipsis=True)
        left = (width - line.cell_length) // 2
        segments = self._segments(line, base)
        return Strip([Segment(" " * left, base.rich_style), *segments]).adjust_cell_length(width, base.rich_style)

    def pill(self, strip: Strip, n_new: int, width: int) -> Strip:
        """The row with the way back to the end on it."""
        text = f" ↓ {n_new} new [End] " if n_new else " ↓ [End] "
        style = self._widget.visual_style + self._style(_PILL_STYLE) + Style.from_meta({"pill": True})
        if len(text) > width:
            return strip
        left = strip.crop(0, width - len(text) - 1)
        right = strip.crop(width - 1, width)
        return Strip.join([left, Strip([Segment(text, style.rich_style)]), right])

    def _drawn(self, row: Row, width: int, text_width: int, span: tuple[int, int] | None) -> Strip:
        line = row.line
        base = self._widget.visual_style
        ground = base + self._style(line.fill) if line.fill else base
        content = line.content
        if span is not None and content:
            content = self._selected(content, max(span[0], line.skip), span[1])
        gutter = Strip(self._segments(line.gutter, ground if line.fill else base) if line.gutter else [])
        text = Strip(self._segments(content, ground))
        tail = line.tail
        if tail is not None and text.cell_length + tail.cell_length + 2 <= text_width:
            space = Segment(" " * (text_width - text.cell_length - tail.cell_length), ground.rich_style)
            text = Strip([*text, space, *self._segments(tail, ground)])
        left = gutter.adjust_cell_length(GUTTER, (ground if line.fill and line.gutter else base).rich_style)
        body = text.adjust_cell_length(text_width, ground.rich_style).apply_offsets(0, row.id)
        rest = width - GUTTER - text_width
        whole = Strip.join([left.apply_offsets(0, row.id), body])
        return whole.adjust_cell_length(GUTTER + text_width + max(0, rest), base.rich_style)

    def _selected(self, content: Content, start: int, end: int) -> Content:
        style = Style.from_styles(self._widget.screen.get_component_styles("screen--selection"))
        return content.stylize(style, start, len(content) if end == -1 else end)

    def _segments(self, content: Content, ground: Style) -> list[Segment]:
        parts = content.render(ground, end="", parse_style=self._style)
        return [Segment(text, style.rich_style) for text, style in parts if text]

    def _style(self, style: str | Style) -> Style:
        """A style of the theme by its name, or of the widget; one that nobody has is none."""
        if isinstance(style, Style):
            return style
        if (found := self._styles.get(style)) is None:
            is_own = style == DRAFTED
            styles = self._widget.get_component_styles(DRAFTED_CLASS) if is_own else None
            found = self._styles[style] = Style.parse(style) if styles is None else Style.from_styles(styles)
        return found
