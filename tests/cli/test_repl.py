"""The chat's loop and every slash command, without a terminal: a list of lines in, what was printed out."""

from __future__ import annotations

import json
import os
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_for

from runner.chat_commands import COMMANDS, is_open_block, without_block_marks
from runner.cli import render
from runner.cli.interrupt import _SAME_PRESS_S
from runner.cli.loading import Loader
from runner.cli.repl import Repl
from runner.cli.slash import FUNCTIONS
from runner.config import Grammar, LoadOptions
from runner.conversation import Conversation
from runner.engine_process import EngineProcess
from runner.events import ChatEvent, TextDelta
from runner.kept_chat import kept_params
from runner.paths import user_paths
from runner.store import Store


class Lines:
    """A source of messages that also notes what each prompt would start from."""

    is_interactive = True

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.defaults: list[str] = []

    def read(self, default: str = "") -> str | None:
        self.defaults.append(default)
        return self.lines.pop(0) if self.lines else None


class Chat:
    """A chat with a scripted model. `type` types lines and returns what was answered and what was narrated."""

    def __init__(self, engine: EngineProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.engine = engine
        self.tmp_path = tmp_path
        self.capsys = capsys
        self.source = Lines()
        self.store = Store(user_paths().database)
        self.repl: Repl

    def start(self, *replies: object, name: str = "model", **script: object) -> Chat:
        loader = Loader(self.engine, self.script(*replies, name=name, **script), LoadOptions())
        loader.load()
        conversation = Conversation(self.engine, model=loader.model, store=self.store)
        self.repl = Repl(conversation, loader, self.source, directory=self.tmp_path)
        return self

    def script(self, *replies: object, name: str = "other", **script: object) -> str:
        path = self.tmp_path / f"{name}.script.json"
        path.write_text(json.dumps({"replies": replies, **script}))
        return str(path)

    def type(self, *lines: str) -> tuple[str, str]:
        self.source.lines += lines
        self.repl.run()
        captured = self.capsys.readouterr()
        return captured.out, captured.err

    @property
    def said(self) -> list[str]:
        return [turn.content for turn in self.repl.conversation.turns]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with EngineProcess(user_paths(tmp_path_factory.mktemp("engine"))) as made:
        yield made


@pytest.fixture
def chat(engine: EngineProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Chat]:
    render.configure()
    made = Chat(engine, tmp_path, capsys)
    yield made
    made.store.close()


def test_a_message_is_answered_on_stdout_and_kept(chat: Chat) -> None:
    out, err = chat.start("\n\nHello there.\n\n").type("hi")
    assert out == "Hello there.\n"
    assert "Hello" not in err
    assert [turn.role for turn in chat.store.turns(chat.repl.conversation.session_id or "")] == ["user", "assistant"]


def test_keys_stay_silent_from_each_enter_to_the_end_of_the_next_prompt(chat: Chat) -> None:
    n_silent = 0
    seen: list[int] = []

    @contextmanager
    def silence() -> Iterator[None]:
        nonlocal n_silent
        n_silent += 1
        yield
        n_silent -= 1

    def edited(text: str) -> str:
        seen.append(n_silent)
        return f"{text}!"

    def read(default: str = "") -> str | None:
        seen.append(n_silent)
        return Lines.read(chat.source, default)

    repl = chat.start("one", "two", "three").repl
    repl.silence, repl.editor, chat.source.read = silence, edited, read  # type: ignore[method-assign]
    chat.type("hi", "/regen", "/edit", "/help")
    # The first prompt; the one after the answer; the one after /regen; the editor, which the terminal's own keys need;
    # the prompt after its answer; the one after /help, as after /set and /model, which may load.
    assert seen == [0, 1, 1, 0, 1, 1]
    assert n_silent == 0


def test_escape_sequences_of_a_model_are_not_printed_but_kept(chat: Chat) -> None:
    attack = "a\x1b]52;c;ZXZpbA==\x07b\x1b[2Jc\x9b31md[@click=app.quit]e[/]"
    out, _ = chat.start(attack).type("hi")
    assert out == "a]52;c;ZXZpbA==b[2Jc31md[@click=app.quit]e[/]\n"
    assert chat.said[1] == attack


def test_two_slashes_send_a_slash(chat: Chat) -> None:
    chat.start("ok").type("//etc is a directory")
    assert chat.said[0] == "/etc is a directory"


def test_an_unknown_command_is_never_sent(chat: Chat) -> None:
    out, err = chat.start("no").type("/regne")
    assert (out, chat.said) == ("", [])
    assert "/regen" in err


def test_an_edit_that_is_given_up_leaves_the_last_message(chat: Chat) -> None:
    chat.start("one", "two")
    chat.repl.editor = lambda _text: None
    _, err = chat.type("first", "/edit", "", "second")
    assert chat.source.defaults[2:4] == ["first", ""]
    assert "Nothing was changed." in err
    assert chat.said == ["first", "one", "second", "two"]


def test_an_error_is_not_pushed_off_the_screen_by_the_message_that_caused_it(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    _, err = chat.start("no", n_ctx=64).type("\n".join(["line"] * 50), "x" * 100)
    assert "Up brings your message back" in err
    assert "shorten it" in err.lower()
    assert "/clear" not in err
    assert chat.source.defaults == ["", "", "x" * 100]


@pytest.mark.parametrize("word", ["/exit", "/quit", "/bye", "/EXIT"])
def test_leaving(chat: Chat, word: str) -> None:
    chat.start("no").type(word, "never read")
    assert chat.source.lines == ["never read"]


def test_help_lists_every_command(chat: Chat) -> None:
    _, err = chat.start("no").type("/help")
    assert all(f"/{words.name}" in err for words in COMMANDS)
    assert all(len(line) < 80 for line in err.splitlines())


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_every_command_survives_an_empty_chat_and_nonsense(chat: Chat, name: str) -> None:
    chat.start("ok").type(f"/{name}", f"/{name} \x1b[31m nonsense 9 \x00", "/think", f"/{name}\n\nx")
    assert "\x1b" not in str(chat.type("/show"))


def test_clear_starts_a_new_chat_and_keeps_the_old_one(chat: Chat) -> None:
    chat.start("one", "two").type("a", "/clear", "b")
    assert chat.said == ["b", "one"]
    assert len(chat.store.sessions()) == 2


def test_system_is_set_shown_and_removed(chat: Chat) -> None:
    chat.start("ok").type("/system Be brief,\nplease.")
    assert chat.repl.conversation.system == "Be brief,\nplease."
    assert "Be brief" in chat.type("/system")[1]
    assert "no system prompt" in chat.type("/system none", "/show system")[1]


def test_set_changes_sampling_chat_and_load_options(chat: Chat) -> None:
    chat.start("ok").type("/set temp 0.25", "/set stop END 'two words'", "/set overflow drop", "/set ctx-size 512")
    assert chat.repl.conversation.params.temperature == 0.25
    assert chat.repl.conversation.params.stop == ("END", "two words")
    assert chat.repl.conversation.options.overflow == "drop"
    assert chat.engine.loaded is not None
    assert chat.engine.loaded.info.n_ctx == 512
    assert "temperature        0.25" in chat.type("/set")[1]
    chat.type("/set max_tokens 5", "/set max_tokens none")
    assert chat.repl.conversation.params.max_tokens is None


def test_a_grammar_holds_until_it_is_off_and_is_kept_with_the_chat(chat: Chat) -> None:
    (chat.tmp_path / "colours.gbnf").write_text('root ::= "Red" | "Blue"')
    chat.start("Blueish", '"Redder', "Greenish")
    assert "grammar is GBNF grammar, 23 characters" in chat.type("/grammar colours.gbnf")[1]
    assert chat.type("which?")[0] == "Blue\n"
    assert chat.type('/grammar {"enum": ["Red", "Green"]}', "and?")[0] == '"Red"\n'
    assert "grammar            JSON schema, 26 characters" in chat.type("/set")[1]
    (session,) = (chat.store.get(summary.id) for summary in chat.store.sessions())
    assert kept_params(session)["grammar"] == Grammar(kind="json_schema", text='{"enum": ["Red", "Green"]}')
    assert "grammar JSON schema" in chat.type("/grammar")[1]
    assert chat.type("/grammar off", "and?")[0] == "Greenish\n"
    assert "grammar none" in chat.type("/grammar")[1]
    assert chat.repl.conversation.params.grammar is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/set grammar x", "/grammar PATH"),
        ("/grammar nothing-here", "No such file"),
        ('/grammar {"type": "strnig"}', "strnig"),
        ("/set temprature 1", "temperature"),
        ("/set top_k many", "number"),
        ("/set temperature -1", "temperature cannot be '-1'"),
        ("/set temperature -1", "from 0"),
        ("/read --temp", "/--temp cannot be read"),
        ("/load --temp", "/--temp cannot be read"),
        ("/grammar --temp", "/--temp cannot be read"),
        ("/set backend cuda", "llamacpp"),
        ("/think hard", "low, medium, high"),
        ("/show all", "parameters"),
        ("/copy x", "code block"),
        ("/read", "/read PATH"),
        ("/read nothing-here", "No such file"),
        ("/model nothing-here-either", "model"),
        ("/save chat.pdf", ".json or .md"),
        ("/load nothing.json", "No such file"),
        ("/load nothing.json", "hint: Give the name of a file that /save wrote."),
        ("/help me", "takes nothing"),
    ],
)
def test_a_mistake_is_explained_and_changes_nothing(chat: Chat, line: str, words: str) -> None:
    before = chat.start("ok").repl.conversation.params
    out, err = chat.type(line)
    assert err.startswith("error: ")
    assert words in err
    assert out == ""
    assert chat.repl.conversation.params == before
    assert chat.type("hello")[0] == "ok\n"


def test_show_tells_what_is_loaded(chat: Chat) -> None:
    _, err = chat.start("ok").type("/show", "/show template", "/show parameters")
    assert "fake" in err
    assert "<|im_start|>" in err
    assert "top_p" in err


def test_another_model_goes_on_with_the_same_chat(chat: Chat) -> None:
    other = chat.start("one").script("other one", "other two")
    out, _ = chat.type("a", f"/model {other}", "b")
    assert out == "one\nother two\n"
    assert chat.said == ["a", "one", "b", "other two"]
    assert chat.repl.conversation.model == other


def test_a_file_that_is_too_long_can_be_left_out_again(chat: Chat, tmp_path: Path) -> None:
    long = tmp_path / "long.txt"
    long.write_text("many words " * 20_000)
    chat.start("ok")
    _, err = chat.type(f"/read {long}", "hello")
    assert "A file is part of it: /read off leaves that out." in err
    out, err = chat.type("/read off", "hello")
    assert out == "ok\n"
    assert chat.said == ["hello", "ok"]


def test_a_chat_that_is_too_long_is_told_what_the_chat_can_do(chat: Chat) -> None:
    chat.start("ok", "ok").type("/set ctx_size 512", "many words " * 30)
    _, err = chat.type("many words " * 30)
    assert "Start afresh, or let the oldest turns go (/set overflow drop), or load the model" in err
    assert "larger context (/set ctx_size N, up to" in err
    assert "--overflow" not in err


def test_why_a_backend_refuses_is_said_with_what_a_chat_takes(chat: Chat) -> None:
    chat.start("ok")
    chat.type("/model demo", "/set kv_type q8_0")
    err = chat.type("/set backend native")[1]
    assert "The native backend cannot run demo: its KV cache on a CPU is f16, bf16 or f32." in err
    assert "Choose one with /set kv_type, or use /set backend llamacpp." in err
    assert "--" not in err


@pytest.mark.parametrize("line", ["/model nothing-here-either", "/set draft_file nothing-here.txt", "/set draft x/y/z"])
def test_what_cannot_be_got_ready_leaves_the_model_that_is_loaded(chat: Chat, line: str) -> None:
    chat.start("one", "two").type("a")
    loaded = chat.engine.loaded
    assert chat.type(line)[1].startswith("error: ")
    assert chat.engine.loaded is loaded
    out, err = chat.type("b")
    assert out == "two\n"
    assert "loading" not in err


def test_a_model_that_made_room_for_one_that_failed_is_loaded_again_and_nothing_else_is_said_to_be_gone(
    chat: Chat,
) -> None:
    chat.start("one", "two").type("a")
    assert "error: " in chat.type(f"/model {chat.script(fail=1, no_such_field=1)}")[1]
    out, err = chat.type("b")
    assert out == "two\n"
    assert "made room for a load that failed: loading" in err
    assert "engine" not in err


def test_regenerate_undo_and_edit_at_the_prompt(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.delenv("VISUAL", raising=False)
    chat.start("one", "two").type("a", "/regen")
    assert chat.said == ["a", "one"]
    chat.source.defaults.clear()
    chat.type("/edit", "a, edited")
    assert chat.source.defaults == ["", "a", ""]
    assert chat.said == ["a, edited", "one"]
    chat.type("b", "/undo")
    assert chat.said == ["a, edited", "one"]
    assert "no message" in chat.type("/undo", "/undo")[1]


def test_edit_in_an_editor_sends_what_was_saved(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = chat.tmp_path / "editor"
    editor.write_text('#!/bin/sh\nstat -c %a "$1" > "$0.mode"\nprintf "from the editor\\n" > "$1"\n')
    editor.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(editor))
    chat.start("one").type("a", "/edit")
    assert chat.said == ["from the editor", "one"]
    assert (chat.tmp_path / "editor.mode").read_text() == "600\n"
    monkeypatch.setenv("VISUAL", "false")
    assert "status 1" in chat.type("/edit")[1]
    assert chat.said == ["from the editor", "one"]
    monkeypatch.setattr(tempfile, "tempdir", str(chat.tmp_path / "missing"))  # as where the disk of /tmp is full
    assert "error: There is no place for a text to edit: No such file or directory." in chat.type("/edit")[1]
    assert chat.said == ["from the editor", "one"]


def test_a_file_goes_with_the_next_message_only(chat: Chat) -> None:
    (chat.tmp_path / "notes.txt").write_text("line one\n```\nline two\n")
    _, err = chat.start("ok").type(f"/read {chat.tmp_path}/notes.txt", "What is this?", "And now?")
    assert "3 lines" in err
    assert chat.said[0] == "What is this?\n\nnotes.txt:\n````\nline one\n```\nline two\n````"
    assert chat.said[2] == "And now?"


def test_a_file_that_a_message_mentions_goes_with_it_and_a_missing_one_is_told(chat: Chat) -> None:
    (chat.tmp_path / "notes.txt").write_text("line one\n")
    out, err = chat.start("ok", "ok").type("What is @notes.txt?", "And @nofile.txt, @you?")
    assert out == "ok\nok\n"
    assert "notes.txt (1 line) goes with it." in err
    assert chat.said[0] == "What is @notes.txt?\n\nnotes.txt:\n```\nline one\n```"
    assert chat.said[2] == "And @nofile.txt, @you?"
    assert "@nofile.txt is no file here: it is sent as it stands." in err
    assert "@you" not in err
    chat.start("ok", "ok").repl.editor = lambda text: text.replace("What", "Whose")
    chat.type("What is @notes.txt?", "/edit")
    assert chat.said[0] == "Whose is @notes.txt?\n\nnotes.txt:\n```\nline one\n```"  # once


def test_in_a_text_that_no_one_typed_an_at_sign_is_a_character(chat: Chat) -> None:
    (chat.tmp_path / "notes.txt").write_text("line one\n")
    chat.source.is_interactive = False
    _, err = chat.start("ok").type("mail of @notes.txt and @nofile.txt")
    assert chat.said[0] == "mail of @notes.txt and @nofile.txt"
    assert "no file" not in err


def test_a_mentioned_file_that_cannot_be_sent_keeps_the_message(chat: Chat) -> None:
    (chat.tmp_path / "binary").write_bytes(b"\x7fELF\0\0")
    _, err = chat.start("ok").type("What is @binary?")
    assert "binary is not text" in err
    assert chat.said == []
    assert chat.source.defaults[-1] == "What is @binary?"


def test_a_file_that_is_no_text_is_refused(chat: Chat) -> None:
    (chat.tmp_path / "binary").write_bytes(b"\x7fELF\0\0")
    (chat.tmp_path / "latin").write_bytes(b"caf\xe9\n")
    (chat.tmp_path / "huge").write_bytes(b"x" * (4 * 2**20 + 1))
    _, err = chat.start("ok").type(*[f"/read {chat.tmp_path}/{name}" for name in ("binary", "latin", "huge")], "go")
    assert "binary is not text" in err
    assert "1 byte was replaced" in err
    assert "larger than 4 MiB" in err
    assert "caf\ufffd" in chat.said[0]


def test_saving_loading_and_exporting(chat: Chat) -> None:
    chat.start("one").type(
        "a", f"/save {chat.tmp_path}/chat.json", "/export", "/clear", f"/load {chat.tmp_path}/chat.json"
    )
    assert chat.said == ["a", "one"]
    exported = next(chat.tmp_path.glob("chat-*.md"))
    assert "one" in exported.read_text()
    assert stat.S_IMODE(exported.stat().st_mode) == 0o600
    assert "already" in chat.type(f"/save {chat.tmp_path}/chat.json")[1]


def test_a_recap_says_that_the_last_answer_was_not_finished(chat: Chat) -> None:
    chat.start({"text": "half an answer", "fail": "error", "fail_after": 4}).type("hi")
    assert "this answer ended with an error; /regen asks again" in chat.repl.recap()


def test_thinking_and_stats(chat: Chat) -> None:
    chat.start("<think>hm</think>42")
    assert "no answer yet" in chat.type("/stats")[1]
    chat.type("/think low", "/think hide", "q")
    assert chat.repl.conversation.options.think == "low"
    assert not chat.repl.has_thoughts
    _, err = chat.type("/stats")
    assert "1 answer ·" in err
    assert "tok/s" in err


@pytest.mark.parametrize("command", ["/clear", "/load chat.json"])
def test_another_chat_has_no_numbers_of_the_one_before(chat: Chat, command: str) -> None:
    chat.start("42").type("q", "/save chat.json")
    assert "this chat    1 answer" in chat.type("/stats")[1]
    assert "no answer yet" in chat.type(command, "/stats")[1]


def test_speculation_can_be_set_in_the_chat_and_is_among_its_numbers(chat: Chat) -> None:
    chat.start("the quick brown fox jumps over the lazy dog; " * 9, step_s=0.004).type("q")
    assert "speculation  suffix on" in chat.type("/stats")[1]
    shown = chat.type("/show")[1]
    assert "speculation    suffix: it needs no memory" in shown
    assert "memory at load " in shown
    assert "speculation is off" in chat.type("/set spec off")[1]
    assert chat.repl.loader.options.speculation == "off"
    chat.type("q")
    assert "speculation" not in chat.type("/stats")[1]
    assert "speculation    off: it was turned off" in chat.type("/show")[1]
    assert "one of" in chat.type("/set speculation fast")[1]
    chat.type("/set draft_max 3", "/set draft none")
    assert (chat.repl.loader.options.draft_max, chat.repl.loader.options.draft) == (3, None)


def test_files_that_drafts_may_quote_can_be_set_in_the_chat(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(chat.tmp_path)
    (chat.tmp_path / "a b.txt").write_text("abc")
    chat.start("ok")
    assert "draft_file is " in chat.type("/set draft-file 'a b.txt'")[1]
    assert chat.repl.loader.options.draft_file == (str(chat.tmp_path / "a b.txt"),)
    assert "may quote a file" in chat.type("/show")[1]
    assert f"draft_file '{chat.tmp_path}/a b.txt'" in chat.type("/set draft_file")[1]
    chat.type("q")
    assert "3 tokens of files to quote" in chat.type("/stats")[1]
    assert "No such file" in chat.type("/set draft_file no.txt")[1]
    assert "quotes" in chat.type("/set draft_file 'a")[1]
    chat.type("/set draft_file none")
    assert chat.repl.loader.options.draft_file == ()


def test_copy_says_what_it_did_and_never_fails(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = chat.tmp_path / "xclip"
    tool.write_text(f'#!/bin/sh\ncat > "{chat.tmp_path}/clipboard"\n')
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", f"{chat.tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    chat.start("See:\n```python\nprint(1)\n```\nDone.").type("a")
    assert "xclip" in chat.type("/copy 1")[1]
    assert (chat.tmp_path / "clipboard").read_text().strip() == "print(1)"
    assert "no code block 2" in chat.type("/copy 2")[1]
    tool.write_text("#!/bin/sh\nexit 1\n")
    assert "no clipboard" in chat.type("/copy")[1]


class CtrlC:
    """Presses Ctrl+C once the engine has told as much of an answer as it is asked for, and remembers when.

    text: of the answer; "" for a sign that the prompt is being read. after_s: how much later. is_repeated: a second
    time too, once the engine was asked to stop and a bouncing key is no reason any more.
    """

    def __init__(
        self,
        engine: EngineProcess,
        monkeypatch: pytest.MonkeyPatch,
        text: str,
        *,
        after_s: float = 0.1,
        is_repeated: bool = False,
    ) -> None:
        self.pressed = 0.0
        self._engine, self._text, self._after_s, self._is_repeated = engine, text, after_s, is_repeated
        self._chat = engine.chat
        monkeypatch.setattr(engine, "chat", self._watched)

    def _watched(self, *asked: Any) -> Iterator[ChatEvent]:
        told = ""
        thread = threading.Thread(target=self._press)
        try:
            with closing(self._chat(*asked)) as events:  # type: ignore[type-var]
                for event in events:
                    told += event.text if isinstance(event, TextDelta) else ""
                    if thread.ident is None and told.startswith(self._text):
                        thread.start()
                    yield event
        finally:
            if thread.ident is not None:
                thread.join()  # here a press is expected, and later it would end the tests

    def _press(self) -> None:
        time.sleep(self._after_s)
        self.pressed = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)
        if self._is_repeated:
            wait_for(lambda: self._engine._cancelled_at is not None)
            time.sleep(1.5 * _SAME_PRESS_S)
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_stops_an_answer_within_200_ms_and_keeps_it(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    chat.start({"text": "word " * 1000, "token_s": 0.01}, "fine")
    with monkeypatch.context() as while_it_answers:
        key = CtrlC(chat.engine, while_it_answers, "word ")
        out, err = chat.type("go")
    assert 0 <= time.monotonic() - key.pressed < 10  # the answer would take 50 s
    assert out.startswith("word ")
    assert "(stopped)" in err
    assert chat.repl.conversation.turns[-1].state == "cancelled"
    assert chat.type("and now?")[0] == "fine\n"


def test_ctrl_c_stops_a_prefill_within_200_ms(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    chat.start("never", prefill_token_s=0.015)
    key = CtrlC(chat.engine, monkeypatch, "")
    out, err = chat.type("a long prompt " * 300)
    assert 0 <= time.monotonic() - key.pressed < 10  # the prompt would take a minute
    assert out == ""
    assert "/regen asks again" in err


def test_a_second_ctrl_c_ends_an_engine_that_does_not_stop(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    chat.start({"text": "stuck", "token_s": 0.05, "fail": "hang", "fail_after": 2}, "back again")
    with monkeypatch.context() as while_it_answers:
        while_it_answers.setattr("runner.engine_process._CANCEL_GRACE_S", 60.0)
        CtrlC(chat.engine, while_it_answers, "st", after_s=0.5, is_repeated=True)
        out, err = chat.type("go")
    assert out.startswith("st")
    assert "stopped by ending the engine" in err
    assert "memory" not in err
    out, err = chat.type("again")
    assert out == "back again\n"
    assert "loading" in err


def test_a_dead_engine_costs_one_message_at_most_and_comes_back(chat: Chat) -> None:
    chat.start({"text": "partial answer", "token_s": 0.05, "fail": "kill", "fail_after": 8}, "whole")
    out, err = chat.type("go")
    assert out.startswith("parti")
    assert "SIGKILL" in err
    assert chat.repl.conversation.turns[-1].state == "error"
    out, err = chat.type("go on")
    assert out == "whole\n"
    assert "The engine is gone" in err


def test_an_engine_that_died_between_messages_is_not_noticed_by_the_user(chat: Chat) -> None:
    chat.start("one", "two").type("a")
    pid = chat.engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its parent has not noticed
    out, err = chat.type("b")
    assert out == "two\n"
    assert "error" not in err
    assert chat.said == ["a", "one", "b", "two"]


def test_what_cannot_be_sent_is_offered_again(chat: Chat) -> None:
    chat.start("no", n_ctx=64)
    chat.type("too long " * 50)
    assert chat.source.defaults[-1] == "too long " * 50
    assert chat.said == []


def test_what_could_not_be_sent_waits_for_the_commands_that_are_its_remedy(chat: Chat) -> None:
    chat.start("one", n_ctx=64).repl.editor = lambda _text: None
    _, err = chat.type("short", "/edit", "too long " * 50, "/set overflow drop", "/nonsense", "/new", "short again")
    assert "There is no command /nonsense" in err
    assert chat.source.defaults[-5:-1] == ["too long " * 50] * 4
    assert chat.said == ["short again", "one"]  # in the new chat, where there is no message to change


def test_a_pipe_ends_with_the_code_of_its_last_error(chat: Chat) -> None:
    chat.start("ok", n_ctx=64)
    chat.source.is_interactive = False
    chat.type("fine", "too long " * 50)
    assert chat.repl.exit_code == 1


@pytest.mark.parametrize(
    ("text", "is_open", "message"),
    [
        ("plain", False, "plain"),
        ('"""', True, ""),
        ('"""a', True, "a"),
        ('"""\na\nb\n"""', False, "a\nb"),
        ('"""a"""', False, "a"),
        ('say """a"""', False, 'say """a"""'),
    ],
)
def test_blocks_of_lines(text: str, is_open: bool, message: str) -> None:
    assert is_open_block(text) is is_open
    assert without_block_marks(text) == message


def test_every_command_of_the_table_has_a_function_in_its_order() -> None:
    assert list(FUNCTIONS) == [words.name for words in COMMANDS]
