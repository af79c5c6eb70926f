"""The checks of doctor as they are done: a mark, a name, what was found, and under it what to do about it.

It shows what it is given and asks nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from textual.content import Content
from textual.widgets import Static

from runner.doctor import Check, Status
from runner.measures import text_width, wrap
from runner.safe_text import safe_line

# A status is told apart by its mark, and by its colour where there are colours.
MARKS: Final[Mapping[Status, tuple[str, str]]] = {
    "ok": ("✓", "$success"),
    "warning": ("!", "bold $warning"),
    "error": ("✗", "bold $error"),
}
_NAME_WIDTH: Final = 23
_BESIDE: Final = 64  # columns from which a name stands beside its detail


def checks_content(found: Sequence[Check], width: int) -> Content:
    """All checks for so many columns."""
    return Content("\n").join(line for check in found for line in _check_lines(check, width))


def _check_lines(check: Check, width: int) -> Iterator[Content]:
    mark, style = MARKS[check.status]
    name = safe_line(check.name)
    start = Content.assemble((mark, style), "  ", (name, "bold"))
    indent = _NAME_WIDTH if width >= _BESIDE else 3
    details = _wrapped(check.detail, width - indent)
    if width >= _BESIDE:
        gap = " " * max(1, indent - 3 - text_width(name))
        yield Content.assemble(start, gap, (details[0], "$text"))
        details = details[1:]
    else:
        yield start
    for text in details:
        yield Content.assemble(" " * indent, (text, "$text"))
    remedy_style = "$warning" if check.status == "warning" else "$error"
    for number, text in enumerate(_wrapped(check.remedy, width - indent - 2) if check.remedy else ()):
        arrow = "  " if number else "→ "
        yield Content.assemble(" " * indent, (f"{arrow}{text}", remedy_style))


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(safe_line(text), max(16, width)).split("\n")


class CheckList(Static):
    """show: every check that is done, in order."""

    DEFAULT_CSS = """
    CheckList { width: 100%; height: auto; }
    """

    def __init__(self) -> None:
        super().__init__("", id="checks")
        self._found: tuple[Check, ...] = ()

    def show(self, found: Sequence[Check]) -> None:
        self._found = tuple(found)
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        width = self.scrollable_content_region.width
        if width:
            self.update(checks_content(self._found, width))
