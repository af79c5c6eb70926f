"""Help says what can be done where the user is, can be searched, and fits the smallest screen."""

from __future__ import annotations

from typing import Any

import pytest
from one_screen import SIZES, OneScreen, running, seen
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input, OptionList, Select

from runner.chat_commands import COMMANDS
from runner.tui.actions import ACTIONS, actions_of
from runner.tui.screens.help import HelpGroup, HelpRow, HelpScreen, help_content, help_groups, matching


def test_every_action_is_in_the_help_of_its_mode() -> None:
    for where in ("app", "chat", "models", "bench", "doctor"):
        texts = {row.text for group in help_groups(where, None, ()) for row in group.rows}
        assert {action.help for action in (*actions_of(where), *actions_of("app"))} <= texts


def test_the_chats_help_has_the_slash_commands_and_the_others_do_not() -> None:
    def commands(screen: HelpScreen) -> list[str]:
        return [row.keys for group in screen._groups if group.title == "Slash commands" for row in group.rows]

    assert [keys.split()[0] for keys in commands(HelpScreen("chat"))] == [f"/{one.name}" for one in COMMANDS]
    assert commands(HelpScreen("doctor")) == []


def test_the_focused_widgets_own_keys_are_listed() -> None:
    app = OneScreen(Screen)

    async def body(pilot: Pilot[Any]) -> None:
        choices = OptionList("one", "two")
        await app.screen.mount(choices)
        choices.focus()
        await pilot.pause()
        group = next(one for one in help_groups("doctor", app.focused, ()) if one.title.startswith("The list"))
        assert {"Enter", "↓", "↑"} <= {row.keys for row in group.rows}

    running(app, body)


def test_what_has_the_focus_is_called_what_the_user_sees() -> None:
    app = OneScreen(Screen)

    async def body(pilot: Pilot[Any]) -> None:
        pane = VerticalScroll()
        pane.border_title = "Result"
        for widget, title in ((pane, "The pane “Result”"), (Input(), "The text field"), (Select([]), "The choice")):
            await app.screen.mount(widget)
            widget.focus()
            await pilot.pause()
            groups = help_groups("bench", app.focused, ())
            assert f"{title} that has the focus" in [group.title for group in groups]

    running(app, body)


def test_the_prompts_own_keys_are_listed_and_a_row_of_the_palette_names_its_entry() -> None:
    groups = help_groups("chat", None, ())
    prompt = next(group for group in groups if group.title == "Prompt")
    assert {"Enter", "^j, Alt+Enter", "@file", "^c"} <= {row.keys for row in prompt.rows}
    assert "^p Why this backend" in {row.keys for group in groups for row in group.rows}
    assert "Prompt" not in {group.title for group in help_groups("doctor", None, ())}


def test_a_search_leaves_the_rows_that_have_every_word() -> None:
    groups = (HelpGroup("A", (HelpRow("^r", "Answer again."), HelpRow("^n", "A new chat."))),)
    assert [row.keys for group in matching(groups, "AGAIN answer") for row in group.rows] == ["^r"]
    assert [row.keys for group in matching(groups, "^n") for row in group.rows] == ["^n"]
    assert matching(groups, "nothing of this kind") == ()


@pytest.mark.parametrize("width", [30, 36, 60, 86])
def test_no_line_is_wider_than_there_is_room(width: int) -> None:
    commands = tuple((f"/{one.name} {one.argument}", one.help) for one in COMMANDS)
    content = help_content(help_groups("chat", None, commands), width)
    assert max(line.cell_length for line in content.split("\n")) <= width


@pytest.mark.parametrize("size", SIZES)
def test_it_is_searched_scrolled_and_left_by_keys(size: tuple[int, int]) -> None:
    app = OneScreen(lambda: HelpScreen("chat"))

    async def body(pilot: Pilot[Any]) -> None:
        await pilot.pause()
        first = seen(app)
        assert ACTIONS[0].help not in first or size[1] > 12
        await pilot.press("pagedown")
        await pilot.pause()
        if size[1] <= 24:
            assert seen(app) != first
        await pilot.press(*"fold")
        await pilot.pause()
        assert app.screen.query_one(Input).value == "fold"
        assert "thought" in seen(app)
        await pilot.press(*" nonesuch")
        await pilot.pause()
        assert "Nothing here is called that." in seen(app)
        await pilot.press("escape")
        await pilot.pause()
        assert app.result is None

    running(app, body, size)
