"""What to measure: a model, backends, sizes or speculation. Empty fields take the defaults of `runner bench`.

It gives a request and posts nothing but that the user wants to begin; it knows no engine and no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Checkbox, Input, Label, Select

from runner.bench.request import (
    DEFAULT_DEPTHS,
    DEFAULT_GEN,
    DEFAULT_PROMPTS,
    DEFAULT_REPETITIONS,
    GENRES,
    BenchRequest,
    token_counts,
)
from runner.config import LoadOptions
from runner.errors import UsageError
from runner.tui.content import line
from runner.tui.widgets.tick import Tick
from runner.types import BackendName

_BACKENDS: Final[tuple[tuple[BackendName, str], ...]] = (("native", "native"), ("llamacpp", "llama.cpp"))
# The field's name, what it is called here and on the command line, and its default.
_SIZES: Final = (
    ("prefill", "Prefill", "-p", ",".join(map(str, DEFAULT_PROMPTS))),
    ("decode", "Decode", "-n", ",".join(map(str, DEFAULT_GEN))),
    ("depth", "Depth", "-d", ",".join(map(str, DEFAULT_DEPTHS))),
    ("repeat", "Repeat", "-r", str(DEFAULT_REPETITIONS)),
)
_LABELS: Final = {option: shown for _, shown, option, _ in _SIZES}
_PLAIN_ONLY: Final = ("prefill", "depth")  # without a meaning for speculation


class Size(Input):
    """A field of numbers, from which Enter begins to measure: the key bar says so."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "Start")]


class BenchForm(Vertical):
    """offer: the models that are here. choose: one of them, or another one. request: what the fields say."""

    class Begin(Message):
        """The user wants to measure."""

    class End(Message):
        """The user wants to stop."""

    SCOPED_CSS = False  # its rules ask for classes of the screen, which is outside of it
    DEFAULT_CSS = """
    BenchForm { height: auto; }
    BenchForm Label { color: $text-muted; height: 1; }
    BenchForm Select { width: 100%; height: auto; }
    BenchForm #bench-backends { height: 1; margin-top: 1; }
    BenchForm Checkbox { width: auto; margin-right: 2; background: transparent; }
    BenchForm #bench-sizes { grid-size: 4; grid-columns: auto 1fr auto 1fr; grid-rows: 1; height: 2; grid-gutter: 0 1;
        margin-top: 1; }
    BenchForm Input { height: 1; background: $boost; }
    BenchForm Input:focus { background: $primary 25%; }
    BenchForm Input:ansi { text-style: underline; }
    BenchForm Button { margin-top: 1; width: 100%; }
    .-flat BenchForm #bench-sizes, .-flat BenchForm #bench-backends, .-flat BenchForm Button { margin-top: 0; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._models: tuple[str, ...] = ()
        self._is_running = False

    def compose(self) -> ComposeResult:
        yield Select[str]([], prompt="Choose a model", id="bench-model", compact=True)
        with Horizontal(id="bench-backends"):
            for backend, shown in _BACKENDS:
                yield Tick(shown, value=True, id=f"bench-{backend}", compact=True)
        yield Tick("speculation, on and off", id="bench-speculation", compact=True)
        with Grid(id="bench-sizes"):
            for name, shown, _, default in _SIZES:
                yield Label(shown)
                yield Size(placeholder=default, id=f"bench-{name}", restrict=r"[0-9, ]*", compact=True)
        yield Button("Start", id="bench-start", variant="primary", compact=True)

    @property
    def is_speculative(self) -> bool:
        """Whether genres are to be written with speculation and without, in place of prefill and decode."""
        return self.query_one("#bench-speculation", Checkbox).value

    @on(Checkbox.Changed, "#bench-speculation")
    def _show_what_counts(self) -> None:
        for name in _PLAIN_ONLY:
            self.query_one(f"#bench-{name}", Input).disabled = self.is_speculative

    # --- the model ---------------------------------------------------------------------------------------------------

    @property
    def model(self) -> str:
        """The name that is chosen, or ""."""
        value = self.query_one(Select).value
        return value if isinstance(value, str) else ""

    def offer(self, models: Sequence[str]) -> None:
        """Show these names; what was chosen stays chosen."""
        chosen = self.model
        self._models = tuple(models)
        self._set_options(chosen or (models[0] if models else ""))

    def choose(self, model: str) -> None:
        """Choose a model, also one that is not among those that are here."""
        self._set_options(model)

    def _set_options(self, chosen: str) -> None:
        names = dict.fromkeys((*self._models, *([chosen] if chosen else [])))
        select = self.query_one(Select)
        select.set_options([(line(name), name) for name in names])
        if chosen:
            select.value = chosen

    # --- the request -------------------------------------------------------------------------------------------------

    def request(self, load: LoadOptions, *, is_kv_chosen: bool, offline: bool) -> BenchRequest:
        """What the fields say. is_kv_chosen: the user has set load.kv_type. Raises UsageError."""
        if not self.model:
            raise UsageError("No model is chosen.", hint="Choose one in the list.")
        chosen = tuple(name for name, _ in _BACKENDS if self.query_one(f"#bench-{name}", Checkbox).value)
        if not chosen:
            raise UsageError("No backend is chosen.", hint="Choose native, llama.cpp or both.")
        repeat = self._text("repeat")
        if repeat is not None and not repeat.isdecimal():
            raise UsageError(f"Repeat is {repeat!r}.", hint="Give one number, such as 5.")
        is_speculative = self.is_speculative
        if is_speculative and load.speculation == "off":
            load = replace(load, speculation="auto")
        plain = {name: None if is_speculative else self._text(name) for name in _PLAIN_ONLY}
        try:
            return BenchRequest(
                model=self.model,
                load=load,
                genres=GENRES if is_speculative else (),
                n_prompt=token_counts("Prefill", plain["prefill"]),
                n_gen=token_counts("Decode", self._text("decode")),
                depths=token_counts("Depth", plain["depth"]),
                repetitions=None if repeat is None else int(repeat),
                backends=() if len(chosen) == len(_BACKENDS) else chosen,
                offline=offline,
                is_kv_chosen=is_kv_chosen,
            )
        except UsageError as error:
            raise UsageError(_by_fields(error.message), hint=_by_fields(error.hint)) from error

    def _text(self, name: str) -> str | None:
        return self.query_one(f"#bench-{name}", Input).value.strip().rstrip(",") or None

    def show_running(self, is_running: bool) -> None:
        self._is_running = is_running
        button = self.query_one(Button)
        button.label = Content("Stop" if is_running else "Start")
        button.variant = "error" if is_running else "primary"

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.post_message(self.End() if self._is_running else self.Begin())

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Begin())


def _by_fields(text: str) -> str:
    """A message that names options of the command line, by what the fields are called."""
    return " ".join(_LABELS.get(word, word) for word in text.split(" "))
