"""Keys as people know them: "ctrl+o" is ^o, "f1" is F1, "question_mark" is ?. Pure functions; it knows no binding."""

from __future__ import annotations

from typing import Final

from textual.keys import format_key

_NAMES: Final = {
    "escape": "Esc",
    "enter": "Enter",
    "tab": "Tab",
    "space": "Space",
    "backspace": "Backspace",
    "delete": "Del",
    "home": "Home",
    "end": "End",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
}
_MODIFIERS: Final = {"shift": "Shift+", "alt": "Alt+", "super": "Super+", "meta": "Meta+", "hyper": "Hyper+"}


def key_names(keys: str, separator: str = ", ") -> str:
    """Textual's "ctrl+o,f2" as "^o, F2"; "" for no keys."""
    return separator.join(key_name(key) for key in keys.split(",") if key.strip())


def key_name(key: str) -> str:
    """One key with its modifiers."""
    *modifiers, name = key.strip().split("+")
    shown = _NAMES.get(name) or (name.upper() if _is_function(name) else format_key(name))
    before = "".join(_MODIFIERS.get(one, "") for one in modifiers)
    return f"{before}{'^' if 'ctrl' in modifiers else ''}{shown}"


def _is_function(name: str) -> bool:
    return name[:1] == "f" and name[1:].isdigit()
