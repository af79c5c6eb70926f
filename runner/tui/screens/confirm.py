"""A question with two answers, over whatever is there: Enter agrees, unless it is grave; Esc does not.

It knows nothing of what is asked.
"""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from runner.tui.content import block, line


class Confirm(ModalScreen[bool]):
    """question: one line. detail: what follows from saying yes. yes: the word for it. is_grave: Enter cancels then."""

    DEFAULT_CSS = """
    Confirm { align: center middle; }
    Confirm > Vertical { width: 64; max-width: 96%; height: auto; max-height: 96%; padding: 1 2; background: $surface;
        border: round $border; }
    Confirm #question { height: auto; text-style: bold; }
    Confirm #detail { height: auto; max-height: 8; margin-top: 1; color: $text-muted; }
    Confirm Horizontal { height: auto; margin-top: 1; align-horizontal: right; }
    Confirm Button { margin-left: 2; min-width: 10; }
    Confirm.-flat > Vertical { padding: 0 1; }
    """
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (20, "-low")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "answer(False)", "No"),
        Binding("y", "answer(True)", "Yes"),
        Binding("left,right", "app.focus_next", show=False),
    ]

    def __init__(self, question: str, detail: str = "", *, yes: str = "Yes", is_grave: bool = False) -> None:
        super().__init__()
        self._question, self._detail, self._yes, self._is_grave = question, detail, yes, is_grave

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(line(self._question), id="question")
            if self._detail:
                yield Static(block(self._detail), id="detail")
            with Horizontal():
                yield Button("Cancel", id="no", compact=True)
                yield Button(self._yes, id="yes", variant="error" if self._is_grave else "primary", compact=True)

    def on_mount(self) -> None:
        self.query_one("#no" if self._is_grave else "#yes").focus()

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss(event.button.id == "yes")
