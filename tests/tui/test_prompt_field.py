"""The prompt in a terminal of its own: keys, lines, history, completions, files, pasting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual import events, on
from textual.app import App, ComposeResult
from textual.events import Paste
from textual.pilot import Pilot
from textual.widgets import Static

from runner.chat_completing import Asked, Offer, path_offers
from runner.message_files import Attachment
from runner.tui.widgets import prompt_box
from runner.tui.widgets.completions import Completions
from runner.tui.widgets.prompt import BIG_PASTE
from runner.tui.widgets.prompt_box import PromptBox

HOSTILE = "a[/]b [@click=app.quit]x[/] \x1b]52;c;eA==\x07 \x9b31m"


class PromptApp(App[None]):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self.sent: list[PromptBox.Sent] = []
        self.refused: list[PromptBox.FileRefused] = []

    def compose(self) -> ComposeResult:
        yield Static("above")
        yield PromptBox(self._directory)

    def on_mount(self) -> None:
        self.box.prompt.focus()

    @property
    def box(self) -> PromptBox:
        return self.query_one(PromptBox)

    @on(PromptBox.Sent)
    def _sent(self, message: PromptBox.Sent) -> None:
        self.sent.append(message)

    @on(PromptBox.FileRefused)
    def _refused(self, message: PromptBox.FileRefused) -> None:
        self.refused.append(message)


Play = Callable[[PromptApp, Pilot[None]], Awaitable[None]]


def play(directory: Path, what: Play, size: tuple[int, int] = (80, 24)) -> PromptApp:
    app = PromptApp(directory)

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await what(app, pilot)
            await app.workers.wait_for_complete()
            await pilot.pause()

    asyncio.run(run())
    return app


def texts(app: PromptApp) -> list[str]:
    return [sent.text for sent in app.sent]


def test_enter_sends_and_the_other_enters_begin_a_line(tmp_path: Path) -> None:
    async def keys(_app: PromptApp, pilot: Pilot[None]) -> None:
        await pilot.press("a", "ctrl+j", "b", "shift+enter", "c", "alt+enter", "d", "\\", "enter", "e", "enter")
        await pilot.press("enter", "space", "enter")

    assert texts(play(tmp_path, keys)) == ["a\nb\nc\nd\ne"]


def test_enter_within_a_block_begins_a_line(tmp_path: Path) -> None:
    async def keys(_app: PromptApp, pilot: Pilot[None]) -> None:
        await pilot.press(*'"""', "enter", "a", "enter", *'"""', "enter")

    assert texts(play(tmp_path, keys)) == ['"""\na\n"""']


def test_the_field_grows_to_eight_rows(tmp_path: Path) -> None:
    async def keys(app: PromptApp, pilot: Pilot[None]) -> None:
        heights = []
        for _ in range(12):
            heights.append(app.box.prompt.size.height)
            await pilot.press("ctrl+j")
        assert heights[0] == 1
        assert heights[3] == 4
        assert heights[-1] == 8

    play(tmp_path, keys)


def test_the_cursor_stays_in_view_when_the_terminal_becomes_small(tmp_path: Path) -> None:
    async def act(app: PromptApp, pilot: Pilot[None]) -> None:
        app.box.prompt.put(
            "\n".join(f"a line {number} that takes several rows of a small terminal" for number in range(99))
        )
        await pilot.pause()
        await pilot.resize_terminal(30, 12)
        await pilot.pause()
        prompt = app.box.prompt
        assert prompt.content_region.contains_point(prompt.cursor_screen_offset)

    play(tmp_path, act, (120, 40))


def test_up_and_down_are_history_on_the_first_and_last_line_alone(tmp_path: Path) -> None:
    async def keys(app: PromptApp, pilot: Pilot[None]) -> None:
        prompt = app.box.prompt
        prompt.set_history(["oldest", "one\ntwo"])
        await pilot.press("d", "r", "a", "f", "t", "up")
        assert prompt.text == "one\ntwo"
        await pilot.press("up")
        assert prompt.text == "oldest"
        await pilot.press("up", "down")
        assert prompt.text == "one\ntwo"
        await pilot.press("up")
        assert (prompt.text, prompt.cursor_location[0]) == ("one\ntwo", 0)
        await pilot.press("down", "down")
        assert prompt.text == "draft"

    play(tmp_path, keys)


def test_up_before_the_history_has_been_read_goes_back_once_it_is_unless_something_was_typed(tmp_path: Path) -> None:
    async def keys(app: PromptApp, pilot: Pilot[None]) -> None:
        await pilot.press("up")
        app.box.prompt.set_history(["oldest", "newest"])
        assert app.box.prompt.text == "newest"

    async def typing(app: PromptApp, pilot: Pilot[None]) -> None:
        await pilot.press("up", "a")
        app.box.prompt.set_history(["oldest"])
        assert app.box.prompt.text == "a"
        await pilot.press("up", "down")
        assert app.box.prompt.text == "a"

    play(tmp_path, keys)
    play(tmp_path, typing)


def test_what_was_sent_before_the_history_has_been_read_is_its_newest(tmp_path: Path) -> None:
    async def keys(app: PromptApp, pilot: Pilot[None]) -> None:
        app.box.prompt.remember("now")
        app.box.prompt.set_history(["before"])
        await pilot.press("up")
        assert app.box.prompt.text == "now"
        await pilot.press("up")
        assert app.box.prompt.text == "before"

    play(tmp_path, keys)


def test_a_recalled_text_that_was_changed_is_what_is_being_typed(tmp_path: Path) -> None:
    async def keys(app: PromptApp, pilot: Pilot[None]) -> None:
        app.box.prompt.set_history(["first", "second"])
        await pilot.press("up", "!", "up")
        assert app.box.prompt.text == "second"
        await pilot.press("down")
        assert app.box.prompt.text == "second!"

    play(tmp_path, keys)


def test_a_command_typed_at_once_is_not_appended_to_a_message_that_was_given_back(tmp_path: Path) -> None:
    file = Attachment("notes", tmp_path / "notes", "text")

    async def keys(app: PromptApp, pilot: Pilot[None]) -> None:
        app.box.give_back(PromptBox.Sent("too long", (file,), is_edit=True))
        await pilot.press(*"/new", "enter")
        assert (app.box.prompt.text, app.box.files, app.box.is_edit) == ("too long", (file,), True)
        app.post_message(events.Paste("/set top_k 5\n"))
        await pilot.pause()
        await pilot.press("enter")
        assert app.box.prompt.text == "too long"
        app.post_message(events.Paste("\n/* a comment */\nint x;"))
        await pilot.pause()
        assert app.box.prompt.text == "too long\n/* a comment */\nint x;"
        app.box.give_back(PromptBox.Sent("too long", (file,), is_edit=True))
        await pilot.press("slash")
        await pilot.pause()
        assert "your message comes back" in str(app.box.border_subtitle)
        await pilot.press("backspace")
        await pilot.pause()
        await pilot.press("!", "slash", "enter")

    app = play(tmp_path, keys)
    assert [(sent.text, sent.files, sent.is_edit) for sent in app.sent] == [
        ("/new", (), False),
        ("/set top_k 5\n", (), False),
        ("too long!/", (file,), True),
    ]


def test_tab_takes_a_completion_and_enter_runs_what_is_whole(tmp_path: Path) -> None:
    async def keys(app: PromptApp, pilot: Pilot[None]) -> None:
        listed = app.query_one(Completions)
        await pilot.press("/", "s", "h")
        assert listed.is_open
        await pilot.press("tab")
        assert app.box.prompt.text == "/show "
        await pilot.press("down", "tab", "enter")
        assert not listed.is_open
        await pilot.press("/", "u", "n", "enter")
        await pilot.press("/", "s", "escape", "enter")

    assert texts(play(tmp_path, keys)) == ["/show parameters", "/undo", "/s"]


def test_enter_behind_keys_that_came_at_once_takes_no_completion_of_an_earlier_word(tmp_path: Path) -> None:
    async def keys(app: PromptApp, pilot: Pilot[None]) -> None:
        await pilot.press("/", "s")
        assert app.query_one(Completions).is_open
        for character in "et top_k 5\r":  # as from a slow line, or a program
            name = {" ": "space", "\r": "enter"}.get(character, character)
            app.post_message(events.Key(name, None if name == "enter" else character))
        await pilot.pause()
        await pilot.pause()
        assert not app.query_one(Completions).is_open

    assert texts(play(tmp_path, keys)) == ["/set top_k 5"]


def test_enter_takes_no_completion_of_another_word_while_a_directory_is_being_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_listed = threading.Event()

    def slow_offers(wanted: Asked, directory: Path) -> list[Offer]:
        is_listed.wait(60)
        return path_offers(wanted, directory)

    monkeypatch.setattr(prompt_box, "path_offers", slow_offers)

    async def keys(app: PromptApp, pilot: Pilot[None]) -> None:
        await pilot.press("/", "r")
        assert app.query_one(Completions).is_open
        for character in "ead a.txt":  # at once: the list of commands is not closed behind "/read"
            app.post_message(events.Key({" ": "space", ".": "full_stop"}.get(character, character), character))
        await pilot.pause()
        await pilot.press("tab", "enter")
        assert not app.query_one(Completions).is_open
        is_listed.set()

    assert texts(play(tmp_path, keys)) == ["/read a.txt"]


def test_completions_lie_over_the_transcript_and_within_the_screen(tmp_path: Path) -> None:
    async def keys(app: PromptApp, pilot: Pilot[None]) -> None:
        await pilot.press("/")
        await pilot.pause()
        listed = app.query_one(Completions)
        assert listed.region.bottom <= app.box.region.y + 1
        assert app.screen.region.contains_region(listed.region)
        assert listed.size.height >= 5  # the offers, and not their frame alone

    async def keys_at_the_bottom(app: PromptApp, pilot: Pilot[None]) -> None:
        app.box.styles.dock = "bottom"
        await pilot.pause()
        await keys(app, pilot)

    play(tmp_path, keys_at_the_bottom)
    play(tmp_path, keys_at_the_bottom, size=(40, 12))


def test_a_mentioned_file_is_shown_before_it_is_sent_and_goes_with_the_message(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("x = 1\n")

    async def keys(app: PromptApp, pilot: Pilot[None]) -> None:
        await pilot.press("@", "m")
        await app.workers.wait_for_complete()
        await pilot.pause()
        await pilot.press("tab")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert app.box.prompt.text == "@main.py "
        assert "main.py 6 B" in str(app.query_one("#files", Static).render())
        await pilot.press("enter")

    app = play(tmp_path, keys)
    assert texts(app) == ["@main.py "]
    assert [one.text for one in app.sent[0].mentioned] == ["x = 1\n"]


def test_a_mentioned_file_that_is_not_there_is_told_once_its_name_is_typed_and_with_the_message(tmp_path: Path) -> None:
    async def keys(app: PromptApp, pilot: Pilot[None]) -> None:
        for text, said in (("@nofile.txt", ""), ("@nofile.txt @you ", "? @nofile.txt is no file here")):
            app.box.prompt.put(text)
            await app.workers.wait_for_complete()
            await pilot.pause()
            assert str(app.query_one("#files", Static).render()).startswith(said)
            assert app.query_one("#files").display == bool(said)
        await pilot.press("enter")

    app = play(tmp_path, keys)
    assert [[one.name for one in sent.missing] for sent in app.sent] == [["nofile.txt"]]


def test_a_file_that_cannot_be_sent_is_refused_before_anything_is(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"\0")

    async def keys(app: PromptApp, pilot: Pilot[None]) -> None:
        app.box.prompt.put("look @blob now")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "✗" in str(app.query_one("#files", Static).render())
        await pilot.press("enter")

    app = play(tmp_path, keys)
    assert not app.sent
    assert "not text" in app.refused[0].file.error.message
    assert app.refused[0].sent.text == "look @blob now"


def test_many_pasted_lines_are_one_message_without_control_characters(tmp_path: Path) -> None:
    async def keys(app: PromptApp, pilot: Pilot[None]) -> None:
        app.box.prompt.post_message(Paste(f"one\r\ntwo\n{HOSTILE}"))
        await pilot.pause()
        await pilot.press("enter")

    assert texts(play(tmp_path, keys)) == ["one\ntwo\na[/]b [@click=app.quit]x[/] ]52;c;eA== 31m"]


def test_a_paste_that_is_too_long_for_the_field_is_attached_and_backspace_drops_it(tmp_path: Path) -> None:
    async def keys(app: PromptApp, pilot: Pilot[None]) -> None:
        for text in ("line\n" * BIG_PASTE, "line " * BIG_PASTE):
            app.box.prompt.post_message(Paste(text))
            await pilot.pause()
        assert [one.name for one in app.box.files] == ["pasted, 20000 lines", "pasted, 1 line"]
        await pilot.press("backspace", "enter")

    app = play(tmp_path, keys)
    assert [len(one.files) for one in app.sent] == [1]


def test_a_command_leaves_the_attached_files_for_the_next_message(tmp_path: Path) -> None:
    async def keys(app: PromptApp, pilot: Pilot[None]) -> None:
        app.box.prompt.post_message(Paste("line\n" * BIG_PASTE))
        await pilot.pause()
        await pilot.press(*"/stats", "enter", "a", "enter")

    assert [(sent.text, len(sent.files)) for sent in play(tmp_path, keys).sent] == [("/stats", 0), ("a", 1)]


def test_hostile_names_and_texts_are_shown_as_they_stand(tmp_path: Path) -> None:
    name = "a[/]b [@click=app.quit]x[/]"
    (tmp_path / name.replace("/", "_")).write_text("x")

    async def keys(app: PromptApp, pilot: Pilot[None]) -> None:
        app.box.set_models((HOSTILE,))
        await pilot.press("@", "a")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert app.query_one(Completions).is_open
        app.box.prompt.put("/model ")
        await pilot.pause()
        assert app.query_one(Completions).is_open
        app.box.fill(HOSTILE)
        assert app.box.prompt.text == "a[/]b [@click=app.quit]x[/] ]52;c;eA== 31m"

    play(tmp_path, keys)
