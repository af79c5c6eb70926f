"""Keys and clicks that find Textual half done with what came before them: nothing happens, and the app goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from staged_app import on_stage
from textual.app import App, ComposeResult
from textual.command import CommandList, CommandPalette
from textual.pilot import Pilot
from textual.screen import ModalScreen, Screen
from textual.widgets import OptionList

from runner.tui.app import RunnerApp
from runner.tui.bursts import install


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in (
        (OptionList, "_move_page"),
        (OptionList, "_on_click"),
        (Screen, "dismiss"),
        (CommandPalette, "_gather_commands"),
        (CommandPalette, "_watch__list_visible"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # so that it is put back
    install()


class Listed(App[None]):
    def compose(self) -> ComposeResult:
        yield OptionList(*map(str, range(90)))


def running(act: Callable[[Listed, Pilot[None]], Awaitable[None]]) -> None:
    async def run() -> None:
        app = Listed()
        async with app.run_test(size=(40, 20)) as pilot:
            await act(app, pilot)

    asyncio.run(run())


@pytest.mark.parametrize("key", ["pageup", "pagedown"])
def test_a_page_key_before_a_list_is_laid_out_turns_no_page(key: str) -> None:
    async def act(app: Listed, pilot: Pilot[None]) -> None:
        options = app.query_one(OptionList)
        options.display = False
        await pilot.pause()
        options.highlighted = 45
        options._clear_caches()
        assert not options._lines
        getattr(options, {"pageup": "action_page_up", "pagedown": "action_page_down"}[key])()
        assert options.highlighted == 45
        options.display = True
        options.focus()
        while not (options._lines and options.scrollable_content_region.height):  # until then there are no pages still
            await pilot.pause(0.01)
        await pilot.press(key)
        await pilot.pause()
        assert abs(options.highlighted - 45) > 10, "there are pages now"

    running(act)


def test_a_click_on_a_row_that_is_gone_chooses_nothing() -> None:
    async def act(app: Listed, pilot: Pilot[None]) -> None:
        options = app.query_one(OptionList)
        options.styles.height = 20
        await pilot.click(options, offset=(4, 3))
        assert options.highlighted == 2
        shown = app.screen.get_style_at
        row = shown(5, 9)  # as the terminal still shows it
        assert row.meta["option"] == 8
        options.clear_options().add_options(["0", "1"])
        app.screen.get_style_at = lambda x, y: row if (x, y) == (5, 9) else shown(x, y)  # type: ignore[method-assign]
        await pilot.click(options, offset=(5, 9))
        await pilot.pause()
        assert options.highlighted is None

    running(act)


def test_a_dialog_that_is_left_twice_takes_no_other_screen_away() -> None:
    answers: list[Any] = []

    async def act(app: Listed, pilot: Pilot[None]) -> None:
        below, above = ModalScreen[int](), ModalScreen[int]()
        await app.push_screen(below, answers.append)
        await app.push_screen(above, answers.append)
        above.dismiss(1)
        above.dismiss(2)
        await pilot.pause()
        assert app.screen is below
        below.dismiss(3)
        below.dismiss(4)
        await pilot.pause()
        assert answers == [1, 3]

    running(act)


def test_a_palette_that_was_left_searches_no_more() -> None:
    async def act(app: Listed, pilot: Pilot[None]) -> None:
        app.action_command_palette()
        await pilot.pause()
        palette = app.screen
        assert isinstance(palette, CommandPalette)
        palette.dismiss()
        assert palette._gather_commands("quit") is None
        await pilot.pause()
        assert not palette.query(CommandList)
        palette._watch__list_visible()

    running(act)


def test_a_palette_is_opened_again_while_the_one_before_goes_away(stage: Callable[[], RunnerApp]) -> None:
    app = stage()

    async def act(pilot: Pilot[int]) -> None:
        app.action_command_palette()
        left = app.screen
        left.dismiss()
        app.action_command_palette()
        await pilot.pause()
        assert isinstance(app.screen, CommandPalette)
        assert app.screen is not left

    on_stage(app, (80, 24), act)
