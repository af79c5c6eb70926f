"""The models that are on this machine, ● the loaded one. It shows what it is given; it knows no registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from runner.inventory import LocalModel
from runner.tui.content import line


class ModelsHere(Vertical):
    """A line each; Enter or a click opens one."""

    SCOPED_CSS = False  # its rules ask for classes of the screen, which is outside of it
    DEFAULT_CSS = """
    ModelsHere { height: auto; max-height: 9; margin-top: 1; }
    ModelsHere Static { height: 1; text-style: bold; color: $text-muted; }
    ModelsHere OptionList { height: auto; max-height: 8; border: none; padding: 0; background: transparent;
        text-wrap: nowrap; text-overflow: ellipsis; scrollbar-size-vertical: 1; }
    ModelsHere OptionList:focus { border: none; background: transparent; }
    ModelsHere OptionList > .option-list--option { padding: 0; }
    .-low ModelsHere { max-height: 5; }
    .-flat ModelsHere { max-height: 3; margin-top: 0; }
    """

    @dataclass
    class Picked(Message):
        """The user wants this model."""

        model: str

    def __init__(self) -> None:
        super().__init__()
        self._models: tuple[LocalModel, ...] = ()

    def compose(self) -> ComposeResult:
        yield Static("MODELS")
        yield OptionList(compact=True)

    def show(self, models: Sequence[LocalModel], loaded: str | None) -> None:
        """Show these; loaded: the name of the one that is loaded."""
        self._models = tuple(models)
        listed = self.query_one(OptionList)
        marked = listed.highlighted
        listed.clear_options()
        listed.add_options([Option(_row(model, is_loaded=model.name == loaded)) for model in self._models])
        if not self._models:
            listed.add_option(Option(line("None yet: F2 fetches one.", "$text-muted"), disabled=True))
        listed.highlighted = marked if marked is not None and marked < len(self._models) else None

    @on(OptionList.OptionSelected)
    def _pick(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.post_message(self.Picked(self._models[event.option_index].name))


def _row(model: LocalModel, *, is_loaded: bool) -> Content:
    mark = Content.styled("● ", "$success") if is_loaded else Content("○ ")
    short = model.name.rpartition("/")[2]
    quantization = "" if model.quantization.lower() in short.lower() else f" {model.quantization}"
    return mark + line(short, "bold" if is_loaded else "") + line(quantization, "$option-muted")
