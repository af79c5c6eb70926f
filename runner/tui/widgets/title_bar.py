"""The top line: the modes, the model and where it runs, how full its context is, and what the engine is doing.

It shows what it is told and posts GoTo when a mode is clicked; it knows no screen.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.events import Click
from textual.widgets import Static

from runner.events import Loaded, Progress, Stats
from runner.status_text import SEPARATOR, context_used
from runner.tui.content import line
from runner.tui.messages import (
    MODES,
    AnswerEnded,
    AnswerStep,
    EngineMessage,
    EngineState,
    GoTo,
    Lent,
    LoadBegan,
    LoadEnded,
    LoadStep,
    Mode,
    TakenBack,
)
from runner.tui.model_names import short_name

_METER_CELLS = 8
# A state is told apart by its mark and its word, and by its colour where there are colours.
_STATES: dict[EngineState, tuple[str, str, str]] = {
    "empty": ("○", "no model", "$text-muted"),
    "loading": ("◐", "loading", "$warning"),
    "ready": ("●", "ready", "$success"),
    "answering": ("▶", "answering", "$accent"),
    "stopping": ("■", "stopping", "$warning"),
}
_LENT = ("◐", "measuring", "$warning")


class ModeTab(Static):
    """A mode's name, to be clicked."""

    def __init__(self, name: Mode, *, is_current: bool) -> None:
        super().__init__(Content(name.capitalize()), classes="-current" if is_current else "")
        self._mode_name = name

    def on_click(self, event: Click) -> None:
        event.stop()
        self.post_message(GoTo(self._mode_name))


class TitleBar(Horizontal):
    """One line over every mode. current: the mode that it stands over."""

    SCOPED_CSS = False  # its rules ask for classes of the screen, which is outside of it
    DEFAULT_CSS = """
    TitleBar { height: 1; background: $panel; color: $text; padding: 0 1; }
    TitleBar > Static { width: auto; height: 1; }
    TitleBar #brand { color: $accent; text-style: bold; margin-right: 2; }
    TitleBar ModeTab { color: $text-muted; padding: 0 1; }
    TitleBar ModeTab:hover { color: $text; text-style: underline; }
    TitleBar ModeTab.-current { color: $text; text-style: bold reverse; }
    TitleBar #model { width: 1fr; text-align: right; padding: 0 2; text-overflow: ellipsis; text-wrap: nowrap; }
    TitleBar #meter { color: $text-muted; margin-right: 2; }
    .-tiny TitleBar #brand, .-tiny TitleBar #meter, .-tiny TitleBar ModeTab { display: none; }
    .-tiny TitleBar ModeTab.-current { display: block; }
    .-narrow TitleBar #meter { display: none; }
    """

    def __init__(self, current: str) -> None:
        super().__init__()
        self._current = current
        self._n_ctx = 0
        self._model_name = ""
        self._is_lent = False
        self._shown: dict[str, Content] = {}

    def compose(self) -> ComposeResult:
        yield Static("runner", id="brand")
        for name in MODES:
            yield ModeTab(name, is_current=name == self._current)
        yield Static("", id="model")
        yield Static("", id="meter")
        yield Static("", id="state")

    def show(self, state: EngineState, model: str, loaded: Loaded | None, *, is_lent: bool = False) -> None:
        """What the engine is doing, with which model. is_lent: a benchmark has the machine meanwhile."""
        self._is_lent = is_lent
        self._show_state(state)
        if loaded is None:
            self._show_model([model])
        else:
            self._show_model([loaded.info.name, loaded.info.quantization, loaded.info.backend])
            self._n_ctx = loaded.info.n_ctx

    def on_engine(self, message: EngineMessage) -> None:
        """Follow what the engine tells."""
        if isinstance(message, (Lent, TakenBack)):
            self._is_lent = isinstance(message, Lent)
        self._show_state(message.state, _percent(message))
        if message.state == "empty":  # what was loaded of it, and how, is gone
            self._show_model([self._model_name])
            self._show_used(0, 0)
        if isinstance(message, LoadBegan):
            self._show_model([message.model])
            self._show_used(0, 0)
        elif isinstance(message, LoadEnded):
            self.show(message.state, message.next_model or message.model, message.loaded, is_lent=self._is_lent)
        elif isinstance(message, AnswerStep) and isinstance(message.event, Stats):
            timings = message.event.timings
            self._show_used(timings.prompt_tokens + timings.completion_tokens, message.event.n_ctx)
        elif isinstance(message, AnswerEnded) and message.state != "empty" and message.turn and message.turn.timings:
            taken = message.turn.timings
            self._show_used(taken.get("prompt_tokens", 0) + taken.get("completion_tokens", 0), self._n_ctx)

    def show_context(self, used: int, n_ctx: int) -> None:
        """Tokens of the context in use, of so many; 0 of 0 when nobody knows."""
        self._n_ctx = n_ctx
        self._show_used(used, n_ctx)

    def _show_state(self, state: EngineState, detail: str = "") -> None:
        mark, word, colour = _LENT if self._is_lent and state == "empty" else _STATES[state]
        self._update("state", Content.styled(f"{mark} {detail or word}", colour))

    def _show_model(self, parts: list[str]) -> None:
        self._model_name, *about = parts
        self._update("model", line(SEPARATOR.join(part for part in (short_name(self._model_name), *about) if part)))

    def _show_used(self, used: int, n_ctx: int) -> None:
        text = f"ctx {context_used(used, n_ctx)} {_meter(used / n_ctx)}" if n_ctx and used else ""
        self._update("meter", Content(text))

    def _update(self, part: str, content: Content) -> None:
        """Show a part, if it says something else now: another width of it lays out the whole screen anew."""
        shown = self._shown.get(part, Content(""))
        if shown.markup != content.markup:
            self._shown[part] = content
            self.query_one(f"#{part}", Static).update(content, layout=shown.cell_length != content.cell_length)


def _percent(message: EngineMessage) -> str:
    """How far a load or the reading of a prompt is, instead of the state's word; "" when nothing says so."""
    if isinstance(message, (LoadStep, AnswerStep)) and isinstance(message.event, Progress) and message.event.total:
        progress = message.event
        word = "reading" if progress.stage == "prefill" else progress.stage
        return f"{word} {100 * progress.done // progress.total} %"
    return ""


def _meter(share: float) -> str:
    """A share of one as a bar of cells; anything at all fills one."""
    filled = min(_METER_CELLS, max(1, round(share * _METER_CELLS)))
    return "▓" * filled + "░" * (_METER_CELLS - filled)
