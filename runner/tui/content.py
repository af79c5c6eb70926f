"""Text from outside as Textual content: the one door for answers, names, titles, errors and paths into a widget.

Textual reads `[...]` in plain strings as markup, and passes control characters to the terminal; a Content made here
does neither. It knows no widget.
"""

from __future__ import annotations

from textual.content import Content
from textual.style import Style

from runner.safe_text import safe_line, safe_text


def line(text: str, style: str | Style = "") -> Content:
    """`text` on one line, as it stands: for names, titles, labels, table cells, errors."""
    return Content.styled(safe_line(text), style) if style else Content(safe_line(text))


def block(text: str, style: str | Style = "") -> Content:
    """`text` with its line ends and tabs, as it stands."""
    return Content.styled(safe_text(text), style) if style else Content(safe_text(text))
