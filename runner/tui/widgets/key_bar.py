"""The bottom line: the keys that do something here, as many as have room. It knows only the bindings of the focus.

A key is shown whole or not at all. Help stays at the right end, in every width: it says all the others. Under a dialog
the line is empty: none of its keys does anything there, and a dialog says its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from textual.app import ComposeResult
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

from runner.measures import text_width

_HELP: Final = "help"
# What works everywhere gives way to what works here, in this order; the modes stand in the title bar too.
_APP_ORDER: Final = ("mode('models')", "command_palette", "mode('bench')", "mode('doctor')", "jump")


@dataclass(frozen=True, kw_only=True)
class ShownKey:
    """A key as the bar writes it. action: without its namespace."""

    key: str
    shown: str
    label: str
    action: str
    is_enabled: bool
    tooltip: str

    @property
    def width(self) -> int:
        return text_width(self.shown) + 1 + text_width(self.label)


def keys_with_room(keys: Sequence[ShownKey], width: int) -> tuple[ShownKey, ...]:
    """What is shown in so many columns, in the order of the bar; help, when it is among them, is the last one.

    The keys of the place come first, then those of the app by their worth; what has no room is left out.
    """
    shown_help = tuple(key for key in keys if key.action == _HELP)
    rest = [key for key in keys if key.action != _HELP]
    own = [key for key in rest if key.action not in _APP_ORDER]
    others = sorted((key for key in rest if key.action in _APP_ORDER), key=lambda key: _APP_ORDER.index(key.action))
    left = width - sum(key.width + 1 for key in shown_help)
    chosen: list[ShownKey] = []
    for key in (*own, *others):
        if key.width > left:
            break
        chosen.append(key)
        left -= key.width + 1
    return (*(key for key in rest if key in chosen), *shown_help)


class KeyBar(Footer):
    """Textual's footer, close together and without half a key; the palette is one of our own actions."""

    DEFAULT_CSS = """
    KeyBar { background: $panel; color: $text-muted; }
    KeyBar.-compact FooterKey.-help { dock: right; margin: 0; }
    """

    def __init__(self) -> None:
        super().__init__(show_command_palette=False, compact=True)
        self._chosen: tuple[ShownKey, ...] = ()

    def compose(self) -> ComposeResult:
        self._chosen = keys_with_room(self._keys(), self.size.width) if self._bindings_ready else ()
        for key in self._chosen:
            yield FooterKey(
                key.key,
                key.shown,
                key.label,
                key.action,
                disabled=not key.is_enabled,
                tooltip=key.tooltip,
                classes="-compact -help" if key.action == _HELP else "-compact",
            )  # compact as it is made: a key that is bound to the bar's is kept by it for ever

    def on_mount(self) -> None:
        self.app.screen_change_signal.subscribe(self, lambda _: self._make_anew(self.size.width))

    def bindings_changed(self, screen: Screen[object]) -> None:
        if not self._bindings_ready:
            super().bindings_changed(screen)
        elif screen.app.app_focus and self.is_attached and screen is self.screen:
            self._make_anew(self.size.width)

    def on_resize(self, event: Resize) -> None:
        if self._bindings_ready:
            self._make_anew(event.size.width)

    def _make_anew(self, width: int) -> None:
        """Make the keys again, if they are others now: the focus moves often, and a widget for each key costs."""
        if keys_with_room(self._keys(), width) != self._chosen:
            self.call_after_refresh(self.recompose)

    def _keys(self) -> tuple[ShownKey, ...]:
        """One key for each action that the focus has, in the order of the bindings: what has the focus, then the
        screen, then the app. None while a dialog lies over the screen; that of another mode keeps its own."""
        if self.screen in self.app.screen_stack[:-1]:
            return ()
        found: dict[str, ShownKey] = {}
        focused = self.screen.focused
        is_typing = focused is not None and focused.check_consume_key("slash", "/")  # Textual knows no "slash" for text
        for _, binding, is_enabled, tooltip in self.screen.active_bindings.values():
            if binding.show and binding.action not in found and not (is_typing and binding.key == "slash"):
                found[binding.action] = ShownKey(
                    key=binding.key,
                    shown=self.app.get_key_display(binding),
                    label=binding.description,
                    action=binding.action.removeprefix("app."),
                    is_enabled=is_enabled,
                    tooltip=tooltip or binding.description,
                )
        return tuple(found.values())
