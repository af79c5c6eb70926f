"""Reports and plots of runner.bench in the theme's colours: lines that are laid out anew for the width there is.

It knows the styles of runner.bench.styled and nothing of what a report says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from runner.bench.styled import Line, Segment, Style

STYLES: Final[Mapping[Style, str]] = {
    "": "",
    "bold": "bold",
    "dim": "$text-muted",
    "good": "$success",
    "bad": "bold $error",
    "doubt": "$warning",
    "accent": "$primary",
}
LinesAt = Callable[[int], Sequence[Line]]


def lines_content(lines: Iterable[Line]) -> Content:
    """The lines as they stand: their text is no markup, and segments have made it safe."""
    return Content("\n").join(Content.assemble(*(_part(segment) for segment in line)) for line in lines)


def _part(segment: Segment) -> Content:
    style = STYLES[segment.style]
    return Content.styled(segment.text, style) if style else Content(segment.text)


class StyledLines(Widget):
    """Lines that fit the widget's width. `show` takes the function that lays them out.

    They are made when their height is asked for and when they are drawn, never before a width is known: a widget that
    was hidden is told of its size by no event where that is the same as before.
    """

    DEFAULT_CSS = """
    StyledLines { width: 100%; height: auto; padding-right: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines_at: LinesAt | None = None
        self._made: tuple[int, Sequence[Line]] = (0, ())  # for that width

    def show(self, lines_at: LinesAt | None) -> None:
        """Draw what the function returns for the columns there are; None: nothing."""
        self._lines_at = lines_at
        self._made = (0, ())
        self.refresh(layout=True)

    def _lines(self, width: int) -> Sequence[Line]:
        if width != self._made[0]:
            self._made = (width, self._lines_at(width) if self._lines_at is not None and width else ())
        return self._made[1]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return len(self._lines(width))

    def render(self) -> Content:
        return lines_content(self._lines(self.scrollable_content_region.width))
