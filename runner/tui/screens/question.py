"""A question over whatever is there: a text that scrolls, and two buttons that stay in sight however long it is.

What is asked, and what follows from an answer, is up to the dialogs made of it.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from runner.tui.content import line

Answer = TypeVar("Answer")


class Question(ModalScreen[Answer]):
    """question: one line. detail: what follows from saying yes. yes: the word for it. is_grave: it cannot be undone."""

    DEFAULT_CSS = """
    Question { align: center middle; }
    Question > VerticalScroll { width: 72; max-width: 96%; height: auto; max-height: 96%; padding: 1 2;
        background: $surface; border: round $border; scrollbar-size-vertical: 1; }
    Question #question { height: auto; text-style: bold; }
    Question #detail { height: auto; margin-top: 1; }
    Question Horizontal { dock: bottom; height: auto; margin-top: 1; align-horizontal: right; background: $surface; }
    Question Button { margin-left: 2; min-width: 10; }
    Question.-flat > VerticalScroll { padding: 0 1; }
    """
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (20, "-low")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [Binding("left,right", "app.focus_next", show=False)]

    def __init__(self, question: str, detail: Content, *, yes: str, is_grave: bool) -> None:
        super().__init__()
        self._question, self._detail, self._yes, self._is_grave = question, detail, yes, is_grave

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield Static(line(self._question), id="question")
            if self._detail:
                yield Static(self._detail, id="detail")
            with Horizontal():
                yield Button("Cancel", id="no", compact=True)
                yield Button(self._yes, id="yes", variant="error" if self._is_grave else "primary", compact=True)
