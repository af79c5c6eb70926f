"""Keys that come at once, as a terminal has kept them while it was slow: each goes where the one before it led."""

from __future__ import annotations

from chat_stage import Stage, stage
from textual import events
from textual.widgets import Input

from runner.tui.screens.help import HelpScreen
from runner.tui.widgets.transcript import Transcript

__all__ = ["stage"]  # the fixture

NAMES = {" ": "space", "/": "slash"}


def at_once(on: Stage, *keys: str) -> None:
    for key in keys:
        character = key if len(key) == 1 else None
        on.app.post_message(events.Key(NAMES.get(key, key), character))


def test_letters_after_the_key_of_the_filter_are_in_the_filter(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        at_once(on, "f2", *"/quit x")
        await on.until(lambda: on.app.current_mode == "models" and on.app.focused is not None)
        await on.until(lambda: on.app.screen.query_one("#filter", Input).value == "quit x", "it is not in the filter")
        at_once(on, *"yz", "enter", "f", "escape", "escape", "f5", "a")
        await on.until(lambda: on.app.current_mode == "chat" and on.chat.box.prompt.text == "a", "it is elsewhere")

    stage.play("", act)


def test_letters_after_the_key_that_edits_are_in_the_question(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.ask("one")
        on.chat.query_one(Transcript).focus()
        await on.pilot.pause()
        at_once(on, *"e and two")
        await on.until(lambda: on.chat.box.prompt.text == "one and two", f"it is {on.chat.box.prompt.text!r}")

    stage.play(stage.script({"text": "yes"}), act)


def test_a_paste_goes_where_the_key_before_it_led(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        at_once(on, "f1")
        on.app.post_message(events.Paste("fold"))
        await on.until(lambda: isinstance(on.app.screen, HelpScreen))
        await on.until(lambda: on.app.screen.query_one(Input).value == "fold", "it is not in the field of the help")

    stage.play("", act)


def test_the_program_can_be_left_from_a_dialog(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.pilot.press("f1")
        await on.until(lambda: isinstance(on.app.screen, HelpScreen))
        await on.pilot.press("ctrl+q")
        await on.until(lambda: not on.app.is_running, "it is still there")

    stage.play("", act)
