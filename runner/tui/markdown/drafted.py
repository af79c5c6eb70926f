"""Where the characters that a drafter had guessed are in what is shown of a section: spans of one style.

What Markdown leaves out and adds is found by going through the source beside what is shown; a character whose source is
not found is not marked. It knows no theme: what the style looks like is a widget's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from textual.content import Span

from runner.tui.markdown.sections import DRAFTED as MARK
from runner.tui.markdown.styles import DRAFTED

_RUN = re.compile(re.escape(MARK) + "+")


def spans_of(marks: str, shift: int = 0) -> list[Span]:
    """Spans over the runs of marked characters. shift: where the first character stands in the content."""
    return [Span(shift + run.start(), shift + run.end(), DRAFTED) for run in _RUN.finditer(marks)]


def expanded(marks: str, code: str, tab: int) -> str:
    """The marks of `code` once its tabs are columns, as str.expandtabs makes them."""
    parts: list[str] = []
    column = 0
    for character, mark in zip(code, marks, strict=False):
        width = tab - column % tab if character == "\t" else 1
        column = 0 if character == "\n" else column + width
        parts.append(mark * width)
    return "".join(parts)


@dataclass
class Source:
    """The source of a section while it is gone through, and the mark of each of its characters ("": none is)."""

    text: str
    marks: str
    _place: int = 0

    def spans(self, shown: str, shift: int) -> list[Span]:
        """Spans for a piece of the source that is shown next, at `shift` of the content."""
        if not self.marks or (found := self.text.find(shown, self._place)) < 0:
            return []
        self._place = found + len(shown)
        return spans_of(self.marks[found : self._place], shift)
