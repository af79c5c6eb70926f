"""Typing into the prompt, through prompt_toolkit's own pipe input: sending, editing, history, completion, leaving."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from io import StringIO
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from runner import prompt_history
from runner.cli import terminal
from runner.cli.terminal import ChatCompleter, PipeSource, TerminalSource

ENTER, CTRL_C, CTRL_D, CTRL_J, UP = "\r", "\x03", "\x04", "\n", "\x1b[A"


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[PipeInput]:
    monkeypatch.setattr(terminal, "create_output", lambda **_: DummyOutput())
    with create_pipe_input() as made, create_app_session(input=made, output=DummyOutput()):
        yield made


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("hello" + ENTER, "hello"),
        ("one" + CTRL_J + "two" + ENTER, "one\ntwo"),
        ('"""' + ENTER + "one" + ENTER + "two" + ENTER + '"""' + ENTER, '"""\none\ntwo\n"""'),
        ("wrong" + CTRL_C + "right" + ENTER, "right"),
        ("\x1b[200~" + "\r\n".join(f"line {n}" for n in range(200)) + "\x1b[201~" + ENTER, None),
        (CTRL_D, ""),
        (CTRL_C + CTRL_C, ""),
        (CTRL_C + "stay" + ENTER, "stay"),
    ],
)
def test_keys_make_a_message(keys: PipeInput, typed: str, message: str | None) -> None:
    keys.send_text(typed)
    got = TerminalSource().read()
    if message is None:
        assert got == "\n".join(f"line {n}" for n in range(200))
    else:
        assert (got or "") == message


class Later:
    """Work that is over once the prompt is there and the keys are pressed that come then, piece by piece."""

    failure = None

    def __init__(self, keys: PipeInput, *pieces: str) -> None:
        self._keys = keys
        self._pieces = list(pieces)

    @property
    def is_over(self) -> bool:
        return not self._pieces

    def has_news(self) -> bool:
        self._keys.send_text(self._pieces.pop(0))
        return False

    def tell(self) -> None: ...

    def bar(self, columns: int) -> str:
        return ""[:columns]


def test_lines_that_come_in_one_piece_are_text_of_one_message(keys: PipeInput) -> None:
    lines = "def f(x):\r    x += 1\r    return x\r"
    source = TerminalSource(work=Later(keys, "why: ", lines, ENTER))
    assert source.read() == "why: def f(x):\n    x += 1\n    return x\n"


def test_lines_that_were_typed_before_the_prompt_was_there_are_messages(keys: PipeInput) -> None:
    source = TerminalSource(work=Later(keys, "", "", "", ENTER))
    keys.send_text("a first question" + ENTER + "a second question" + ENTER)
    assert source.read() == "a first question"
    assert source.read() == "a second question"


def test_a_marked_paste_that_comes_in_pieces_has_no_marks_in_it(keys: PipeInput) -> None:
    pieces = ("\x1b[20", "0~one line\ranother line\r", "a third line\rthe last", " one\x1b[201~", ENTER)
    assert TerminalSource(work=Later(keys, *pieces)).read() == "one line\nanother line\na third line\nthe last one"


class Telling:
    """Work that has something to tell, once, and then Enter is pressed."""

    is_over = False
    failure = None

    def __init__(self, keys: PipeInput) -> None:
        self._keys = keys
        self.told = 0

    def has_news(self) -> bool:
        return not self.told

    def tell(self) -> None:
        self.told += 1
        self._keys.send_text("typed meanwhile" + ENTER)

    def bar(self, columns: int) -> str:
        return "Loading"[:columns]


def test_what_is_told_above_the_prompt_leaves_the_terminals_keys_to_the_prompt(
    keys: PipeInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_cooked = 0

    def cooked() -> AbstractContextManager[None]:
        nonlocal n_cooked
        n_cooked += 1
        return nullcontext()

    monkeypatch.setattr(keys, "cooked_mode", cooked)
    work = Telling(keys)
    assert TerminalSource(work=work).read() == "typed meanwhile"
    assert work.told == 1
    assert n_cooked == 0  # a terminal shows what is typed then, and makes another key of Enter


def test_a_default_can_be_edited(keys: PipeInput) -> None:
    keys.send_text("!" + ENTER)
    assert TerminalSource().read("again") == "again!"


def test_ctrl_c_gives_up_a_text_that_the_prompt_began_with(keys: PipeInput) -> None:
    source = TerminalSource()
    keys.send_text(CTRL_C)
    assert source.read("the last message") == ""
    keys.send_text("wrong" + CTRL_C + "right" + ENTER)
    assert source.read() == "right"


def test_a_command_typed_at_once_before_a_text_that_the_prompt_began_with_is_not_appended_to_it(
    keys: PipeInput,
) -> None:
    source = TerminalSource()
    keys.send_text("/set overflow drop" + ENTER)
    assert source.read("too long") == "/set overflow drop"
    keys.send_text("\x1b[200~/set overflow drop\r\x1b[201~" + ENTER)
    assert source.read("too long") == "/set overflow drop\n"
    keys.send_text("\x1b[200~/* a comment */\rint x;\x1b[201~" + ENTER)
    assert source.read("too long: ") == "too long: /* a comment */\nint x;"
    for given_up in ("/se" + CTRL_C, "/s\x7f\x7f"):
        keys.send_text(given_up + "!" + ENTER)
        assert source.read("too long") == "too long!"
    keys.send_text(" /etc" + ENTER)
    assert source.read("what is in") == "what is in /etc"


def test_up_is_history_only_on_the_first_line(keys: PipeInput) -> None:
    source = TerminalSource()
    keys.send_text("earlier" + ENTER)
    source.read()
    keys.send_text("one" + CTRL_J + "two" + UP + "!" + ENTER)
    assert source.read() == "one!\ntwo"
    keys.send_text(UP + UP + UP + ENTER)
    assert source.read() == "earlier"


def test_history_is_private_survives_and_stays_short(
    keys: PipeInput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "state" / "prompt_history"
    keys.send_text("remember me" + ENTER)
    TerminalSource(history_file=file).read()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    keys.send_text(UP + ENTER)
    assert TerminalSource(history_file=file).read() == "remember me"
    monkeypatch.setattr(prompt_history, "_HISTORY_BYTES", 600)
    for n in range(25):
        keys.send_text(f"prompt number {n}" + ENTER)
        TerminalSource(history_file=file).read()
    assert file.stat().st_size < 900
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    keys.send_text(UP + ENTER)
    assert TerminalSource(history_file=file).read() == "prompt number 24"


def test_a_history_that_cannot_be_written_is_no_obstacle(keys: PipeInput, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    keys.send_text("hello" + ENTER)
    assert TerminalSource(history_file=tmp_path / "file" / "history").read() == "hello"


def test_completion_of_commands_paths_and_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    completer = ChatCompleter(lambda: ["demo", "qwen3", "big-qwen"])

    def offered(text: str) -> list[str]:
        return [item.text for item in completer.get_completions(Document(text), CompleteEvent())]

    assert offered("/re") == ["/regen", "/read "]
    assert offered("/set te") == ["temperature "]
    assert offered("/set kv_type f") == ["f16", "f32"]
    assert offered("/set spec s") == ["suffix", "self"]
    assert offered("/show p") == ["parameters"]
    assert offered("/think h") == ["high", "hide"]
    assert offered("/read no") == ["tes.txt"]
    assert offered("/model q") == ["qwen3"]
    assert offered("/regen x") == []
    assert offered("plain text") == []
    (tmp_path / "my notes.txt").write_text("")
    assert offered("what is @no") == ["notes.txt"]
    assert offered('what is @"no') == ['"notes.txt']
    assert offered("what is @my") == ['"my notes.txt']
    assert offered('what is @"my no') == ['"my notes.txt']
    assert offered("me@no") == []


def test_a_pipe_is_one_message_a_line_and_blocks() -> None:
    source = PipeSource(StringIO('one\n\n  \n"""\ntwo\nthree\n"""\nlast'))
    messages = []
    while (message := source.read("never used")) is not None:
        messages.append(message)
    assert [message.strip() for message in messages] == ["one", '"""\ntwo\nthree\n"""', "last"]
