"""A question with two answers, over whatever is there: Enter agrees, unless it is grave; Esc does not.

It knows nothing of what is asked.
"""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widgets import Button

from runner.tui.content import block
from runner.tui.screens.question import Question


class Confirm(Question[bool]):
    """question: one line. detail: what follows from saying yes. yes: the word for it. is_grave: Enter cancels then."""

    DEFAULT_CSS = """
    Confirm > VerticalScroll { width: 64; }
    Confirm #detail { color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "answer(False)", "No"),
        Binding("y", "answer(True)", "Yes"),
    ]

    def __init__(self, question: str, detail: str = "", *, yes: str = "Yes", is_grave: bool = False) -> None:
        super().__init__(question, block(detail), yes=yes, is_grave=is_grave)

    def on_mount(self) -> None:
        self.query_one("#no" if self._is_grave else "#yes").focus()

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss(event.button.id == "yes")
