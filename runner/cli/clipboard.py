"""Puts text on the clipboard, by the desktop's own tool and by the terminal (OSC 52), only when the user asks for it.

It never fails: it says which ways were tried. It knows nothing of what is copied.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess

from runner.cli import render

_TIMEOUT_S = 2.0
_OSC52_LIMIT = 74_994  # bytes of base64 that terminals take (xterm's limit; longer sequences are cut or ignored)


def copy(text: str) -> list[str]:
    """Copy `text`; returns the ways that took it, for people: the tool's name, "the terminal". Empty: none did."""
    return [*_by_tool(text), *_by_terminal(text)]


def _tools() -> list[list[str]]:
    """The tools that could reach a clipboard here, the likeliest first."""
    tools = [["pbcopy"]]
    if os.environ.get("WAYLAND_DISPLAY"):
        tools.append(["wl-copy"])
    if os.environ.get("DISPLAY"):
        tools += [["xclip", "-selection", "clipboard"], ["xsel", "--clipboard", "--input"]]
    tools += [["clip.exe"], ["termux-clipboard-set"]]
    return [tool for tool in tools if shutil.which(tool[0])]


def _by_tool(text: str) -> list[str]:
    for tool in _tools():
        try:
            subprocess.run(
                tool,
                input=text.encode("utf-8", "replace"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        return [tool[0]]
    return []


def _by_terminal(text: str) -> list[str]:
    encoded = base64.b64encode(text.encode("utf-8", "replace")).decode()
    if not render.is_terminal() or render.is_dumb() or len(encoded) > _OSC52_LIMIT:
        return []
    render.control(f"\x1b]52;c;{encoded}\x07")
    return ["the terminal"]
