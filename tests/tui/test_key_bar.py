"""The key bar shows whole keys, the most important first, and how to get help in every width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from one_screen import SIZES, OneScreen, running, seen, services, until
from textual.pilot import Pilot

from runner.tui.actions import bindings_of
from runner.tui.app import RunnerApp
from runner.tui.screens.doctor import DoctorScreen
from runner.tui.widgets.key_bar import KeyBar, ShownKey, keys_with_room


class WithKeys(OneScreen):
    BINDINGS = bindings_of("app")


def key(shown: str, label: str, action: str = "") -> ShownKey:
    return ShownKey(key=shown, shown=shown, label=label, action=action or label.lower(), is_enabled=True, tooltip=label)


KEYS = (
    key("s", "Start"),
    key("x", "Stop"),
    key("f1", "Help", "help"),
    key("f2", "Models", "mode('models')"),
    key("^o", "Jump", "jump"),
    key("^p", "Palette", "command_palette"),
)


def shown(width: int) -> list[str]:
    return [one.label for one in keys_with_room(KEYS, width)]


def test_with_room_all_are_shown_and_help_is_the_last() -> None:
    assert shown(80) == ["Start", "Stop", "Models", "Jump", "Palette", "Help"]


def test_what_works_here_stays_longest_and_no_key_is_cut() -> None:
    assert shown(47) == ["Start", "Stop", "Models", "Palette", "Help"]
    assert shown(30) == ["Start", "Stop", "Help"]
    assert shown(14) == ["Help"]
    for width in range(8, 80):
        assert sum(one.width + 1 for one in keys_with_room(KEYS, width)) - 1 <= width


@pytest.mark.parametrize("size", SIZES)
def test_help_is_at_the_right_end_in_every_size(size: tuple[int, int]) -> None:
    app = WithKeys(lambda: DoctorScreen(services()))

    async def body(pilot: Pilot[Any]) -> None:
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        last = seen(app).splitlines()[-1]
        assert last.startswith("r Again y Copy")
        assert last.endswith("f1 Help")
        await pilot.resize_terminal(24, size[1])
        await pilot.pause()
        await pilot.pause()
        assert seen(app).splitlines()[-1] == "r Again y Copy   f1 Help"
        assert app.screen.query_one(KeyBar).region.height == 1

    running(app, body, size)


def test_going_from_mode_to_mode_makes_no_key_anew(stage: Callable[[], RunnerApp]) -> None:
    app = stage()

    async def to(pilot: Pilot[Any], key: str, mode: str) -> None:
        await pilot.press(key)
        await until(pilot, lambda: app.current_mode == mode and bool(app.screen.query_one(KeyBar).children))
        await pilot.pause()
        await pilot.pause()

    async def body(pilot: Pilot[Any]) -> None:
        for key, mode in (("f4", "doctor"), ("f5", "chat")):
            await to(pilot, key, mode)
        bar = app.screen.query_one(KeyBar)
        keys = [*bar.children]
        for key, mode in (("f4", "doctor"), ("f5", "chat")) * 2:
            await to(pilot, key, mode)
        assert keys == [*bar.children]

    running(app, body)
