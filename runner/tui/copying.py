"""Copies text by every way there is: the desktop's own tool, and the terminal (OSC 52). It never fails.

It says which ways were tried; it knows nothing of what is copied.
"""

from __future__ import annotations

import base64

from textual.app import App

from runner.clipboard import copy_by_tool

_OSC52_LIMIT = 74_994  # bytes of base64 that terminals take (xterm's limit; longer sequences are cut or ignored)

__all__ = ["by_terminal", "copied", "copy_by_tool"]


def by_terminal(app: App[object], text: str) -> bool:
    """Have the terminal copy `text`; whether it could be asked. Whether it obeyed, no terminal tells."""
    sound = text.encode("utf-8", "replace")
    if len(base64.b64encode(sound)) > _OSC52_LIMIT:
        return False
    app.copy_to_clipboard(sound.decode())
    return True


def copied(text: str, tool: str, has_asked_terminal: bool) -> str:
    """What to tell the user."""
    ways = [*([tool] if tool else []), *(["the terminal"] if has_asked_terminal else [])]
    if not ways:
        return "There is no clipboard here: /export PATH writes the chat to a file."
    return f"Copied {len(text)} characters (by {' and '.join(ways)})."
