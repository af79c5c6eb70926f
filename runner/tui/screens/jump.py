"""Jump mode: a letter over everything that can be reached; typing it goes there.

The letters are drawn over the screen below, which stays visible. It knows no mode: what can be reached is what can
have the focus, and what has the class "jumpable".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.errors import NoWidget
from textual.events import Click, Key, Resize
from textual.geometry import Offset, Region
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Button, Checkbox, Label, RadioButton

JUMPABLE: Final = "jumpable"
_LETTERS: Final = "asdfghjklqwertyuiopzxcvbnm"


@dataclass(frozen=True)
class JumpTarget:
    """A widget and the letter that goes to it, drawn at `at`, the widget's corner on the screen."""

    widget: Widget
    letter: str
    at: Offset


def jump_targets(screen: Screen[Any]) -> tuple[JumpTarget, ...]:
    """What can be reached on a screen and is to be seen, from the top down; at most one for each letter."""
    seen = [(region, widget) for widget in screen.walk_children(Widget) if (region := _shown(widget, screen))]
    seen.sort(key=lambda pair: (pair[0].y, pair[0].x))
    return tuple(
        JumpTarget(widget, letter, _corner(widget, region))
        for letter, (region, widget) in zip(_LETTERS, seen, strict=False)
    )


def reach(widget: Widget) -> None:
    """Do what a click on it would: press a button, else give it the focus."""
    if isinstance(widget, Button):
        widget.press()
    elif isinstance(widget, (Checkbox, RadioButton)):
        widget.focus()
        widget.toggle()
    elif widget.focusable:
        widget.focus()
    else:
        at = widget.region.offset
        widget.post_message(Click(widget, 0, 0, 0, 0, 1, False, False, False, screen_x=at.x, screen_y=at.y))


def _shown(widget: Widget, screen: Screen[Any]) -> Region | None:
    """Where it is on the screen, cut by what it is in; None where it cannot be reached or is not to be seen."""
    if not (widget.focusable or widget.has_class(JUMPABLE)) or not widget.display or not widget.visible:
        return None
    try:
        found = screen.find_widget(widget)
    except NoWidget:  # something that it is in is folded
        return None
    region = found.region.intersection(found.clip).intersection(screen.region)
    return region if region.area and found.region.y == region.y else None


def _corner(widget: Widget, region: Region) -> Offset:
    """Inside the border, where the widget has one: a title stands on the line."""
    has_border = widget.styles.border_left[0] not in ("", "none") and region.height > 2
    return region.offset + Offset(1, 1 if has_border else 0)


class JumpScreen(ModalScreen[Widget | None]):
    """The letters over `below`; what was reached is the result."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Back", show=False)]
    DEFAULT_CSS = """
    JumpScreen { background: $background 40%; layers: letters; align: center bottom; }
    JumpScreen .jump-letter {
        layer: letters; position: absolute; width: 3; height: 1;
        background: $accent; color: $background; text-style: bold; text-align: center;
    }
    JumpScreen .jump-letter:ansi { background: ansi_default; color: ansi_default; text-style: bold reverse; }
    JumpScreen #jump-help {
        layer: letters; dock: bottom; height: 1; width: 100%; background: $panel; color: $text; text-align: center;
    }
    """

    def __init__(self, below: Screen[Any]) -> None:
        super().__init__()
        self._below = below
        self._size = below.size
        self._targets = jump_targets(below)

    def compose(self) -> ComposeResult:
        for target in self._targets:
            letter = Label(Content(f" {target.letter} "), classes="jump-letter", id=f"jump-{target.letter}")
            letter.styles.offset = (target.at.x, target.at.y)
            yield letter
        yield Label(Content(_help(self._targets)), id="jump-help")

    def on_key(self, event: Key) -> None:
        target = next((one for one in self._targets if one.letter == event.key.lower()), None)
        if target is not None:
            event.stop()
            self._go(target)

    def on_click(self, event: Click) -> None:
        event.stop()
        clicked = event.widget.id if event.widget is not None else None
        target = next((one for one in self._targets if clicked == f"jump-{one.letter}"), None)
        if target is None:
            self.dismiss(None)
        else:
            self._go(target)

    def on_resize(self, event: Resize) -> None:
        if event.size != self._size:  # the letters would stand elsewhere
            self.dismiss(None)

    def action_leave(self) -> None:
        self.dismiss(None)

    def _go(self, target: JumpTarget) -> None:
        self.dismiss(target.widget)
        if target.widget.is_attached:
            self._below.call_after_refresh(reach, target.widget)


def _help(targets: Sequence[JumpTarget]) -> str:
    return "Type a letter to go there · Esc back" if targets else "Nothing can be reached here · Esc back"
