"""A part of the live rail: lines of content that are drawn again only when they have changed.

It knows nothing of what the lines say.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget


def title(text: str) -> Content:
    """The heading of a section."""
    return Content.styled(text, "bold $text-muted")


class LiveSection(Widget):
    """Subclasses say what their lines are at a width; `redraw` compares them with what is on the screen."""

    DEFAULT_CSS = """
    LiveSection { height: auto; width: 1fr; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._drawn: Sequence[Content] = ()
        self._drawn_width = -1

    def rows(self, width: int) -> Sequence[Content]:  # noqa: ARG002
        """The lines now. One that is wider than `width` is cut."""
        return ()

    def redraw(self) -> None:
        """Draw the lines again if they are others than before; lay out again if there are more or fewer."""
        rows = self.rows(self._drawn_width)
        if self._drawn_width < 0 or _are_same(rows, self._drawn):
            return
        has_other_height = len(rows) != len(self._drawn)
        self._drawn = rows
        if has_other_height:
            self.clear_cached_dimensions()
        self.refresh(layout=has_other_height)

    def get_content_width(self, container: Size, viewport: Size) -> int:  # noqa: ARG002
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        self._measure(width)
        return len(self._drawn)

    def render(self) -> Content:
        self._measure(self.content_size.width)
        return Content("\n").join(self._drawn)

    def _measure(self, width: int) -> None:
        if width != self._drawn_width:
            self._drawn_width = width
            self._drawn = self.rows(width)


def _are_same(a: Sequence[Content], b: Sequence[Content]) -> bool:
    return len(a) == len(b) and all(one.is_same(other) for one, other in zip(a, b, strict=True))
