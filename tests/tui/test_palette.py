"""The palette offers every action, the themes, the models that are here and recent chats; their names are only text."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from one_screen import HARMLESS, HOSTILE, SIZES, OneScreen, running, seen, services, until
from textual.command import CommandPalette
from textual.content import Content
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import OptionList
from waiting import PATIENCE_S

from runner.transcript import Turn
from runner.tui import palette, themes
from runner.tui.actions import actions_of
from runner.tui.messages import OpenModel, ResumeChat
from runner.tui.palette import RunnerCommands, _markup
from runner.tui.screens.doctor import DoctorScreen
from runner.tui.services import Services


def offered(app: OneScreen) -> list[str]:
    options = app.screen.query_one(OptionList).options
    return [Content.assemble(option.prompt).plain.split("\n")[0] for option in options]  # type: ignore[arg-type]


async def type_and_take(pilot: Pilot[Any], app: OneScreen, text: str, first: str) -> None:
    app.action_command_palette()
    await pilot.pause()
    await pilot.press(*text)
    await until(pilot, lambda: bool(offered(app)) and offered(app)[0].startswith(first))
    await pilot.press("enter")
    await pilot.pause()


def test_every_action_of_the_mode_and_of_the_app_is_offered_with_its_keys() -> None:
    given = services()
    app = OneScreen(lambda: DoctorScreen(given), given)

    async def body(pilot: Pilot[Any]) -> None:
        app.action_command_palette()
        await pilot.pause()
        wanted = {one.label for one in (*actions_of("doctor"), *actions_of("app")) if one.name != "command_palette"}
        await until(pilot, lambda: len(offered(app)) >= len(wanted) + len(themes.NAMES) + 1)
        names = {name.split("  ")[0] for name in offered(app)}
        assert wanted <= names
        assert {f"Theme: {name}" for name in themes.NAMES} <= names
        assert "Open demo" in names
        assert "Help  F1" in offered(app)

    running(app, body)


def test_an_action_of_the_mode_runs_and_a_theme_is_taken() -> None:
    given = services()
    app = OneScreen(lambda: DoctorScreen(given), given)

    async def body(pilot: Pilot[Any]) -> None:
        await type_and_take(pilot, app, "back", "Back")
        assert [getattr(wish, "mode", "") for wish in app.wishes] == ["chat"]
        await type_and_take(pilot, app, "light", "Theme: runner-light")
        assert app.theme == themes.LIGHT

    running(app, body)


def test_a_model_is_opened_and_a_chat_resumed() -> None:
    given = services()
    assert given.store is not None
    kept = given.store.create_session(model="demo", title=HOSTILE, turns=[Turn(role="user", content="hello")])
    app = OneScreen(lambda: Screen(), given)

    async def body(pilot: Pilot[Any]) -> None:
        await type_and_take(pilot, app, "open demo", "Open demo")
        await type_and_take(pilot, app, "resume a[/]b", f"Resume {HARMLESS}")
        assert app.wishes == [OpenModel("demo"), ResumeChat(kept.id)] or [
            (type(wish), getattr(wish, "model", getattr(wish, "id", ""))) for wish in app.wishes
        ] == [(OpenModel, "demo"), (ResumeChat, kept.id)]

    running(app, body)


def test_who_types_before_the_disk_was_read_finds_the_models_too(monkeypatch: pytest.MonkeyPatch) -> None:
    given = services()
    app = OneScreen(lambda: Screen(), given)
    read, is_typed = palette._on_this_machine, threading.Event()
    monkeypatch.setattr(palette, "_on_this_machine", lambda of: is_typed.wait(PATIENCE_S) and read(of))

    async def body(pilot: Pilot[Any]) -> None:
        app.action_command_palette()
        await pilot.pause()
        await pilot.press(*"open d")
        is_typed.set()
        await until(pilot, lambda: "Open demo" in offered(app))

    running(app, body)


@pytest.mark.parametrize("size", SIZES)
def test_a_hostile_title_is_shown_as_it_stands(size: tuple[int, int]) -> None:
    given = services()
    assert given.store is not None
    given.store.create_session(model=HOSTILE, title=HOSTILE)
    app = OneScreen(lambda: Screen(), given)

    async def body(pilot: Pilot[Any]) -> None:
        app.action_command_palette()
        await pilot.pause()
        await pilot.press(*"resume")
        await until(pilot, lambda: any("a[/]b" in name for name in offered(app)))
        assert f"Resume {HARMLESS}" in offered(app)
        assert "\x1b" not in seen(app)
        assert isinstance(app.screen, CommandPalette)

    running(app, body, size)


@pytest.mark.parametrize("text", [HARMLESS, "[", "\\", "end\\", "q\\[b]x", "\\\\[b]", "[[x]]", "$primary [$error]", ""])
def test_markup_of_a_help_text_shows_the_text(text: str) -> None:
    content = Content.from_markup(_markup(text))
    assert content.plain == text
    assert not content.spans


def test_a_registry_that_cannot_be_read_takes_nothing_but_the_models_away() -> None:
    given = services()
    given.paths.user_models_file.parent.mkdir(parents=True)
    given.paths.user_models_file.write_text("this is [no TOML")

    async def body(pilot: Pilot[Any]) -> None:
        provider = RunnerCommands(pilot.app.screen)
        await provider.startup()
        names = [hit.text async for hit in provider.discover() if hit.text is not None]  # type: ignore[union-attr]
        assert "Help" in names
        assert not [name for name in names if name.startswith("Open ")]

    running(OneScreen(lambda: Screen(), given), body)


def test_without_services_there_are_still_the_actions() -> None:
    async def body(pilot: Pilot[Any]) -> None:
        provider = RunnerCommands(pilot.app.screen)
        await provider.startup()
        assert any(hit.text == "Quit" for hit in [hit async for hit in provider.discover()])

    running(OneScreen(lambda: Screen()), body)
    assert isinstance(services(), Services)
    assert asyncio.iscoroutinefunction(RunnerCommands.startup)
