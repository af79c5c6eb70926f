"""What a chat shows before anything is said: the model, where it runs and why, three things to ask, the keys.

It shows what it is told and posts the question that the user picks; it knows no engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from runner.errors import RunnerError
from runner.events import Loaded
from runner.measures import short_count
from runner.status_text import SEPARATOR
from runner.tui.content import line

EXAMPLES = (
    "Hello! What can you do?",
    "Tell me a short story about a lighthouse.",
    "What is the capital of France?",
)
_KEYS = (
    ("enter", "send"),
    ("ctrl+j", "new line"),
    ("/", "commands"),
    ("@", "attach a file"),
    ("f2", "other models"),
    ("f6", "how it answers"),
)


class EmptyChat(VerticalScroll, can_focus=False):
    """show_empty, show_lent, show_loading, show_loaded, show_failed: how the model stands."""

    SCOPED_CSS = False  # its rules ask for classes of the screen, which is outside of it
    DEFAULT_CSS = """
    EmptyChat { align: center middle; scrollbar-size-vertical: 1; }
    EmptyChat > Vertical { width: 64; max-width: 100%; height: auto; padding: 0 2; }
    EmptyChat Static { height: auto; }
    EmptyChat #model { text-style: bold; color: $accent; text-wrap: nowrap; text-overflow: ellipsis; }
    EmptyChat #where { color: $text-muted; margin-bottom: 1; }
    EmptyChat .heading { color: $text-muted; }
    EmptyChat OptionList { height: auto; border: none; padding: 0; background: transparent; margin-bottom: 1;
        text-wrap: nowrap; text-overflow: ellipsis; }
    EmptyChat OptionList:focus { border: none; background: transparent; }
    EmptyChat OptionList > .option-list--option { padding: 0; }
    EmptyChat #keys { color: $text-muted; }
    .-tiny EmptyChat #keys, .-flat EmptyChat #keys, .-flat EmptyChat .heading { display: none; }
    .-flat EmptyChat #where { margin-bottom: 0; }
    .-flat EmptyChat > Vertical { padding: 0 1; }
    """

    @dataclass
    class Picked(Message):
        """The user wants to ask this."""

        question: str

    def __init__(self) -> None:
        super().__init__(id="empty-chat")

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(id="model")
            yield Static(id="where")
            yield Static("Ask something, or try", classes="heading")
            examples = OptionList(*[Option(Content(f"› {text}")) for text in EXAMPLES], compact=True)
            examples.highlighted = None
            yield examples
            yield Static(_keys(), id="keys")

    def show_empty(self, model: str) -> None:
        """No model is loaded; this one will be."""
        self._show(model, "Your first message loads it.")

    def show_lent(self, model: str) -> None:
        """A benchmark has the machine; this model will be loaded after that."""
        self._show(model, "A benchmark has the machine: F3 shows it. Your first message after that loads it.")

    def show_loading(self, model: str, stage: str) -> None:
        self._show(model, f"{stage}. What you ask now is answered as soon as it is there.")

    def show_loaded(self, loaded: Loaded) -> None:
        info = loaded.info
        name = SEPARATOR.join(
            part for part in (info.name, info.quantization, f"{short_count(info.n_ctx)} context") if part
        )
        reason = loaded.reason[:1].lower() + loaded.reason[1:]
        self._show(name, f"Runs here with {info.backend} on {info.device}: {reason}")

    def show_failed(self, model: str, error: RunnerError, then: str) -> None:
        """then: what follows from it, a sentence or nothing."""
        self._show(model, " ".join(part for part in (f"✗ {error.message}", error.hint, then) if part), "$error")

    def _show(self, model: str, where: str, style: str = "") -> None:
        self.query_one("#model", Static).update(line(model))
        self.query_one("#where", Static).update(line(where, style))

    @on(OptionList.OptionSelected)
    def _pick(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.post_message(self.Picked(EXAMPLES[event.option_index]))


def _keys() -> Content:
    """Two columns of keys, which have room between the rails too."""
    cells = [Content.assemble((f"{key:<7}", "bold"), f"{what:<14}") for key, what in _KEYS]
    return Content("\n").join(cells[i] + cells[i + 1].rstrip() for i in range(0, len(cells), 2))
