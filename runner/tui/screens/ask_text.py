"""One line of text from the user, over whatever is there. Enter accepts, Esc gives up. It knows nothing of its use."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from runner.safe_text import safe_line
from runner.tui.content import line


class AskText(ModalScreen[str | None]):
    """title: what is asked for. value: what is there to begin with. The answer is None when the user gives up."""

    DEFAULT_CSS = """
    AskText { align: center middle; }
    AskText > Vertical { width: 64; max-width: 96%; height: auto; padding: 1 2; background: $surface;
        border: round $border; }
    AskText #title { height: auto; text-style: bold; }
    AskText Input { margin-top: 1; height: 1; border: none; padding: 0 1; background: $boost; }
    AskText Input:focus { border: none; background: $primary 20%; }
    AskText #keys { height: 1; margin-top: 1; color: $text-muted; text-align: right; }
    AskText.-flat > Vertical { padding: 0 1; }
    """
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (20, "-low")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "give_up", "Cancel")]

    def __init__(self, title: str, value: str = "") -> None:
        super().__init__()
        self._asked, self._value = title, safe_line(value)

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(line(self._asked), id="title")
            yield Input(self._value, compact=True)
            yield Static("enter accepts · esc gives up", id="keys")

    def action_give_up(self) -> None:
        self.dismiss(None)

    @on(Input.Submitted)
    def _accept(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value)
