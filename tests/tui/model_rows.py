"""What the tests of the models screen share: rows, rooms, a hostile name, and an app around one widget."""

from __future__ import annotations

from typing import Any

from textual.app import App, ComposeResult
from textual.widget import Widget

from runner.tui import themes
from runner.tui.catalog import CatalogRow, Room, Rooms, RowFit

HOSTILE = "a[/]b [@click=app.quit]x[/] \x1b]52;c;eA==\x07 \x9b31m"
GIB = 2**30


def row(name: str = "small", **changes: Any) -> CatalogRow:
    values: dict[str, Any] = {
        "name": name,
        "place": "registry",
        "parameters": 8_000_000_000,
        "quant": "Q4_K_M",
        "size_bytes": 5 * 10**9,
        "fit": RowFit(verdict="fits", need_bytes=6 * GIB, free_bytes=20 * GIB),
        "context": 40960,
        "licence": "MIT",
        "searched": name.lower(),
    }
    return CatalogRow(**{**values, **changes})


def rooms(free: int = 20 * GIB, *, on_gpu: bool = False, ram: int = 0, bandwidth: float | None = None) -> Rooms:
    def room(backend: Any) -> Room:
        return Room(backend=backend, on_gpu=on_gpu, free_bytes=free, ram_bytes=ram, bandwidth_bytes_s=bandwidth)

    return Rooms(gguf=room("llamacpp"), native=room("native"))


class OneWidget(App[None]):
    """The widget, and every message of its that reached the app."""

    def __init__(self, widget: Widget, *kinds: type) -> None:
        super().__init__()
        themes.register(self)
        self.theme = themes.DARK
        self.widget = widget
        self.seen: list[Any] = []
        self._kinds = kinds

    def compose(self) -> ComposeResult:
        yield self.widget

    async def on_event(self, event: Any) -> None:
        await super().on_event(event)

    async def _on_message(self, message: Any) -> None:
        if isinstance(message, self._kinds):
            self.seen.append(message)
        await super()._on_message(message)


def text_of(app: App[Any]) -> str:
    """The screen as characters."""
    return "\n".join("".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips())
