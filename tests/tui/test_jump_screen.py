"""Jump mode puts a letter on everything that can be reached, and a letter goes there."""

from __future__ import annotations

from typing import Any

import pytest
from one_screen import OneScreen, running, seen
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Button, Checkbox, Input, Static

from runner.tui.screens.jump import JumpScreen, jump_targets


class Below(Screen[None]):
    def __init__(self) -> None:
        super().__init__()
        self.pressed = 0

    def compose(self) -> ComposeResult:
        yield Input(id="first")
        yield Button("press", id="press")
        yield Checkbox("check", id="check")
        yield Input(id="hidden", classes="hidden")
        yield Clicked("click", classes="jumpable")
        with VerticalScroll(id="long", can_focus=False):
            yield Static("\n".join("line" for _ in range(200)))
            yield Input(id="below-the-screen")

    def on_button_pressed(self) -> None:
        self.pressed += 1


class Clicked(Static):
    n_clicks = 0

    def on_click(self) -> None:
        self.n_clicks += 1


def on_below(body: Any) -> None:
    app = OneScreen(Below)

    async def run(pilot: Pilot[Any]) -> None:
        below = app.screen
        assert isinstance(below, Below)
        below.query_one("#hidden").display = False
        await pilot.pause()
        await body(pilot, app, below)

    running(app, run)


async def jump(pilot: Pilot[Any], app: OneScreen, below: Below, key: str) -> None:
    app.push_screen(JumpScreen(below))
    await pilot.pause()
    await pilot.press(key)
    await pilot.pause()
    await pilot.pause()


def test_what_is_hidden_or_off_the_screen_gets_no_letter() -> None:
    async def body(_pilot: Pilot[Any], _app: OneScreen, below: Below) -> None:
        targets = jump_targets(below)
        assert [target.widget.id for target in targets] == ["first", "press", "check", None]
        assert [target.letter for target in targets] == ["a", "s", "d", "f"]

    on_below(body)


def test_what_is_in_something_hidden_gets_no_letter() -> None:
    async def body(pilot: Pilot[Any], _app: OneScreen, below: Below) -> None:
        below.query_one("#long").mount(Input(id="within"))
        below.query_one("#long").display = False
        await pilot.pause()
        assert [target.widget.id for target in jump_targets(below)] == ["first", "press", "check", None]

    on_below(body)


def test_a_letter_focuses_presses_or_clicks() -> None:
    async def body(pilot: Pilot[Any], app: OneScreen, below: Below) -> None:
        await jump(pilot, app, below, "a")
        assert app.focused is below.query_one("#first")
        await jump(pilot, app, below, "s")
        assert below.pressed == 1
        await jump(pilot, app, below, "d")
        assert below.query_one("#check", Checkbox).value
        await jump(pilot, app, below, "f")
        assert below.query_one(Clicked).n_clicks == 1

    on_below(body)


@pytest.mark.parametrize("key", ["escape", "f1"])
def test_escape_leaves_and_other_keys_do_nothing(key: str) -> None:
    async def body(pilot: Pilot[Any], app: OneScreen, below: Below) -> None:
        await jump(pilot, app, below, key)
        assert (app.screen is below) == (key == "escape")
        assert below.pressed == 0

    on_below(body)


def test_a_click_on_a_letter_goes_there_and_elsewhere_leaves() -> None:
    async def body(pilot: Pilot[Any], app: OneScreen, below: Below) -> None:
        app.push_screen(JumpScreen(below))
        await pilot.pause()
        assert "Type a letter" in seen(app)
        await pilot.click("#jump-s")
        await pilot.pause()
        await pilot.pause()
        assert app.screen is below
        assert below.pressed == 1
        app.push_screen(JumpScreen(below))
        await pilot.pause()
        await pilot.click(offset=(60, 30))
        await pilot.pause()
        assert app.screen is below

    on_below(body)
