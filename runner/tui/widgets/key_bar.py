"""The bottom line: the keys that do something here. It knows nothing but the bindings of what has the focus."""

from __future__ import annotations

from textual.widgets import Footer


class KeyBar(Footer):
    """Textual's footer, close together; the palette is one of our own actions."""

    DEFAULT_CSS = """
    KeyBar { background: $panel; color: $text-muted; }
    """

    def __init__(self) -> None:
        super().__init__(show_command_palette=False, compact=True)
