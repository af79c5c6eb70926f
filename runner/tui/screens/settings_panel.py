"""The panel of how a chat is answered: system prompt, thinking, sampling, speculation, each field checked while typed.

It edits values that it is given and returns them; it knows no engine and no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Click, DescendantFocus
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Select, Static, TextArea

from runner.errors import UsageError
from runner.safe_text import safe_line, safe_text
from runner.tui.chat_settings import CHOICES, FIELDS, HELP, LOADING, ChatSettings, is_changed, read, value_of
from runner.tui.content import line

_CHANGED, _SAME, _BACK = "●", " ", "↺"
_TINT, _ON_OFF = "tint", ("on", "off")


@dataclass(frozen=True)
class Chosen:
    """What the user decided. is_default: it is to hold for chats to come as well. is_tinted: guesses are to be seen."""

    settings: ChatSettings
    is_default: bool
    is_tinted: bool


class SettingsPanel(ModalScreen[Chosen | None]):
    """system: the system prompt. typed: the fields as they are. defaults: as they are when nothing is set here.

    is_tinted: what a drafter had guessed is told apart in the answers.
    """

    DEFAULT_CSS = """
    SettingsPanel { align: right middle; }
    SettingsPanel > Vertical { width: 72; max-width: 100%; height: 100%; padding: 0 1; background: $surface;
        border: round $border; border-title-color: $text; border-subtitle-color: $text-muted; }
    SettingsPanel VerticalScroll { height: 1fr; scrollbar-size-vertical: 1; }
    SettingsPanel .heading { height: 1; color: $text-muted; text-style: bold; margin-top: 1; text-wrap: nowrap;
        text-overflow: ellipsis; }
    SettingsPanel TextArea { height: 5; border: none; background: $boost; padding: 0 1; }
    SettingsPanel TextArea:focus { border: none; background: $primary 15%; }
    SettingsPanel TextArea .text-area--placeholder { color: $text-muted; }
    SettingsPanel .field { height: 1; }
    SettingsPanel .mark { width: 2; color: $warning; }
    SettingsPanel .name { width: 19; }
    SettingsPanel Input, SettingsPanel Select { width: 16; height: 1; border: none; padding: 0; background: $boost; }
    SettingsPanel Input { padding: 0 1; }
    SettingsPanel Input:focus { border: none; background: $block-cursor-background; background-tint: transparent 0%; }
    SettingsPanel Input:focus > .input--placeholder { color: $text-muted; }
    SettingsPanel Input:ansi:focus > .input--placeholder { color: $block-cursor-foreground; text-style: none; }
    SettingsPanel Input.-wrong { background: $error 25%; }
    SettingsPanel .default { width: 1fr; margin-left: 2; color: $text-muted; text-wrap: nowrap;
        text-overflow: ellipsis; }
    SettingsPanel #advice { height: 2; margin-top: 1; color: $text-muted; }
    SettingsPanel #advice.-wrong { color: $error; }
    SettingsPanel #buttons { height: 1; margin-top: 1; }
    SettingsPanel Button { margin-right: 1; min-width: 8; }
    SettingsPanel.-flat .heading, SettingsPanel.-flat #advice, SettingsPanel.-flat #buttons { margin-top: 0; }
    SettingsPanel.-flat #advice { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    SettingsPanel.-flat #advice.-wrong { height: auto; max-height: 3; text-wrap: wrap; }
    SettingsPanel.-flat TextArea { height: 2; }
    SettingsPanel.-low TextArea { height: 3; }
    SettingsPanel.-tiny .name { width: 18; }
    SettingsPanel.-tiny .default { display: none; }
    SettingsPanel.-tiny Input, SettingsPanel.-tiny Select { width: 1fr; }
    """
    AUTO_FOCUS = ""
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-narrow")]  # noqa: RUF012 - Textual's own declaration
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (20, "-low"), (32, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f6", "give_up", "Cancel", priority=False),
        Binding("ctrl+u", "reset_field", "Reset field", priority=True),  # which empties no more than half of an Input
        Binding("ctrl+r", "reset", "Reset"),
    ]

    def __init__(
        self, system: str, typed: Mapping[str, str], defaults: Mapping[str, str], default_of: str, *, is_tinted: bool
    ) -> None:
        super().__init__()
        self._is_tinted = is_tinted
        self._system, self._typed, self._defaults, self._default_of = system, dict(typed), dict(defaults), default_of

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Content("how it answers")
            box.border_subtitle = Content("enter applies · esc gives up · ctrl+u resets one, ctrl+r all")
            with VerticalScroll(can_focus=False):
                yield Static("SYSTEM PROMPT", classes="heading")
                yield TextArea(safe_text(self._system), placeholder=Content("none"), compact=True, id="system")
                yield Static(line(f"{_CHANGED} differs from {self._default_of}"), classes="heading")
                for name in FIELDS:
                    if name == LOADING[0]:
                        yield Static("SPECULATION: the model is loaded again", classes="heading")
                    yield from self._field(name)
                yield from self._tint_field()
            yield Static(id="advice")
            with Horizontal(id="buttons"):
                yield Button("Apply", id="apply", variant="primary", compact=True)
                yield Button("Reset", id="reset", compact=True)
                yield Button("Save as default", id="default", compact=True)

    def _field(self, name: str) -> ComposeResult:
        typed, default = self._typed[name], self._defaults[name]
        with Horizontal(classes="field"):
            yield Static(_SAME, id=f"mark-{name}", classes="mark")
            yield Static(name, classes="name")
            if choices := CHOICES.get(name):
                yield Select(
                    [(choice, choice) for choice in choices], value=typed, allow_blank=False, compact=True, id=name
                )
            else:
                shown = "" if typed == default else safe_line(typed)
                yield Input(shown, placeholder=safe_line(default), compact=True, id=name)
            yield Static(line(default), id=f"default-{name}", classes="default")

    def _tint_field(self) -> ComposeResult:
        with Horizontal(classes="field"):
            yield Static(_SAME, classes="mark")
            yield Static(_TINT, classes="name")
            yield Select(
                [(choice, choice) for choice in _ON_OFF],
                value=_ON_OFF[not self._is_tinted],
                allow_blank=False,
                compact=True,
                id=_TINT,
            )
            yield Static("kept, and needs no loading", classes="default")

    def on_mount(self) -> None:
        self._mark_all()
        # It is in view in every size. Scrolling to it now would count the rows before a low screen makes them fewer.
        self.query_one("#temperature").focus(scroll_visible=False)

    # --- what is typed ---------------------------------------------------------------------------------------------

    def _text(self, name: str) -> str:
        widget = self.query_one(f"#{name}")
        return str(widget.value) if isinstance(widget, (Input, Select)) else ""

    def _mark_all(self) -> None:
        for name in FIELDS:
            is_different = is_changed(name, self._text(name), self._defaults[name])
            self.query_one(f"#mark-{name}", Static).update(_CHANGED if is_different else _SAME)
            default = self._defaults[name]
            self.query_one(f"#default-{name}", Static).update(line(f"{_BACK} {default}" if is_different else default))
            if name not in CHOICES:
                self.query_one(f"#{name}").set_class(self._problem(name) is not None, "-wrong")

    def _problem(self, name: str) -> UsageError | None:
        try:
            if text := self._text(name).strip():
                value_of(name, text)
        except UsageError as error:
            return error
        return None

    @on(Input.Changed)
    @on(Select.Changed)
    def _check(self, event: Input.Changed | Select.Changed) -> None:
        event.stop()
        self._mark_all()
        self._advise(event.control.id or "")

    @on(DescendantFocus)
    def _describe(self, event: DescendantFocus) -> None:
        self._advise(event.widget.id or "")

    def _advise(self, name: str) -> None:
        """What the field means, or what is wrong with what it says."""
        problem = self._problem(name) if name in FIELDS and name not in CHOICES else None
        advice = self.query_one("#advice", Static)
        advice.set_class(problem is not None, "-wrong")
        if problem is not None:
            advice.update(line(f"✗ {problem.message} {problem.hint}"))
            self.refresh(layout=True)  # in a low screen it takes more lines than the advice did
            self.call_after_refresh(self.query_one(f"#{name}").scroll_visible, animate=False)
        elif name == "system":
            advice.update("Who the model is and how it answers, from the next answer on. Enter begins a line here.")
        elif name == _TINT:
            advice.update("Tints the tokens that a drafter had guessed, in answers of this sitting.")
        else:
            is_different = name in FIELDS and is_changed(name, self._text(name), self._defaults[name])
            way_back = f"ctrl+u: back to {self._defaults[name]}. " if is_different else ""
            advice.update(line(way_back + HELP.get(name, "")))

    # --- what is done ----------------------------------------------------------------------------------------------

    def _choose(self, *, is_default: bool) -> None:
        typed = {name: self._text(name) for name in FIELDS}
        try:
            settings = read(self.query_one(TextArea).text, typed, self._defaults)
        except UsageError:
            wrong = next(name for name in FIELDS if self._problem(name) is not None)
            self.query_one(f"#{wrong}").focus()
            return
        self.dismiss(Chosen(settings, is_default, is_tinted=self._text(_TINT) == "on"))

    @on(Input.Submitted)
    def _apply(self, event: Input.Submitted) -> None:
        event.stop()
        self._choose(is_default=False)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id == "reset":
            self.action_reset()
        else:
            self._choose(is_default=event.button.id == "default")

    def action_reset(self) -> None:
        """Every field but the system prompt as it is when nothing is set here."""
        for name in FIELDS:
            self._reset(name)

    def action_reset_field(self) -> None:
        """The same of the field that has the focus."""
        if self.focused is not None:
            self._reset(self.focused.id or "")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Where there is nothing to reset, such as in the system prompt, the key is the field's own."""
        if action == "reset_field":
            return self.focused is not None and self.focused.id in FIELDS
        return super().check_action(action, parameters)

    @on(Click, ".default")
    def _reset_clicked(self, event: Click) -> None:
        if event.widget is not None:
            self._reset((event.widget.id or "").removeprefix("default-"))

    def _reset(self, name: str) -> None:
        widget = self.query_one(f"#{name}") if name in FIELDS else None
        if isinstance(widget, Input):
            widget.value = ""
        elif isinstance(widget, Select):
            widget.value = self._defaults[name]

    def action_give_up(self) -> None:
        self.dismiss(None)
