"""The chat's screen as its user has it, with a real engine: questions, stopping, changing, commands, settings."""

from __future__ import annotations

import json
import os
import signal
import tomllib
from pathlib import Path
from typing import Literal

import pytest
from chat_stage import LONG, Stage, stage
from one_screen import seen
from textual.content import Content
from textual.widgets import Input, OptionList, Select, Static, TextArea
from textual.widgets._toast import Toast

from runner.chat_commands import COMMANDS
from runner.config import Grammar, LoadOptions
from runner.errors import RunnerError
from runner.message_files import Attachment
from runner.paths import user_paths
from runner.tui.markdown.sections import DRAFTED as MARK
from runner.tui.remembered import Remembered, read_remembered
from runner.tui.screens.confirm import Confirm
from runner.tui.screens.page import Page
from runner.tui.screens.settings_panel import SettingsPanel
from runner.tui.slash import run_command
from runner.tui.turns.entries import Answer
from runner.tui.turns.pieces import Prose
from runner.tui.widgets.context_meter import ContextMeter
from runner.tui.widgets.empty_chat import EmptyChat
from runner.tui.widgets.speculation_section import SpeculationSection

__all__ = ["stage"]  # the fixture

HOSTILE = "a[/]b [@click=app.quit]x[/] \x1b]52;c;eA==\x07 \x9b31m"


def shown(on: Stage) -> str:
    """The rows of the answers that are on the screen."""
    transcript = on.chat.transcript
    return "\n".join(transcript.render_line(y).text.rstrip() for y in range(transcript.size.height))


def test_a_question_is_answered_kept_counted_and_remembered(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        assert on.chat.query_one(EmptyChat).display
        await on.ask("hello")
        assert on.said == ["hello", "Hi."]
        assert not on.chat.query_one(EmptyChat).display
        await on.until(lambda: "answer" in str(on.chat.query_one(ContextMeter).render()))
        await on.pilot.press("up")
        assert on.chat.box.prompt.text == "hello"

    stage.play(stage.script("Hi."), act)
    assert not list(user_paths().data.glob("*-wal")), "the database is closed"
    assert [summary.title for summary in stage.store.sessions()] == ["hello"]
    assert "+hello" in user_paths().prompt_history.read_text()


def test_what_is_asked_while_the_model_loads_is_shown_and_answered_after(stage: Stage) -> None:
    slow = stage.script("Hi.", name="slow", load_s=0.5)

    async def act(on: Stage) -> None:
        await on.ready()
        on.chat.open_model(slow)
        await on.type("early")
        assert not on.chat.query_one(EmptyChat).display
        assert on.chat.transcript.display
        await on.until(lambda: on.said == ["early", "Hi."])

    stage.play(stage.script("Hi."), act)


def test_an_answer_has_the_name_of_the_model_that_gives_it(stage: Stage) -> None:
    slow = stage.script("Hi.", name="slow", load_s=0.5)

    async def act(on: Stage) -> None:
        def name() -> str:
            return [one.model for one in on.chat.transcript.document.entries if isinstance(one, Answer)][-1]

        await on.ready()
        await on.type(f"/model {slow}")
        await on.type("early")
        await on.until(lambda: on.chat.transcript.document.entries, "it was not asked")
        await on.until(lambda: name() == slow, "it has the name of the model before")
        await on.until(lambda: on.said == ["early", "Hi."])
        assert name() == slow
        on.chat.open_model(str(stage.directory / "gone.script.json"))
        await on.type("still there?")
        await on.until(lambda: len(on.said) == 4)
        assert name() == slow

    stage.play(stage.script("Hello."), act)


def test_the_title_bar_has_the_context_of_the_chat_that_is_open(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.ask("hello")
        assert "ctx" in on.shown("TitleBar #meter")
        shown = on.shown("TitleBar #meter")
        on.chat.open_model(str(stage.directory / "gone.script.json"))
        await on.until(lambda: "is still loaded" in on.shown("EmptyChat #where"))
        assert on.shown("TitleBar #meter") == shown
        await on.pilot.press("f2")
        await on.until(lambda: on.app.current_mode == "models")
        assert on.app.screen.query_one("TitleBar #meter", Static).render() == Content(shown)
        await on.pilot.press("f5", "ctrl+n", "f2")
        await on.until(lambda: on.app.current_mode == "models")
        assert "ctx" not in on.shown("TitleBar #meter")

    stage.play(stage.script("Hi."), act)


def test_a_second_question_waits_in_the_prompt(stage: Stage) -> None:
    never = stage.script("Hi.", name="never", load_s=60)

    async def act(on: Stage) -> None:
        await on.ready()
        on.chat.open_model(never)
        await on.type("first")
        await on.type("second")
        await on.until(lambda: on.chat.box.prompt.text == "second", "the second question was taken")
        await on.pilot.press("escape")
        await on.until(lambda: not on.chat.engine.is_busy)
        await on.pilot.press("up")
        assert on.chat.box.prompt.text == "first"

    stage.play(stage.script("Hi."), act)


def test_escape_stops_an_answer_at_once_and_keeps_what_came(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.type("talk")
        await on.until(lambda: "word" in on.chat.transcript.copy_answer(), "nothing came")
        await on.pilot.press("escape")
        await on.ready()
        turns = on.chat.engine.conversation.turns
        assert turns[-1].state == "cancelled"
        assert turns[-1].content.startswith("word")

    stage.play(stage.script(LONG), act)


def test_escape_stops_reading_and_loading_too(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.until(lambda: on.chat.engine.state == "loading")
        await on.pilot.press("escape")
        await on.until(lambda: on.chat.engine.state == "empty")
        on.chat.engine.open(stage.script("Hi.", name="slow reader", prefill_token_s=0.01))
        await on.ready()
        await on.type("x" * 2000)
        await on.until(lambda: on.chat.engine.state == "answering")
        await on.pilot.press("escape")
        await on.ready()
        assert len(on.said) == 1

    stage.play(stage.script("Hi.", load_s=30.0), act)


def test_after_a_load_that_failed_the_screen_says_what_answers_the_next_message(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        on.chat.open_model(str(stage.directory / "gone.script.json"))
        await on.until(lambda: "is still loaded, as it was" in on.shown("EmptyChat #where"))
        assert on.chat.engine.state == "ready"
        assert "gone" not in on.shown("TitleBar #model")
        on.chat.engine.open("demo", LoadOptions(ctx_size=2**26))  # for which there is no room: noticed once it is ready
        await on.until(lambda: "The next message loads" in on.shown("EmptyChat #where"))
        assert "would fit: /set ctx_size " in on.shown("EmptyChat #where")
        assert "`runner chat MODEL --force` tries anyway." in on.shown("EmptyChat #where")
        assert on.chat.engine.state == "empty"
        assert "model" in on.shown("TitleBar #model")
        await on.ask("hello")
        assert "model" in on.shown("TitleBar #model")

    stage.play(stage.script("Hello."), act)


def test_a_new_chat_says_nothing_of_a_load_that_failed_before(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        for question in ("hello", ""):
            if question:
                await on.ask(question)
            on.chat.open_model(str(stage.directory / "gone.script.json"))
            await on.until(lambda: "is still loaded" in on.shown("EmptyChat #where"))
            await on.pilot.press("ctrl+n")
            await on.until(lambda: "Runs here with fake" in on.shown("EmptyChat #where"))
            assert not on.chat.transcript.document.entries
        await on.ask("again")
        assert "gone" not in shown(on)

    stage.play(stage.script("Hello.", "Hello."), act)


def test_an_error_leaves_the_prompt_in_sight(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        for number in range(4):
            on.chat.fail(RunnerError(f"{number} went wrong. " * 12, hint="What to do about it. " * 12))
        await on.until(lambda: len(on.chat.query(Toast)) == 4)
        newest = on.chat.query(Toast).last()
        assert "3 went wrong" in newest._notification.message
        await on.until(lambda: on.chat.find_widget(newest).visible_region.area)
        said = on.chat.find_widget(newest).visible_region
        assert not said.overlaps(on.chat.box.region)

    for size in ((120, 40), (80, 24), (40, 12)):
        stage.play(stage.script("Hi."), act, size=size, has_toasts=True)


def test_a_key_that_can_do_nothing_here_says_why(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.ask("hello")
        await on.pilot.press("escape", "c")
        await on.until(lambda: any("no code block" in one.message for one in on.app._notifications))

    stage.play(stage.script("Hello."), act)


def test_escape_goes_from_an_empty_prompt_to_the_answers_and_back(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.pilot.press("escape")
        assert on.chat.box.prompt.has_focus  # there are no answers yet
        await on.ask("hello")
        await on.pilot.press("escape")
        assert on.chat.transcript.has_focus
        await on.pilot.press("escape", "x", "escape")
        assert on.chat.box.prompt.has_focus
        assert on.chat.box.prompt.text == "x"

    stage.play(stage.script("Hello."), act)


def test_an_answer_that_is_cut_off_says_why(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.ask("hello")
        assert "The context is full: the answer is cut off." in shown(on)
        assert "/set overflow drop" in shown(on)
        await on.type("/set overflow drop")
        await on.pilot.press("ctrl+n")
        await on.ask("hello")
        assert "/set ctx_size N" in shown(on)
        await on.type("/set max_tokens 3")
        await on.pilot.press("ctrl+n")
        await on.ask("hello")
        assert "cut off at max_tokens" in shown(on)

    stage.play(stage.script("word " * 100, n_ctx=200), act)


def test_a_question_whose_model_does_not_load_comes_back_with_the_reason(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.until(lambda: on.chat.engine.state == "empty")
        await on.type("hello")
        await on.until(lambda: on.chat.box.prompt.text == "hello")
        assert "The model was not loaded" in on.hint
        await on.pilot.press("f6")
        assert "differs from the general defaults" in seen(on.app)

    stage.play("no-such-model", act)


def test_a_load_that_fails_in_the_middle_of_a_chat_says_why_and_not_that_it_was_stopped(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.ask("one")
        Path(script).unlink()
        on.chat.engine.unload("It is unloaded.")
        await on.type("two")
        await on.until(lambda: on.chat.box.prompt.text == "two")
        assert "The model was not loaded: your message is in the prompt." in on.hint
        assert "✗ There is no file" in shown(on)
        on.chat.box.fill("")
        await on.pilot.press("ctrl+r")
        await on.until(lambda: "The model was not loaded. F2" in on.hint)
        assert "✗ There is no file" in shown(on)
        assert "Stopped" not in shown(on)
        assert on.said == ["one", "Hi."]

    script = stage.script("Hi.")
    stage.play(script, act)


def test_again_replaces_the_answer_and_undo_brings_the_question_back(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.ask("one")
        await on.pilot.press("ctrl+r")
        await on.until(lambda: on.chat.totals.n_answers == 2)
        await on.ready()
        assert on.said == ["one", "Hi."]
        await on.type("/undo")
        assert on.said == []
        assert on.chat.query_one(EmptyChat).display
        await on.pilot.press("up")
        assert on.chat.box.prompt.text == "one"

    stage.play(stage.script("Hi."), act)


def test_the_letter_that_takes_back_asks_first(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.ask("one")
        await on.pilot.press("escape", "u")
        assert isinstance(on.app.screen, Confirm)
        await on.pilot.press("escape")
        assert on.said == ["one", "Hi."]
        await on.pilot.press("u", "enter")
        assert on.said == []
        on.chat.action_undo()
        await on.until(lambda: any("no message to take back" in one.message for one in on.app._notifications))

    stage.play(stage.script("Hi."), act)


def test_editing_replaces_the_last_question_and_escape_gives_it_up(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.ask("first")
        await on.type("/edit")
        assert (on.chat.box.prompt.text, on.chat.box.is_edit) == ("first", True)
        await on.pilot.press("escape")
        assert (on.chat.box.prompt.text, on.chat.box.is_edit) == ("", False)
        on.chat.action_edit_last()
        await on.ask("second")
        assert on.said == ["second", "Hi."]
        assert not on.chat.box.is_edit
        await on.ask("third " * 100)
        on.chat.action_edit_last()
        await on.pilot.pause()
        parts = on.chat.answers.recount()
        assert parts.next_message
        assert parts.used < 1.5 * parts.next_message  # and not as much again for the one that it replaces

    stage.play(stage.script("Hi."), act)


def test_what_does_not_fit_the_context_is_said_and_comes_back_into_the_prompt(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        long = "much " * 60
        await on.type(long)
        await on.until(lambda: on.chat.box.prompt.text == long, "it did not come back")
        assert on.said == []
        assert on.chat.transcript.display
        on.chat.box.fill("short")
        await on.pilot.press("ctrl+r")
        await on.until(lambda: on.said == ["short", "Hi."])

    stage.play(stage.script("Hi.", n_ctx=200), act)


def test_what_does_not_fit_goes_along_into_the_new_chat_that_is_its_remedy(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.ask("short")
        long = "much " * 60
        await on.type(long)
        await on.until(lambda: on.chat.box.prompt.text == long, "it did not come back")
        await on.pilot.press(*"/new", "enter")
        await on.until(lambda: on.said == [], "it is no new chat")
        assert on.chat.box.prompt.text == long
        await on.pilot.press(*"/se", "ctrl+c")
        assert on.chat.box.prompt.text == long

    stage.play(stage.script("Hi.", n_ctx=200), act)


def test_the_context_meter_warns_before_a_message_is_sent(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        on.chat.box.prompt.put("word " * 700)
        await on.until(lambda: "full" in str(on.chat.query_one(ContextMeter).render()))
        assert "~" in str(on.chat.query_one(ContextMeter).render())

    stage.play(stage.script("Hi.", n_ctx=1024), act)


def test_after_the_engine_died_its_answer_is_there_and_again_loads_the_model(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.type("talk")
        await on.until(lambda: "word" in on.chat.transcript.copy_answer(), "nothing came")
        os.kill(on.chat.engine.pids()[0], signal.SIGKILL)
        await on.until(lambda: on.chat.engine.state == "empty" and not on.chat.engine.is_busy)
        assert on.chat.engine.conversation.turns[-1].state == "error"
        await on.pilot.press("ctrl+r")
        await on.until(lambda: on.chat.engine.state == "answering")
        await on.pilot.press("escape")
        await on.ready()
        assert on.said[0] == "talk"

    stage.play(stage.script(LONG), act)


def test_commands_change_and_show_what_they_say(stage: Stage) -> None:
    other = stage.script("I am the other.", name="other")
    (stage.directory / "notes.txt").write_text("blue\n")

    async def act(on: Stage) -> None:
        await on.ready()
        conversation = on.chat.engine.conversation
        await on.type("/set temperature 0.1")
        assert conversation.params.temperature == 0.1
        await on.type("/set overflow drop")
        await on.type("/think off")
        assert (conversation.options.overflow, conversation.options.think) == ("drop", "off")
        await on.type("/system Be brief.")
        assert conversation.system == "Be brief."
        await on.type("/read notes.txt")
        await on.until(lambda: on.chat.box.files)
        await on.ask("what colour?")
        assert on.said[0] == "what colour?\n\nnotes.txt:\n```\nblue\n```"
        await on.type("/save chat.json")
        await on.until(lambda: (stage.directory / "chat.json").exists())
        await on.type("/export")
        await on.until(lambda: list(stage.directory.glob("chat-*.md")))
        for command in ("/stats", "/show info", "/show template", "/set", "/system"):
            await on.type(command)
            assert isinstance(on.app.screen, Page), command
            await on.pilot.press("escape")
        await on.type("/clear")
        assert on.said == []
        await on.type("/load chat.json")
        assert len(on.said) == 2
        await on.type(f"/model {other}")
        await on.until(lambda: on.chat.engine.model == other and on.chat.engine.state == "ready")
        await on.ask("who?")
        assert on.said[-1] == "I am the other."

    stage.play(stage.script("Hi."), act)
    assert json.loads((stage.directory / "chat.json").read_text())["system"] == "Be brief."


def test_files_are_left_out_again_and_a_missing_one_is_told_beside_the_message(stage: Stage) -> None:
    (stage.directory / "notes.txt").write_text("a note")

    async def act(on: Stage) -> None:
        await on.ready()
        await on.type("/read notes.txt")
        await on.until(lambda: on.chat.box.files)
        await on.type("/read off")
        await on.until(lambda: not on.chat.box.files)
        assert on.hint == "No file goes with your next message."
        await on.ask("and @nofile.txt?")
        assert on.said[0] == "and @nofile.txt?"
        assert "@nofile.txt is no file here: it is sent as it stands." in shown(on)

    stage.play(stage.script("Hi."), act)


def test_every_command_survives_an_empty_chat_and_nonsense(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        names = [words.name for words in COMMANDS if words.name not in ("exit", "model")]
        arguments = ("", f" {HOSTILE} 9", " ~nobody-here/x")
        for text in [*(f"/{name}{argument}" for argument in arguments for name in names), "/nothing"]:
            on.chat.attempt(lambda text=text: run_command(on.chat, text))
            await on.pilot.pause()
            while len(on.app.screen_stack) > 1:
                await on.app.pop_screen()
        assert on.app.is_running

    stage.play(stage.script("Hi."), act)


def test_a_grammar_holds_until_it_is_off_whatever_the_settings_panel_changes(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.type("/grammar colours.gbnf")
        await on.until(lambda: on.chat.engine.own_params, "no grammar")
        await on.ask("which?")
        await on.pilot.press("f6")
        panel = on.app.screen
        assert isinstance(panel, SettingsPanel)
        panel.query_one("#top_k", Input).value = "7"
        await on.pilot.click("#apply")
        await on.until(lambda: on.chat.engine.own_params.get("top_k") == 7)
        await on.ask("and?")
        await on.type("/grammar nothing-here")
        await on.until(lambda: any("No such file" in one.message for one in on.app._notifications))
        assert on.chat.engine.own_params["grammar"] == Grammar(kind="gbnf", text='root ::= "Red" | "Blue"')
        await on.type("/grammar off")
        await on.until(lambda: on.chat.engine.own_params["grammar"] is None)
        await on.ask("and now?")
        assert on.said[1::2] == ["Blue", "Red", "Greenish"]

    (stage.directory / "colours.gbnf").write_text('root ::= "Red" | "Blue"')
    stage.play(stage.script("Blueish", "Redder", "Greenish"), act)


def test_settings_are_checked_applied_and_saved(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.pilot.press("f6")
        panel = on.app.screen
        assert isinstance(panel, SettingsPanel)
        field = panel.query_one("#temperature", Input)
        field.value = "9999"
        await on.pilot.press("enter")
        assert on.app.screen is panel, "a wrong value was taken"
        assert "from 0 to 100" in on.shown("#advice")
        field.value = "0.25"
        panel.query_one("#top_k", Input).value = "7"
        await on.pilot.click("#default")
        await on.until(lambda: user_paths().settings_file.exists())
        assert on.chat.engine.own_params == {"temperature": 0.25, "top_k": 7}
        await on.pilot.press("f6")
        await on.pilot.press("ctrl+r", "enter")
        await on.pilot.pause()
        assert on.chat.engine.own_params == {}

    stage.play(stage.script("Hi."), act)
    assert tomllib.loads(user_paths().settings_file.read_text()) == {"temperature": 0.25, "top_k": 7}


def test_one_setting_goes_back_to_its_default_by_a_key_or_a_click_that_are_told(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.pilot.press("f6")
        panel = on.app.screen
        default = panel.query_one("#temperature", Input).placeholder
        await on.pilot.press(*"0.25", "left")
        assert on.shown("#default-temperature") == f"↺ {default}"
        assert f"ctrl+u: back to {default}" in on.shown("#advice")
        panel.query_one("#top_k", Input).value = "7"
        await on.pilot.press("ctrl+u")
        assert panel.query_one("#temperature", Input).value == ""
        assert on.shown("#default-temperature") == default
        assert "ctrl+u" not in on.shown("#advice")
        panel.query_one("#think", Select).value = "off"
        panel.query_one("#think").focus()
        await on.pilot.press("ctrl+u")
        assert panel.query_one("#think", Select).value == "auto"
        await on.pilot.click("#default-top_k")
        assert panel.query_one("#top_k", Input).value == ""
        panel.query_one("#system", TextArea).text = "Be brief."
        panel.query_one("#system").focus()
        await on.pilot.press("end", "ctrl+u")
        assert panel.query_one("#system", TextArea).text == "", "the system prompt has its own use for the key"

    stage.play(stage.script("Hi."), act)


def test_a_wrong_value_and_its_remedy_are_seen_together_in_the_smallest_terminal(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.pilot.press("f6", *"abc")

        def are_seen() -> bool:
            shown = " ".join(line.strip("│ ") for line in seen(on.app).splitlines())
            return "● temperature       abc ✗ temperature cannot be 'abc'. It must be a number." in shown

        await on.until(are_seen)

    stage.play(stage.script("Hi."), act, (40, 12))


def test_a_default_that_was_saved_is_taken_back_the_same_way(stage: Stage) -> None:
    async def save(on: Stage, temperature: str, system: str) -> None:
        await on.pilot.press("f6")
        on.app.screen.query_one("#temperature", Input).value = temperature
        on.app.screen.query_one("#system", TextArea).text = system
        await on.pilot.click("#default")

    async def act(on: Stage) -> None:
        await on.ready()
        await save(on, "0.25", "Be brief.")
        await on.until(lambda: "Saved for chats to come: temperature, system" in on.hint)
        await save(on, "", "")
        await on.until(lambda: "No longer set: temperature, system" in on.hint)
        await save(on, "", "")
        await on.until(lambda: "Nothing differs" in on.hint)

    stage.play(stage.script("Hi."), act)
    assert tomllib.loads(user_paths().settings_file.read_text()) == {}


def test_another_drafter_loads_the_model_again_and_the_tint_is_kept(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        before = on.chat.engine.loaded
        await on.pilot.press("f6")
        on.app.screen.query_one("#speculation", Select).value = "off"
        on.app.screen.query_one("#tint", Select).value = "off"
        await on.pilot.click("#apply")
        await on.until(lambda: on.chat.engine.loaded not in (before, None), "it was not loaded again")
        await on.until(lambda: "The model was loaded again" in on.hint)
        assert on.chat.engine.options.speculation == "off"
        assert on.chat.transcript.has_class("-plain")
        await on.pilot.press("f6", "enter")
        await on.pilot.pause()
        assert on.chat.engine.state == "ready", "nothing was changed"

    stage.play(stage.script("Hi."), act)
    assert read_remembered(user_paths()).tint is False


def test_of_a_load_with_another_drafter_that_failed_nobody_says_that_it_was_one(stage: Stage) -> None:
    told: list[str] = []

    async def act(on: Stage) -> None:
        await on.ready()
        await on.ask("one")
        tell = on.chat.tell

        def note(text: str, level: Literal["info", "warning"] = "info") -> None:
            told.append(text)
            tell(text, level)

        on.chat.tell = note  # type: ignore[method-assign]
        Path(on.chat.engine.model).unlink()
        await on.pilot.press("f6")
        on.app.screen.query_one("#speculation", Select).value = "off"
        await on.pilot.click("#apply")
        await on.until(lambda: "✗ There is no file" in shown(on))

    stage.play(stage.script("Hi."), act)
    assert not told


def test_what_a_drafter_guessed_reaches_the_transcript_and_the_rail(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.ask("say it again and again")
        last = on.chat.transcript.document.entries[-1]
        assert isinstance(last, Answer)
        assert any(
            MARK in piece.section.drafted
            for piece in last.pieces(on.chat.transcript.look(last))
            if isinstance(piece, Prose)
        )
        assert "accept" in str(on.chat.query_one(SpeculationSection).render())

    stage.play(stage.script("the same words over and over, " * 30, step_s=0.01), act)


def test_a_theme_is_remembered_once_it_was_chosen(stage: Stage) -> None:
    async def leave(on: Stage) -> None:
        await on.ready()

    async def choose(on: Stage) -> None:
        await on.ready()
        await on.pilot.press("f9", "f7")
        chosen.append(on.app.theme)
        expected = Remembered(theme=on.app.theme, left_rail=False)
        await on.until(lambda: read_remembered(user_paths()) == expected, "a kill would lose it")

    chosen: list[str] = []
    model = stage.script("Hi.")
    stage.play(model, leave)
    assert read_remembered(user_paths()).theme == "", "another terminal may call for another one"
    stage.play(model, choose)
    assert read_remembered(user_paths()).theme == chosen[0]


def test_an_example_is_asked_with_one_key(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        on.chat.query_one(EmptyChat).query_one(OptionList).focus()
        await on.pilot.press("down", "enter")
        await on.until(lambda: len(on.said) == 2)

    stage.play(stage.script("Hi."), act)


def test_ctrl_c_empties_the_prompt_and_twice_leaves(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.tui.screens.chat._TWICE_S", 60.0)

    async def act(on: Stage) -> None:
        await on.ready()
        await on.pilot.press("a", "ctrl+c")
        assert on.chat.box.prompt.text == ""
        await on.pilot.press("ctrl+c")
        assert "again leaves" in on.hint
        await on.pilot.press("ctrl+c")
        await on.until(lambda: on.app.return_value is not None or not on.app.is_running)

    stage.play(stage.script("Hi."), act)


def test_ctrl_c_keeps_the_files_of_the_message_that_up_brings_back(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        on.chat.box.attach(Attachment("notes.txt", stage.directory / "notes.txt", "a note"))
        await on.pilot.press("a", "ctrl+c")
        assert on.chat.box.prompt.text == ""
        assert "The files stay" in on.hint
        await on.pilot.press("up")
        assert [file.name for file in on.chat.box.files] == ["notes.txt"]
        assert on.chat.box.prompt.text == "a"

    stage.play(stage.script("Hi."), act)


def test_once_a_benchmark_is_over_the_chat_says_so(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        on.chat.engine.lend("demo")
        on.chat.engine.unload("A benchmark needs the machine.")
        await on.type("hello")
        await on.until(lambda: "A benchmark is running" in on.shown("EmptyChat #where"))
        await on.until(lambda: "A benchmark has the machine: your message is in the prompt" in on.hint)
        on.chat.engine.take_back()
        await on.until(lambda: "Your first message loads it" in on.shown("EmptyChat #where"))

    stage.play(stage.script("Hi."), act)


def test_while_a_benchmark_has_the_machine_the_chat_says_so_before_anybody_asks(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        on.chat.engine.lend("demo")
        on.chat.engine.unload("A benchmark needs the machine.")
        await on.until(lambda: "a benchmark has the machine" in on.hint)
        assert "A benchmark has the machine" in on.shown("EmptyChat #where")
        on.chat.engine.take_back()
        await on.until(lambda: "loads the model first" in on.hint)

    stage.play(stage.script("Hi."), act)


def test_answers_are_copied_by_every_way_there_is(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.type("/copy")
        await on.ask("code?")
        await on.type("/copy 1")
        await on.until(lambda: on.app.clipboard == "x = 1\n")
        on.chat.action_copy_answer()
        assert on.app.clipboard.startswith("Look:")
        await on.until(lambda: "Copied" in on.hint)

    stage.play(stage.script("Look:\n\n```python\nx = 1\n```\n"), act)


def test_hostile_text_in_every_place_of_the_screen(stage: Stage) -> None:
    async def act(on: Stage) -> None:
        await on.ready()
        await on.ask(HOSTILE)
        on.chat.tell(HOSTILE)
        on.chat.page(HOSTILE, HOSTILE)
        await on.pilot.pause()
        await on.pilot.press("escape")
        on.chat.box.fill(HOSTILE, is_edit=True)
        await on.pilot.press("f6", "escape")
        assert on.chat.box.is_edit
        assert on.app.is_running

    stage.store.create_session(model=HOSTILE, title=HOSTILE)
    stage.play(stage.script(HOSTILE, name="[b]odd[@click=app.quit]x"), act)
