"""A slider over context sizes: ←/→, the wheel, a click or a drag; four stops to a doubling.

It shows a number of tokens and posts another one; what that means for memory is others' business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from runner.measures import short_count

_LEAST: Final = 512
_STEPS_PER_DOUBLING: Final = 4


def stops(most: int, also: Sequence[int] = ()) -> tuple[int, ...]:
    """Contexts to choose from up to `most`: four to a doubling, in whole blocks of 128, and those of `also`."""
    found = {most, *(one for one in also if 0 < one <= most)}
    base = _LEAST
    while base < most:
        found |= {base + base * step // _STEPS_PER_DOUBLING for step in range(_STEPS_PER_DOUBLING)}
        base *= 2
    return tuple(sorted(value for value in found if value <= most))


class ContextSlider(Widget, can_focus=True):
    """One line: a track with a knob. `value` is one of the stops."""

    DEFAULT_CSS = """
    ContextSlider { height: 1; width: 1fr; color: $text-muted; pointer: pointer; }
    ContextSlider:focus { color: $text; text-style: bold; }
    ContextSlider:disabled { color: $text-disabled; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,minus", "step(-1)", "Less context", show=False),
        Binding("right,plus", "step(1)", "More context", show=False),
        Binding("home", "step(-1000)", "Least context", show=False),
        Binding("end", "step(1000)", "Most context", show=False),
    ]
    ALLOW_SELECT = False
    position = reactive(0)

    @dataclass
    class Changed(Message):
        """The user chose another context, in tokens."""

        n_ctx: int

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._stops: tuple[int, ...] = ()
        self._is_dragged = False

    def show(self, most: int, value: int) -> None:
        """From the least context to `most`, the knob at `value`. Posts nothing."""
        self._stops = stops(most, (value,)) if most else ()
        self.position = self._stops.index(value) if value in self._stops else max(0, len(self._stops) - 1)
        self.refresh()

    @property
    def value(self) -> int:
        """Tokens; 0 when there is nothing to choose."""
        return self._stops[self.position] if self._stops else 0

    def render(self) -> Content:
        if len(self._stops) < 2:
            return Content("")
        least, most = short_count(self._stops[0]), short_count(self._stops[-1])
        start, width = self._track()
        at = self._knob(width)
        track = Content.assemble(
            ("━" * at, "$primary"), ("●", "bold $accent"), ("─" * max(0, width - at - 1), "$text-muted")
        )
        return Content.assemble(least.rjust(start - 1), " ", track, " ", most)

    def _track(self) -> tuple[int, int]:
        """Where the track begins, and its length."""
        start = len(short_count(self._stops[0])) + 1
        return start, max(3, self.size.width - start - len(short_count(self._stops[-1])) - 1)

    def _knob(self, width: int) -> int:
        return round(self.position / (len(self._stops) - 1) * (width - 1))

    def action_step(self, by: int) -> None:
        """Move by so many stops."""
        self._choose(self.position + by)

    def _choose(self, position: int) -> None:
        position = max(0, min(position, len(self._stops) - 1))
        if self._stops and position != self.position:
            self.position = position
            self.post_message(self.Changed(self.value))

    def _choose_at(self, x: int) -> None:
        if len(self._stops) > 1:
            start, width = self._track()
            self._choose(round((x - start) / max(1, width - 1) * (len(self._stops) - 1)))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        event.stop()
        self._is_dragged = True
        self.capture_mouse()
        self._choose_at(event.x)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._is_dragged:
            self._choose_at(event.x)

    def on_mouse_up(self) -> None:
        self._is_dragged = False
        self.release_mouse()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_step(1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_step(-1)
