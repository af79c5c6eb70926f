"""A page of text over whatever is there: a model's facts, parameters, numbers. It knows nothing of what it says."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from runner.tui.content import block, line


class Page(ModalScreen[None]):
    """Any of Enter, Esc and q closes it."""

    DEFAULT_CSS = """
    Page { align: center middle; }
    Page > VerticalScroll { width: auto; min-width: 40; max-width: 96%; height: auto; max-height: 96%; padding: 1 2;
        background: $surface; border: round $border; border-title-color: $text; border-subtitle-color: $text-muted;
        scrollbar-size-vertical: 1; }
    Page Static { width: auto; max-width: 100%; }
    Page.-flat > VerticalScroll { padding: 0 1; }
    """
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (20, "-low")]  # noqa: RUF012 - Textual's own declaration
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "close", "Close")]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title_text, self._text = title, text

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = line(self._title_text)
            box.border_subtitle = "esc closes"
            yield Static(block(self._text))

    def action_close(self) -> None:
        self.dismiss(None)
