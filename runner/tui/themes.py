"""The three themes: runner-dark, runner-light, and ansi, which is made of the terminal's own colours.

Text has a contrast of at least 4.5 on every surface of the first two (a test computes it). Which one a terminal starts
with is a function of its environment. It knows no screen.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from textual.theme import Theme

if TYPE_CHECKING:
    from textual.app import App

DARK: Final = "runner-dark"
LIGHT: Final = "runner-light"
ANSI: Final = "ansi"

# Not "auto 60%", Textual's own: that is resolved in stylesheets, and not in the styles of a Content.
_MUTED_DARK: Final = {
    "text-muted": "#a8b1be",
    "foreground-muted": "#a8b1be",
    "text-disabled": "#8b94a2",
    "option-muted": "#a8b1be",
}
_MUTED_LIGHT: Final = {
    "text-muted": "#5b6068",
    "foreground-muted": "#5b6068",
    "text-disabled": "#60656d",
    "option-muted": "#5b6068",
}

_DARK = Theme(
    name=DARK,
    dark=True,
    background="#15181d",
    surface="#1b1f26",
    panel="#242933",
    foreground="#d6dae1",
    primary="#82aadc",
    secondary="#aa9ad2",
    accent="#6bbfae",
    success="#88c289",
    warning="#dcb66e",
    error="#ea8f8f",
    variables={
        **_MUTED_DARK,
        "border": "#82aadc",
        "border-blurred": "#3a4250",
        "block-cursor-background": "#2a4262",
        "block-cursor-foreground": "#f2f5f9",
        "block-cursor-blurred-background": "#2a303b",
        "block-cursor-blurred-foreground": "#d6dae1",
        "block-hover-background": "#232a35",
        "input-selection-background": "#3d5f8c",
        "input-selection-foreground": "#f2f5f9",
        "screen-selection-background": "#3d5f8c",
        "footer-background": "#1b1f26",
        "footer-key-foreground": "#82aadc",
        "scrollbar": "#3a4250",
        "scrollbar-hover": "#4c5768",
        "scrollbar-active": "#82aadc",
        "scrollbar-background": "#15181d",
        "scrollbar-background-hover": "#15181d",
        "scrollbar-background-active": "#15181d",
        "scrollbar-corner-color": "#15181d",
    },
)
_LIGHT = Theme(
    name=LIGHT,
    dark=False,
    background="#fbfaf7",
    surface="#f4f2ed",
    panel="#e9e6df",
    foreground="#2b2e34",
    primary="#245c99",
    secondary="#6b4f9e",
    accent="#0b6a5f",
    success="#2c6a30",
    warning="#7a5200",
    error="#a62f2f",
    variables={
        **_MUTED_LIGHT,
        "border": "#245c99",
        "border-blurred": "#8a867b",
        "block-cursor-background": "#cadef4",
        "block-cursor-foreground": "#12263c",
        "block-cursor-blurred-background": "#e3e0d8",
        "block-cursor-blurred-foreground": "#2b2e34",
        "block-hover-background": "#ebe8e1",
        "input-selection-background": "#bcd6f2",
        "input-selection-foreground": "#12263c",
        "screen-selection-background": "#bcd6f2",
        "footer-background": "#f4f2ed",
        "footer-key-foreground": "#245c99",
        "scrollbar": "#8a867b",
        "scrollbar-hover": "#706c62",
        "scrollbar-active": "#245c99",
        "scrollbar-background": "#fbfaf7",
        "scrollbar-background-hover": "#fbfaf7",
        "scrollbar-background-active": "#fbfaf7",
        "scrollbar-corner-color": "#fbfaf7",
    },
)
# Whether the terminal is light or dark is not known: what is quiet is in the terminal's own colour, because "bright
# black" is unreadable in many palettes. A cursor has a ground of its own: Textual does not reverse the text of lists.
_ANSI = Theme(
    name=ANSI,
    ansi=True,
    primary="ansi_blue",
    secondary="ansi_magenta",
    accent="ansi_cyan",
    success="ansi_green",
    warning="ansi_yellow",
    error="ansi_red",
    foreground="ansi_default",
    background="ansi_default",
    surface="ansi_default",
    panel="ansi_default",
    boost="ansi_default",
    variables={
        "ansi-background": "ansi_default",
        "ansi-foreground": "ansi_default",
        "text-muted": "ansi_default",
        "text-disabled": "ansi_default",
        "foreground-muted": "ansi_default",
        "option-muted": "transparent",  # as the rest of the option: the terminal's own may be black on the blue cursor
        "border": "ansi_blue",
        "border-blurred": "ansi_default",
        "block-cursor-background": "ansi_blue",
        "block-cursor-foreground": "ansi_bright_white",
        "block-cursor-text-style": "bold",
        "block-cursor-blurred-text-style": "underline",
        "input-cursor-text-style": "reverse",
        "input-selection-background": "ansi_blue",
        "input-selection-foreground": "ansi_bright_white",
        "screen-selection-background": "ansi_blue",
        "screen-selection-foreground": "ansi_bright_white",
        "footer-key-foreground": "ansi_blue",
        "scrollbar": "ansi_blue",
        "scrollbar-background": "ansi_default",
        "scrollbar-background-hover": "ansi_default",
        "scrollbar-background-active": "ansi_default",
        "markdown-h1-color": "ansi_blue",
    },
)
THEMES: Final[tuple[Theme, ...]] = (_DARK, _LIGHT, _ANSI)
NAMES: Final[tuple[str, ...]] = tuple(theme.name for theme in THEMES)


def native_colours(environ: Mapping[str, str] = os.environ) -> bool | None:
    """For App's `ansi_color`: with NO_COLOR Textual takes all colours out, and not only to shades of grey."""
    return True if "NO_COLOR" in environ else None


def register(app: App[Any]) -> None:
    """Make the themes known to the app. Without colours the cursor is underlined, which is all that is left of it."""
    for theme in THEMES:
        app.register_theme(_underlined(theme) if app.no_color else theme)


def _underlined(theme: Theme) -> Theme:
    return replace(theme, variables={**theme.variables, "block-cursor-text-style": "bold underline"})


def after(name: str, *, is_without_colour: bool = False) -> str:
    """The theme after `name`, around. Without colours there is ansi alone: it reverses what others colour."""
    if is_without_colour:
        return ANSI
    return NAMES[(NAMES.index(name) + 1) % len(NAMES)] if name in NAMES else DARK


def chosen(remembered: str, *, is_without_colour: bool = False, environ: Mapping[str, str] = os.environ) -> str:
    """What to start with: without colours ansi; else what was chosen last; else what the terminal says of itself."""
    if is_without_colour:
        return ANSI
    if remembered in NAMES:
        return remembered
    if _n_colours(environ) < 256:
        return ANSI
    return LIGHT if _is_light(environ.get("COLORFGBG", "")) else DARK


def _n_colours(environ: Mapping[str, str]) -> int:
    """As the variables tell it; a terminal that says nothing of colours is taken to have 16."""
    if environ.get("COLORTERM", "").strip().lower() in ("truecolor", "24bit", "yes"):
        return 2**24
    term = environ.get("TERM", "").lower()
    return 256 if "256" in term or term.startswith(("xterm-kitty", "alacritty", "foot", "wezterm", "ghostty")) else 16


def _is_light(colorfgbg: str) -> bool:
    """Whether the background, the last number of "0;15" or "0;default;15", is one of the light ones of the 16."""
    number = colorfgbg.rpartition(";")[2]
    return number.isascii() and number.isdigit() and int(number) in (7, *range(9, 16))
