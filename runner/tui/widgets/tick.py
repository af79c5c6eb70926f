"""A box to tick that reads on every ground and without colours.

Textual's own has its cross in it when it is not ticked too, and its box is hardly another colour than what it is on.
"""

from __future__ import annotations

from textual.widgets import Checkbox


class Tick(Checkbox):
    """A Checkbox in brackets: [X], [ ], or [-] while it is disabled, whatever it was."""

    BUTTON_LEFT = BUTTON_RIGHT = ""
    DEFAULT_CSS = """
    Tick > .toggle--button, Tick.-on > .toggle--button { background: transparent; }
    Tick > .toggle--button { color: $text-muted; }
    Tick:ansi > .toggle--button { text-style: none; }
    """

    @property
    def BUTTON_INNER(self) -> str:  # type: ignore[override]
        if self.is_disabled:
            return "[-]"
        return "[X]" if self.value else "[ ]"
