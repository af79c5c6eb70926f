"""How to quantize a model: the format, the name of the result, whether to calibrate; the size to expect is shown."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from runner.errors import RunnerError
from runner.measures import decimal_size
from runner.tui.catalog import CatalogRow
from runner.tui.content import line
from runner.tui.in_thread import in_thread
from runner.tui.quantize_choices import FormatChoice, format_choices, original_bytes, source_of
from runner.tui.widgets.tick import Tick


@dataclass(frozen=True, kw_only=True)
class QuantizeWish:
    """output: the name of the model that is made."""

    source: str
    weight_format: str
    output: str
    calibrate: bool


class QuantizeModel(ModalScreen[QuantizeWish | None]):
    """row: the model. taken: names of models that are here, which are not replaced.

    suggest: what the result would be called, by format; called in a thread.
    """

    DEFAULT_CSS = """
    QuantizeModel { align: center middle; }
    QuantizeModel > VerticalScroll { width: 92; max-width: 96%; height: auto; max-height: 96%; padding: 1 2;
        scrollbar-gutter: stable; scrollbar-size-vertical: 1;
        background: $surface; border: round $border; }
    QuantizeModel #question { height: auto; text-style: bold; }
    QuantizeModel OptionList { height: auto; max-height: 9; padding: 0; margin: 1 0; background: $panel;
        text-wrap: nowrap; text-overflow: ellipsis; scrollbar-size-vertical: 1; }
    QuantizeModel .field { height: 1; }
    QuantizeModel .label { width: 10; color: $text-muted; }
    QuantizeModel Input { width: 1fr; border: none; height: 1; padding: 0; background: $panel; }
    QuantizeModel Tick { border: none; padding: 0; background: $surface; height: 1; width: 1fr; }
    QuantizeModel #news { height: auto; margin-top: 1; color: $text-muted; }
    QuantizeModel #buttons { height: 1; margin-top: 1; align-horizontal: right; }
    QuantizeModel Button { margin-left: 2; min-width: 10; }
    QuantizeModel.-low OptionList { max-height: 5; margin: 0; }
    QuantizeModel.-flat > VerticalScroll { padding: 0 1; max-height: 100%; }
    QuantizeModel.-flat OptionList { max-height: 3; margin: 0; }
    QuantizeModel.-tiny > VerticalScroll { padding: 0; max-width: 100%; }
    QuantizeModel.-tiny .label { width: 6; }
    QuantizeModel.-tiny .empty { display: none; }
    QuantizeModel.-flat #news, QuantizeModel.-flat #buttons { margin: 0; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-narrow")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (20, "-low"), (24, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel")]

    def __init__(self, row: CatalogRow, taken: Collection[str], suggest: Callable[[], Mapping[str, str]]) -> None:
        super().__init__()
        self._row = row
        self._taken = frozenset(taken)
        self._choices = format_choices(row.parameters)
        self._suggest = suggest
        self._names: Mapping[str, str] | None = None
        self._suggested = ""

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield Static(line(f"Quantize {self._row.name}"), id="question")
            yield OptionList(*(Option(_words(choice)) for choice in self._choices), id="formats", compact=True)
            with Horizontal(classes="field"):
                yield Static("name", classes="label")
                yield Input(id="name", compact=True)
            with Horizontal(classes="field"):
                yield Static("", classes="label empty")
                yield Tick("calibrate: slower, more exact", True, id="calibrate", compact=True)
            yield Static("", id="news")
            with Horizontal(id="buttons"):
                yield Button("Cancel", id="no", compact=True)
                yield Button("Quantize", id="yes", variant="primary", compact=True)

    def on_mount(self) -> None:
        formats = self.query_one(OptionList)
        formats.highlighted = 0
        formats.focus()
        in_thread(self, self._suggest, self._take_names, self._say_error)

    def _take_names(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._fill_name()
        self._tell()

    def _say_error(self, error: RunnerError) -> None:
        self._names = {}
        self.query_one("#news", Static).update(line(f"✗ {error.message} {error.hint}".strip(), "$text-error"))

    @property
    def _choice(self) -> FormatChoice:
        return self._choices[self.query_one(OptionList).highlighted or 0]

    @on(OptionList.OptionHighlighted)
    def _highlighted(self) -> None:
        self.query_one(Tick).disabled = not self._choice.can_calibrate
        self._fill_name()
        self._tell()

    def _fill_name(self) -> None:
        """Suggest a name, where the user has not written another."""
        name = self.query_one(Input)
        if self._names is not None and name.value == self._suggested:
            self._suggested = name.value = self._names.get(self._choice.name, "")

    @on(Input.Changed)
    def _tell(self) -> None:
        if self._names is None:
            return
        if problem := self._problem():
            self.query_one("#news", Static).update(line(f"✗ {problem}", "$text-error"))
            return
        fetched, size = original_bytes(self._row), self._choice.size_bytes
        width = self.query_one(OptionList).scrollable_content_region.width
        is_cut = _words(self._choice).cell_length > width
        parts = [
            f"{self._choice.name}: {self._choice.words}." if is_cut else "",
            f"About {decimal_size(size)} on the disk." if size else "",
            f"From {source_of(self._row)}.",
        ]
        if fetched:
            parts.append(
                f"The original weights, about {decimal_size(fetched)}, are fetched first if they are not here."
            )
        self.query_one("#news", Static).update(line(" ".join(part for part in parts if part)))

    def _problem(self) -> str:
        name = self.query_one(Input).value.strip()
        if not name or name.startswith(".") or any(character in name for character in "/\\\0:"):
            return "The name must be that of a directory: no '/', '\\' or ':', and no '.' in front."
        return f"There is a model {name} already." if name in self._taken else ""

    @on(OptionList.OptionSelected)
    @on(Input.Submitted)
    def _accept(self) -> None:
        if self._problem():
            return
        choice = self._choice
        self.dismiss(
            QuantizeWish(
                source=source_of(self._row),
                weight_format=choice.name,
                output=self.query_one(Input).value.strip(),
                calibrate=choice.can_calibrate and self.query_one(Tick).value,
            )
        )

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id == "yes":
            self._accept()
        else:
            self.dismiss(None)


def _words(choice: FormatChoice) -> Content:
    size = f"~{decimal_size(choice.size_bytes)}" if choice.size_bytes else ""
    return Content.assemble((f"{choice.name:<12}", "bold"), f"{size:>9}  ", (choice.words, "$option-muted"))
