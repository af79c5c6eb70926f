"""Folds of the live rail: a line that opens with Enter, Space or a click, and more lines below it.

One says why the backend was chosen, one which other programs hold memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message

from runner.events import Loaded
from runner.measures import binary_size
from runner.safe_text import safe_line
from runner.set_values import in_chat
from runner.tui.content import line
from runner.tui.machine_watch import OtherProgram
from runner.tui.widgets.gauges import both_ends
from runner.tui.widgets.live_section import LiveSection, title


class Fold(LiveSection, can_focus=True):
    """A heading, and lines that are shown while it is open."""

    DEFAULT_CSS = """
    Fold:focus { background: $boost; text-style: none; }
    Fold:hover { background: $boost; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter,space", "open_or_close", "Open or close", show=False)]

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.is_open = False

    def toggle(self) -> None:
        self.is_open = not self.is_open
        self.on_toggled()
        self.redraw()

    def on_toggled(self) -> None:
        """It was opened or closed."""

    def action_open_or_close(self) -> None:
        self.toggle()

    def on_click(self) -> None:
        self.toggle()

    @property
    def arrow(self) -> str:
        return "▾" if self.is_open else "▸"


class OtherPrograms(Fold):
    """What other programs hold, by name when it is open."""

    DEFAULT_CSS = """
    OtherPrograms { display: none; }
    OtherPrograms.-some { display: block; }
    """

    class Opened(Message):
        """The names are wanted."""

    def __init__(self) -> None:
        super().__init__(id="other-programs")
        self._amount = 0
        self._programs: tuple[OtherProgram, ...] | None = None

    def show_amount(self, size_bytes: int) -> None:
        self._amount = size_bytes
        self.set_class(size_bytes > 0, "-some")
        self.redraw()

    def show_programs(self, programs: tuple[OtherProgram, ...]) -> None:
        self._programs = programs
        self.redraw()

    def on_toggled(self) -> None:
        if self.is_open:
            self.post_message(self.Opened())

    def rows(self, width: int) -> Sequence[Content]:
        heading = both_ends(Content(f"{self.arrow} who holds it"), Content(""), width)
        if not self.is_open:
            return [heading]
        if self._programs is None:
            return [heading, Content.styled("  looking…", "$text-muted")]
        if not self._programs:
            return [heading, Content.styled("  the driver does not say", "$text-muted")]
        return [heading, *(_program_row(program, width) for program in self._programs)]


def _program_row(program: OtherProgram, width: int) -> Content:
    count = f" ×{program.n_processes}" if program.n_processes > 1 else ""
    name = Content.assemble("  ", line(program.name), (count, "$text-muted"))
    return both_ends(name, Content(binary_size(program.used_bytes)), width)


class BackendReason(Fold):
    """The backend that runs the model, its device, and why it was chosen when it is open."""

    DEFAULT_CSS = """
    BackendReason { margin-top: 1; }
    """

    def __init__(self) -> None:
        super().__init__(id="backend")
        self._loaded: Loaded | None = None

    def show(self, loaded: Loaded | None) -> None:
        self._loaded = loaded
        self.redraw()

    def rows(self, width: int) -> Sequence[Content]:
        loaded = self._loaded
        if loaded is None:
            return [both_ends(title("BACKEND"), Content.styled("none yet", "$text-muted"), width)]
        info = loaded.info
        rows = [
            both_ends(title("BACKEND"), Content.styled(f"{self.arrow} why?", "$accent"), width),
            Content.assemble((info.backend, "bold"), " · ", line(info.device)),
        ]
        return rows + self._reason(width) if self.is_open else rows

    def _reason(self, width: int) -> list[Content]:
        assert self._loaded is not None
        texts = [in_chat(text) for text in (self._loaded.reason, self._loaded.info.note)]
        wrapped = [row for text in texts if text for row in Content(safe_line(text)).wrap(width)]
        return [row.stylize("$text-muted") for row in wrapped]
