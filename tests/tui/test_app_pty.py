"""The whole interface in a real terminal: what a user does, what goes wrong around it, and what is left behind."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, cast

import psutil
import pytest
from chat_terminal import Terminal
from waiting import has_ended, wait_for

from runner import tui
from runner.paths import user_paths
from runner.store import Store
from runner.tui.pacing import ANSWER, ASK

CTRL_Q = "\x11"
LEFT_ALTERNATE_SCREEN = "\x1b[?1049l"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Opens the interface; with replies, on the scripted backend."""
    made: list[Terminal] = []

    def open_it(*replies: object, columns: int = 120, rows: int = 40) -> Terminal:
        if replies:
            script = tmp_path / "a.script.json"
            script.write_text(json.dumps({"replies": replies}))
            monkeypatch.setenv("RUNNER_MODEL", str(script))
        made.append(Terminal([], columns, rows))
        return made[-1]

    yield open_it
    for terminal in made:
        terminal.child.close(force=True)


def is_ready(shown: str) -> bool:
    return "● ready" in shown


def kept_answers() -> list[str]:
    store = Store(user_paths().database)
    latest = store.latest()
    assert latest is not None
    turns = store.turns(latest.id)
    store.close()
    return [turn.content for turn in turns if turn.role == "assistant"]


def wait_for_kept(terminal: Terminal, text: str) -> None:
    """Wait until an answer has come so far on the disk, where what came is written each half second."""
    terminal.wait_for(lambda _: any(answer.startswith(text) for answer in kept_answers()))


# F2 to F5, help, the palette: what is then on the screen at every size, and what no more.
KEYS = (
    ("\x1bOQ", "filter the models", "ask, /command"),
    ("\x1bOR", "Earlier runs", "filter the models"),
    ("\x1bOS", "y Copy", "Earlier runs"),
    ("\x1b[15~", "ask, /command", "y Copy"),
    ("\x1bOP", "Search the keys", "y Copy"),
    ("\x1b", "ask, /command", "Search the keys"),
    ("\x10", "Search for commands", "Search the keys"),
    ("\x1b", "ask, /command", "Search for commands"),
)


def leave(terminal: Terminal) -> None:
    """Leave by Ctrl+Q, and find nothing of it left."""
    children = psutil.Process(terminal.child.pid).children(recursive=True)
    terminal.type(CTRL_Q)
    assert terminal.wait_for_exit() == 0
    assert LEFT_ALTERNATE_SCREEN in terminal.raw
    assert "Traceback" not in terminal.raw
    wait_for(lambda: all(has_ended(child.pid) for child in children))


def test_a_new_user_is_in_a_chat_after_one_key_and_a_question(opened: Callable[..., Terminal]) -> None:
    terminal = opened()
    terminal.wait_for(lambda shown: "Welcome to runner" in shown and "demo" in shown)
    terminal.type("\r")
    terminal.wait_for(is_ready)
    terminal.type("What is the capital of Peru?\r")
    terminal.wait_for(lambda shown: "Lima" in shown and is_ready(shown))
    leave(terminal)
    assert "Lima" in kept_answers()[0]


def test_esc_stops_an_answer_and_what_came_stays(opened: Callable[..., Terminal]) -> None:
    terminal = opened({"text": "word " * 2000, "token_s": 0.005})
    terminal.wait_for(is_ready)
    terminal.type("go\r")
    terminal.wait_for(lambda shown: "word word" in shown)
    terminal.type("\x1b")
    terminal.wait_for(lambda shown: "stopped" in shown and is_ready(shown))
    leave(terminal)
    assert 0 < len(kept_answers()[0]) < 10_000


def test_a_storm_of_resizes_while_an_answer_streams_breaks_nothing(opened: Callable[..., Terminal]) -> None:
    terminal = opened({"text": "some **words** and `code`\n\n" * 300, "token_s": 0.001})
    terminal.wait_for(is_ready)
    terminal.type("go\r")
    terminal.wait_for(lambda shown: "some words" in shown)
    dice = random.Random(7)
    for _ in range(60):
        terminal.resize(dice.randint(10, 220), dice.randint(4, 70))
        terminal.read(0.02)
    terminal.resize(120, 40)
    terminal.wait_for(lambda shown: "some words" in shown and "SPEED" in shown)
    terminal.type("\x1b")
    terminal.wait_for(is_ready)
    leave(terminal)


def check_that_it_goes_on(terminal: Terminal) -> None:
    """After an engine that ended in an answer: another is begun, and what came of both is kept."""
    terminal.type("again\r")
    terminal.wait_for(lambda shown: "a whole answer" in shown and is_ready(shown))
    leave(terminal)
    first, second = kept_answers()
    assert first.startswith("partial")
    assert second == "a whole answer"


def test_the_interface_outlives_an_engine_that_is_killed(opened: Callable[..., Terminal]) -> None:
    terminal = opened({"text": "partial " * 500, "token_s": 0.01}, "a whole answer")
    terminal.wait_for(is_ready)
    terminal.type("go\r")
    terminal.wait_for(lambda shown: "partial partial" in shown)
    terminal.engine.kill()
    terminal.wait_for(lambda shown: "SIGKILL" in shown)
    assert "partial" in terminal.read(0.2)
    check_that_it_goes_on(terminal)


def test_an_engine_that_hangs_is_ended_by_esc_which_is_said_at_once_and_what_came_stays(
    opened: Callable[..., Terminal],
) -> None:
    terminal = opened({"text": "partial " * 500, "token_s": 0.01}, "a whole answer")
    terminal.wait_for(is_ready)
    terminal.type("go\r")
    terminal.wait_for(lambda shown: "partial partial" in shown)
    terminal.engine.suspend()
    terminal.type("\x1b")
    terminal.wait_for(lambda shown: "■ stopping" in shown)
    terminal.wait_for(lambda shown: "did not stop when asked to" in shown and "no model" in shown)
    check_that_it_goes_on(terminal)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_interface_that_is_ended_takes_its_engine_with_it(opened: Callable[..., Terminal], how: int) -> None:
    terminal = opened({"text": "word " * 2000, "token_s": 0.01})
    terminal.wait_for(is_ready)
    terminal.type("go\r")
    terminal.wait_for(lambda shown: "word word" in shown)
    engine = terminal.engine
    wait_for_kept(terminal, "word word")
    os.kill(terminal.child.pid, how)
    code = terminal.wait_for_exit()
    wait_for(lambda: has_ended(engine.pid))
    assert kept_answers()[0].startswith("word word")
    assert code == {signal.SIGKILL: -signal.SIGKILL}.get(how, 128 + how)
    assert (LEFT_ALTERNATE_SCREEN in terminal.raw) == (how == signal.SIGTERM)


@pytest.mark.parametrize("how", [None, signal.SIGTERM, signal.SIGHUP])
def test_what_is_typed_and_not_sent_is_there_the_next_time(opened: Callable[..., Terminal], how: int | None) -> None:
    terminal = opened("fine")
    terminal.wait_for(is_ready)
    terminal.type("half a thought")
    terminal.wait_for(lambda shown: "half a thought" in shown)
    if how is None:
        leave(terminal)
    else:
        os.kill(terminal.child.pid, how)
        terminal.wait_for_exit()
    again = opened("fine")
    again.wait_for(is_ready)
    # What was written before is read beside all else, and may come after "ready".
    again.wait_for(lambda shown: "half a thought" in shown or again.type("\x1b[A") is not None)
    leave(again)


def test_after_the_shell_had_stopped_it_the_whole_screen_is_shown_again(opened: Callable[..., Terminal]) -> None:
    terminal = opened("fine")
    terminal.wait_for(is_ready)
    terminal.type(ANSWER)  # a terminal that answers: frames wait for it
    terminal.read(0.2)
    process = psutil.Process(terminal.child.pid)
    os.kill(process.pid, signal.SIGTSTP)
    wait_for(lambda: terminal.read(0.05) is not None and process.status() == psutil.STATUS_STOPPED)
    before = len(terminal.raw)
    os.kill(process.pid, signal.SIGCONT)
    terminal.wait_for(lambda _: all(words in terminal.raw[before:] for words in ("● ready", "SPEED", "SESSIONS")))
    leave(terminal)


def test_when_the_terminal_goes_away_nothing_stays_behind(opened: Callable[..., Terminal]) -> None:
    terminal = opened({"text": "word " * 2000, "token_s": 0.01})
    terminal.wait_for(is_ready)
    terminal.type("go\r")
    terminal.wait_for(lambda shown: "word word" in shown)
    processes = [psutil.Process(terminal.child.pid), terminal.engine]
    wait_for_kept(terminal, "word word")
    terminal.child.ptyproc.fileobj.close()
    wait_for(lambda: all(has_ended(one.pid) for one in processes))
    assert kept_answers()[0].startswith("word word")


def test_a_message_is_written_in_the_editor_and_a_chat_read_in_the_pager(
    opened: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable, body in (
        ("VISUAL", 'printf "and more" >> "$1"; echo the editor is here; sleep 0.3'),
        ("PAGER", "echo the pager is here; cat; read -r line </dev/tty"),
    ):
        program = tmp_path / variable
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o700)
        monkeypatch.setenv(variable, str(program))
    terminal = opened("a long answer")
    terminal.wait_for(is_ready)
    terminal.type("begun, \x07")
    terminal.wait_for(lambda _: "the editor is here" in terminal.raw)
    terminal.wait_for(lambda shown: "begun, and more" in shown)
    terminal.type("\r")
    terminal.wait_for(lambda shown: "a long answer" in shown and is_ready(shown))
    terminal.type("\x1b")
    terminal.wait_for(lambda shown: "y Copy" in shown)
    terminal.type("v")
    terminal.wait_for(lambda shown: "the pager is here" in shown and "a long answer" in shown and not is_ready(shown))
    terminal.type("\x03")
    terminal.read(0.3)
    assert terminal.child.isalive()
    terminal.type("\r")
    terminal.wait_for(is_ready)
    leave(terminal)


@pytest.mark.parametrize("editor", ["false", "no-such-editor"])
def test_an_editor_that_fails_is_an_error_and_the_interface_goes_on(
    opened: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch, editor: str
) -> None:
    monkeypatch.setenv("VISUAL", editor)
    terminal = opened("a long answer")
    terminal.wait_for(is_ready)
    terminal.type("begun \x07")
    terminal.wait_for(lambda shown: "The editor" in shown)
    terminal.type("and more")
    terminal.wait_for(lambda shown: "begun and more" in shown)
    leave(terminal)


def test_an_answer_waits_for_a_slow_terminal_and_keys_do_not_wait_behind_it(opened: Callable[..., Terminal]) -> None:
    terminal = opened({"text": "some **words** and `code`\n\n" * 3000, "token_s": 0.001})
    terminal.wait_for(is_ready)
    assert terminal.raw.count(ASK) == 1  # nothing answered it, and nothing waits
    terminal.type(ANSWER)
    terminal.type("go\r")
    terminal.wait_for(lambda _: terminal.raw.count(ASK) >= 3)
    began, n_asked = time.monotonic(), terminal.raw.count(ASK)
    for _ in range(5):
        terminal.read(0.5)
    n_more = 1 + (time.monotonic() - began) // 2  # one after a second, and ever fewer later
    assert terminal.raw.count(ASK) <= n_asked + n_more  # of thirty frames of the answer, which goes on
    terminal.type("\x1b")
    n_answered = 1
    while not ("stopped" in (shown := terminal.read(0.1)) and is_ready(shown)):
        owed = terminal.raw.count(ASK) - n_answered
        terminal.type(ANSWER * owed)
        n_answered += owed
        assert n_answered < 100  # of a thousand frames
    leave(terminal)


def test_every_mode_opens_at_every_size(opened: Callable[..., Terminal]) -> None:
    terminal = opened("fine", columns=12, rows=5)
    terminal.wait_for(lambda shown: bool(shown.strip()))
    for columns, rows in ((12, 5), (40, 12), (80, 24), (200, 60)):
        terminal.resize(columns, rows)
        for key, there, gone in KEYS:
            terminal.type(key)
            if columns < 40:  # too small for words
                terminal.read(0.4)
            else:
                terminal.wait_for(lambda shown, there=there, gone=gone: there in shown and gone not in shown)  # type: ignore[misc]
            assert terminal.child.isalive()
    leave(terminal)


class CannotKeep:
    """An interface whose disk is full."""

    def keep_draft(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_terminal_that_closes_ends_it_also_where_nothing_can_be_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process still wants its own

    def leave(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit, match="129"):
        tui._hang_up(cast(Any, CannotKeep()))
    assert "not all was kept" in caplog.text
