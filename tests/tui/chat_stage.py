"""The real app with its real engine process, a scripted model, and no watch over the machine."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Static
from waiting import PATIENCE_S

from runner.paths import user_paths
from runner.settings import load_settings
from runner.store import Store
from runner.tui import app as app_module
from runner.tui.app import RunnerApp
from runner.tui.screens.chat import ChatScreen
from runner.tui.services import Services
from runner.tui.widgets.hint import Hint

LONG = {"text": "word " * 4000, "token_s": 0.002}


class NoWatch:
    """Stands in for the watch over the machine: its samples differ from run to run."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


class Stage:
    """One app at a time; its store and its home are kept between them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = Store(user_paths().database)
        self.app: RunnerApp
        self.pilot: Pilot[int]

    def script(self, *replies: object, name: str = "model", **script: object) -> str:
        path = self.directory / f"{name}.script.json"
        path.write_text(json.dumps({"replies": replies, **script}))
        return str(path)

    def play(
        self,
        model: str,
        act: Callable[[Stage], Awaitable[None]],
        size: tuple[int, int] = (120, 40),
        *,
        has_toasts: bool = False,
    ) -> None:
        """Open the app with this model, and act in it."""
        paths = user_paths()
        settings = load_settings(paths)
        services = Services(
            paths=paths,
            settings=settings,
            load_options=settings.load_options(),
            store=self.store,
            model=model,
            is_offline=True,
        )

        async def run() -> None:
            self.app = RunnerApp(services)
            async with self.app.run_test(size=size, notifications=has_toasts) as self.pilot:
                await self.pilot.pause()
                await act(self)

        asyncio.run(run())

    @property
    def chat(self) -> ChatScreen:
        screen = self.app.screen_stack[0]
        assert isinstance(screen, ChatScreen)
        return screen

    @property
    def said(self) -> list[str]:
        return [turn.content for turn in self.chat.engine.conversation.turns]

    @property
    def hint(self) -> str:
        return str(self.chat.query_one(Hint).render())

    def shown(self, selector: str) -> str:
        return str(self.app.screen.query_one(selector, Static).render())

    async def until(self, is_true: Callable[[], object], what: str = "") -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_true():
            assert time.monotonic() < deadline, what or "it did not happen"
            await self.pilot.pause(0.01)
        await self.pilot.pause()

    async def ready(self) -> None:
        await self.until(lambda: self.chat.engine.state == "ready" and not self.chat.engine.is_busy, "no model")

    async def type(self, text: str) -> None:
        """Send a text from the prompt."""
        self.chat.box.prompt.put(text)
        await self.pilot.press("enter")

    async def ask(self, text: str) -> None:
        """Send a text, and wait for the end of its answer."""
        before = self.chat.totals.n_answers
        await self.type(text)
        await self.until(lambda: self.chat.totals.n_answers > before, f"no answer to {text!r}")
        await self.ready()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(app_module, "MachineWatch", NoWatch)
    monkeypatch.chdir(tmp_path)
    stage = Stage(tmp_path)
    yield stage
    stage.store.close()
