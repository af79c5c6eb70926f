"""`runner chat` from a pipe: a message a line, what is kept, what is gone on with, and the exit codes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.cli.app import main
from runner.paths import user_paths
from runner.store import Store
from runner.transcript import Session, Turn


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def feed(text: str) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return feed


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "m.script.json"
    path.write_text(json.dumps({"replies": ["first", "second", "third"], "n_ctx": 256}))
    return str(path)


def kept() -> tuple[Session | None, list[Turn]]:
    store = Store(user_paths().database)
    session = store.latest()
    turns = store.turns(session.id) if session else []
    store.close()
    return session, turns


def test_each_line_of_a_pipe_is_a_message_and_stdout_has_only_answers(
    model: str, pipe: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    pipe("one\n\ntwo")
    assert main(["chat", model, "-s", "Be brief.", "-c", "512"]) == 0
    assert not list(user_paths().data.glob("*-wal")), "the database is closed"
    captured = capsys.readouterr()
    assert captured.out == "first\nsecond\n"
    assert "fake: " in captured.err
    assert "-c 256 keeps to it" in captured.err  # who pipes text has flags
    session, turns = kept()
    assert session is not None
    assert session.system == "Be brief."
    assert [turn.content for turn in turns] == ["one", "first", "two", "second"]


def test_a_chat_is_gone_on_with_by_continue_and_by_its_id(
    model: str, pipe: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    pipe("one")
    assert main(["chat", model, "--temp", "0.25"]) == 0
    session, _ = kept()
    assert session is not None
    capsys.readouterr()
    pipe("two")
    assert main(["chat", "--continue"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "second\n"
    assert "› one" in captured.err
    assert "first" in captured.err
    pipe("three\n/show parameters")
    assert main(["chat", "--resume", session.id[:4], "--top-k", "7"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "third\n"
    assert "temperature        0.25" in captured.err
    assert "top_k              7" in captured.err
    resumed, turns = kept()
    assert resumed is not None
    assert resumed.id == session.id
    assert len(turns) == 6


def test_no_log_leaves_nothing_behind(model: str, pipe: Callable[[str], None]) -> None:
    pipe("a secret")
    assert main(["chat", model, "--no-log"]) == 0
    for path in user_paths().data.parent.rglob("*"):
        assert path.is_dir() or b"a secret" not in path.read_bytes(), path
    assert not user_paths().database.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--continue"], "no chat to go on with"),
        (["--resume", "zzzz"], "no chat 'zzzz'"),
        (["--resume", ""], "--resume is empty"),
        (["--continue", "--resume", "zzzz"], "both given"),
        (["--continue", "--no-log"], "--no-log"),
        (["no-such-model"], "no-such-model"),
        (["demo", "--temp", "-1"], "from 0 to 100"),
        (["demo", "--stop", ""], "error: --stop is ''."),
        (["demo", "--kv-type", "q3"], "q8_0"),
    ],
)
def test_wrong_usage_exits_2(
    pipe: Callable[[str], None], capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    pipe("x")
    assert main(["chat", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err


def test_the_remedy_for_a_chat_that_a_setting_keeps_from_going_on_is_that_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_SAVE_CHATS", "false")
    assert main(["chat", "--continue"]) == 2
    said = capsys.readouterr().err
    assert "RUNNER_SAVE_CHATS=true" in said
    assert "--no-log" not in said


def test_a_damaged_database_is_told_before_a_model_is_loaded(
    model: str, pipe: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    database = user_paths().database
    database.parent.mkdir(parents=True)
    database.write_bytes(b"garbage " * 1000)
    pipe("one")
    assert main(["chat", model]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "fake" not in captured.err
    assert captured.err.rstrip().endswith("--no-log chats without it.")
    pipe("one")
    assert main(["chat", model, "--no-log"]) == 0
    assert capsys.readouterr().out == "first\n"


def test_a_chat_where_nothing_can_be_kept_is_answered_and_says_so_once(
    model: str, pipe: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    database = user_paths().database
    database.parent.parent.mkdir(parents=True, exist_ok=True)
    database.parent.write_text("in the way of the directory")
    pipe("one\ntwo")
    assert main(["chat", model]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("first\n")
    assert captured.err.count("not kept yet") == 1
    assert captured.err.count("--no-log chats without it.") == 1


def test_a_message_that_does_not_fit_fails_and_the_next_one_is_answered(
    model: str, pipe: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    pipe("long " * 100 + "\nshort")
    assert main(["chat", model]) == 1
    captured = capsys.readouterr()
    assert captured.out == "first\n"
    assert "error: " in captured.err


def test_quiet_leaves_the_answers_alone(
    model: str, pipe: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    pipe("one")
    assert main(["chat", model, "-q"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("first\n", "")
