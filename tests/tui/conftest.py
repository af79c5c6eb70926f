"""What tests of the interface share: an app on a stage, and Textual spared the work that nobody looks at."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from live_samples import RAM_SAMPLE
from rich.console import RenderableType
from staged_app import CHECKS, NOON, TURNS, OneDay, StillEngine, StillWatch, explained_once
from textual._compositor import Compositor, visible_screen_stack
from textual.app import App
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot
from textual.screen import Screen

from runner.config import LoadOptions
from runner.paths import user_paths
from runner.settings import load_settings
from runner.store import Store
from runner.tui import app as app_module
from runner.tui.app import RunnerApp
from runner.tui.services import Services


def parse_once() -> None:
    """Every app parses the same stylesheets, a tenth of its time: here those of the same variables are parsed once."""
    parse, found = Stylesheet._parse_rules, {}

    def parsed(self: Stylesheet, *of: object, **named: object) -> object:
        own = of, tuple(named.items())
        if own not in self._parse_cache:
            key = own, frozenset(self._variables.items())
            if key not in found:
                found[key] = parse(self, *of, **named)
            self._parse_cache[own] = found[key]
        return self._parse_cache[own]

    Stylesheet._parse_rules = parsed


def compose_what_is_looked_at() -> None:
    """No terminal shows the frames of an app in a test, and they take a third of its time: those asked for are made,
    and one after keys are pressed and before an app ends, so that no screen is left that cannot be drawn."""
    render, press, end = Compositor.render_update, Pilot.press, App._shutdown

    def rendered(
        self: Compositor, full: bool = False, screen_stack: list[Screen] | None = None, simplify: bool = False
    ) -> RenderableType | None:
        if full:  # a picture
            return render(self, full, screen_stack, simplify)
        visible_screen_stack.set([] if screen_stack is None else screen_stack)
        self._dirty_regions.clear()
        return None

    async def pressed(self: Pilot[Any], *keys: str) -> None:
        await press(self, *keys)
        draw(self.app)

    async def ended(self: App[Any]) -> None:
        draw(self)
        await end(self)

    def draw(app: App[Any]) -> None:
        if app._running and app.screen_stack:
            visible_screen_stack.set(app._background_screens)
            app.screen._compositor.render_strips()

    Compositor.render_update = rendered  # type: ignore[method-assign]
    Pilot.press = pressed  # type: ignore[method-assign]
    App._shutdown = ended  # type: ignore[method-assign]


parse_once()
compose_what_is_looked_at()


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[], RunnerApp]]:
    """Makes the app; its store has two chats. The day is a fixed one, and the clock stands."""
    monkeypatch.setattr(app_module, "ChatEngine", StillEngine)
    monkeypatch.setattr(app_module, "MachineWatch", StillWatch)
    monkeypatch.setattr("runner.tui.screens.doctor.checks", lambda _paths, _stdout: iter(CHECKS))
    monkeypatch.setattr("runner.tui.screens.doctor.heading", lambda: "runner 0.1.0 on Linux x86_64")
    monkeypatch.setattr("runner.tui.screens.session_desk.date", OneDay)
    monkeypatch.setattr("runner.tui.exact_fit.explain", explained_once)
    for reader in ("catalog_reading", "exact_fit", "screens.first_run"):
        monkeypatch.setattr(f"runner.tui.{reader}.devices", lambda: (RAM_SAMPLE.device,))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    paths = user_paths()
    store = Store(paths.database, now=lambda: NOON)
    store.create_session(model="demo", title="Tides and the moon", turns=TURNS[:1])
    store.create_session(model="Qwen3-8B", backend="native", title="Triton notes", turns=TURNS)

    def make() -> RunnerApp:
        services = Services(
            paths=paths,
            settings=load_settings(paths),
            load_options=LoadOptions(),
            store=store,
            model="demo",
            is_offline=True,
        )
        return RunnerApp(services)

    yield make
    store.close()
    monkeypatch.undo()
    time.tzset()
