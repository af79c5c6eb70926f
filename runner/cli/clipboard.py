"""Puts text on the clipboard, by the desktop's own tool and by the terminal (OSC 52), only when the user asks for it.

It never fails: it says which ways were tried. It knows nothing of what is copied.
"""

from __future__ import annotations

import base64

from runner.cli import render
from runner.clipboard import copy_by_tool

_OSC52_LIMIT = 74_994  # bytes of base64 that terminals take (xterm's limit; longer sequences are cut or ignored)


def copy(text: str) -> list[str]:
    """Copy `text`; returns the ways that took it, for people: the tool's name, "the terminal". Empty: none did."""
    tool = copy_by_tool(text)
    return [*([tool] if tool else []), *_by_terminal(text)]


def _by_terminal(text: str) -> list[str]:
    encoded = base64.b64encode(text.encode("utf-8", "replace")).decode()
    if not render.is_terminal() or render.is_dumb() or len(encoded) > _OSC52_LIMIT:
        return []
    render.control(f"\x1b]52;c;{encoded}\x07")
    return ["the terminal"]
