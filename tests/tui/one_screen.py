"""An app around one screen: the themes and what screens ask for, without an engine's process or a watch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from textual import on
from textual.app import App
from textual.message import Message
from textual.pilot import Pilot
from textual.screen import Screen

from runner.config import LoadOptions
from runner.paths import user_paths
from runner.settings import load_settings
from runner.store import Store
from runner.tui import themes
from runner.tui.messages import BenchModel, GoTo, OpenModel, ResumeChat, Write
from runner.tui.palette import RunnerCommands
from runner.tui.services import Services

HOSTILE = "a[/]b [@click=app.quit]x[/] \x1b]52;c;eA==\x07 \x9b31m"
HARMLESS = "a[/]b [@click=app.quit]x[/] ]52;c;eA== 31m"
SIZES = ((200, 60), (120, 40), (80, 24), (40, 12))


def services(**others: Any) -> Services:
    paths = user_paths()
    settings = load_settings(paths)
    given: dict[str, Any] = {
        "paths": paths,
        "settings": settings,
        "load_options": LoadOptions(),
        "store": Store(paths.database),
        "model": "demo",
        "is_offline": True,
    }
    return Services(**{**given, **others})


class OneScreen(App[Any]):
    """`made` is called when the app runs. result: of a modal screen; wishes: what reached the app."""

    COMMANDS = {RunnerCommands}  # noqa: RUF012

    def __init__(self, made: Callable[[], Screen[Any]], given: Services | None = None) -> None:
        super().__init__()
        themes.register(self)
        self.theme = themes.DARK
        self.services = given
        self.result: Any = "nothing yet"
        self.wishes: list[Message] = []
        self.below = made

    def on_mount(self) -> None:
        self.push_screen(self.below(), self._ended)

    def on_unmount(self) -> None:
        if self.services is not None and self.services.store is not None:
            self.services.store.close()

    def _ended(self, result: Any) -> None:
        self.result = result

    @on(GoTo)
    @on(OpenModel)
    @on(BenchModel)
    @on(ResumeChat)
    @on(Write)
    def _wish(self, message: Message) -> None:
        self.wishes.append(message)


def running(app: App[Any], body: Callable[[Pilot[Any]], Awaitable[None]], size: tuple[int, int] = (120, 40)) -> None:
    """Run the app without a terminal and do `body` with it."""

    async def run() -> None:
        async with app.run_test(size=size, notifications=True) as pilot:
            await pilot.pause()
            await body(pilot)

    asyncio.run(run())


async def until(pilot: Pilot[Any], holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that a thread brings about."""
    for _ in range(round(seconds / 0.05)):
        if holds():
            return
        await pilot.pause(0.05)
    raise AssertionError(f"it did not happen in {seconds:g} s")


def seen(app: App[Any]) -> str:
    """What is on the screen, as text."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


def said(app: App[Any]) -> list[str]:
    """The texts of the notifications, whole: on the screen a long path would break them anywhere."""
    return [notification.message for notification in app._notifications]
