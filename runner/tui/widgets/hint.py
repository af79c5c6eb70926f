"""The line under the prompt: what Enter and Esc do now, or what has just been done, which may take two.

It shows what it is told; it knows no engine. While it tells something, what it lies in has the class -telling.
"""

from __future__ import annotations

from time import monotonic
from typing import Literal

from textual.content import Content
from textual.dom import DOMNode
from textual.geometry import Size
from textual.timer import Timer
from textual.visual import VisualType
from textual.widgets import Static

from runner.measures import text_width
from runner.tui.content import line
from runner.tui.messages import EngineState

_TOLD_FOR_S = 6.0
_READ_S = 2.0  # so long at least, when there are news of the engine, which it may know nothing of
_LEAST_S = 0.05  # Textual's timers skip what is in the past
_KEYS: dict[EngineState, str] = {
    "empty": "enter sends, and loads the model first",
    "loading": "loading · what you send is answered after that · esc gives up",
    "ready": "enter send · ctrl+j new line · / commands · @ files",
    "answering": "esc stops",
    "stopping": "stopping · esc, where that takes seconds, ends the engine",
}
_BETWEEN = " · "
_LENT = "a benchmark has the machine · f3 shows it · x stops it there"


class Hint(Static):
    """show: the state's keys; tell: something for some seconds, in place of them."""

    DEFAULT_CSS = """
    Hint { height: 1; width: 1fr; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self) -> None:
        super().__init__(id="hint")
        self._keys = _KEYS["empty"]
        self._timer: Timer | None = None
        self._told_at = 0.0

    def on_mount(self) -> None:
        self._draw()

    def show(self, state: EngineState, *, is_lent: bool = False) -> None:
        """What the keys do while the engine is in this state. is_lent: a benchmark has the machine meanwhile."""
        keys = _LENT if is_lent and state == "empty" else _KEYS[state]
        is_news, self._keys = keys != self._keys, keys
        if is_news and self._timer is not None:
            self._timer.stop()
            left_s = max(_LEAST_S, self._told_at + _READ_S - monotonic())
            self._timer = self.set_timer(left_s, self._end_telling)
        elif is_news and self._timer is None:
            self._draw()

    def tell(self, text: str, level: Literal["info", "warning"] = "info") -> None:
        """Say something once."""
        if self._timer is not None:
            self._timer.stop()
        self.update(line(text, "$warning" if level == "warning" else "$text"))
        self._told_at = monotonic()
        self._line.add_class("-telling")
        self._timer = self.set_timer(_TOLD_FOR_S, self._end_telling)

    def _end_telling(self) -> None:
        self._timer = None
        self._line.remove_class("-telling")
        self._draw()

    @property
    def _line(self) -> DOMNode:
        """What it lies in: the whole screen has many more widgets to be styled anew."""
        return self.ancestors[0]

    def _draw(self) -> None:
        self.update(Content(self._keys))

    def get_content_width(self, container: Size, viewport: Size) -> int:
        """What all the keys would need: `render` leaves out what has no room."""
        return text_width(self._keys) if self._timer is None else super().get_content_width(container, viewport)

    def render(self) -> VisualType:
        return super().render() if self._timer is not None else Content(_keys_with_room(self._keys, self.size.width))


def _keys_with_room(keys: str, width: int) -> str:
    """The first of the keys, each whole; at least one."""
    shown, *others = keys.split(_BETWEEN)
    for other in others:
        if text_width(shown + _BETWEEN + other) > width:
            break
        shown += _BETWEEN + other
    return shown
