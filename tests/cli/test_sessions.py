"""`runner sessions`, as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.cli.app import main
from runner.paths import user_paths
from runner.store import Store
from runner.transcript import Turn, from_json

HOSTILE = "\x1b]52;c;ZXZpbA==\x07 [red]x[/] \x9b31m"


@pytest.fixture
def store(runner_home: Path) -> Iterator[Store]:
    made = Store(user_paths(runner_home).database)
    yield made
    made.close()


@pytest.fixture
def chat_id(store: Store) -> str:
    turns = [Turn(role="user", content="Where is Lima?"), Turn(role="assistant", content="In Peru.", seed=7)]
    return store.create_session(model="demo", title="Where is Lima?", turns=turns).id


def test_list_without_chats_prints_no_data(capsys: pytest.CaptureFixture[str], runner_home: Path) -> None:
    assert main(["sessions", "list"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "No chats" in err
    assert not user_paths(runner_home).database.exists()


def test_list_shows_a_row_a_chat(store: Store, chat_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    newer = store.create_session(model="m" + HOSTILE, title="t\n" + HOSTILE).id
    assert main(["sessions", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ID", newer, chat_id]
    assert "Where is Lima?" in lines[2]
    assert not any("\x1b" in line or "\x9b" in line for line in lines)
    assert main(["sessions", "list", "-n", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_list_as_json(chat_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["schema"] == "runner.sessions/1"
    (row,) = listed["sessions"]
    assert (row["id"], row["title"], row["model"], row["turns"]) == (chat_id, "Where is Lima?", "demo", 2)


def test_show_prints_the_chat_without_what_a_terminal_would_act_on(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    session = store.create_session(model="demo", turns=[Turn(role="assistant", content=f"a{HOSTILE}b")])
    assert main(["sessions", "show", session.id[:6]]) == 0
    out = capsys.readouterr().out
    assert "## Assistant" in out
    assert "[red]x[/]" in out
    assert "\x1b" not in out
    assert "\x9b" not in out


def test_export_to_stdout_as_json_is_raw_and_loads_again(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    session = store.create_session(model="demo", turns=[Turn(role="user", content=HOSTILE)])
    assert main(["sessions", "export", session.id, "--format", "json"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    kept, turns = from_json(json.loads(out))
    assert (kept.id, turns) == (session.id, store.turns(session.id))


@pytest.mark.parametrize(("name", "arguments"), [("a.json", []), ("a", ["--format", "json"]), ("a.md", [])])
def test_export_to_a_file(
    chat_id: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, arguments: list[str]
) -> None:
    file = tmp_path / name
    assert main(["sessions", "export", chat_id, "-o", str(file), *arguments]) == 0
    text = file.read_text()
    assert "In Peru." in text
    assert text.startswith("# Where") if name == "a.md" else json.loads(text)["id"] == chat_id
    assert capsys.readouterr().out == ""
    assert main(["sessions", "export", chat_id, "-o", str(file), *arguments]) == 2
    assert "already" in capsys.readouterr().err
    assert main(["sessions", "export", chat_id, "-o", str(file), "--force", *arguments]) == 0
    for directory in ("/", ".", str(tmp_path)):
        assert main(["sessions", "export", chat_id, "-o", directory, "--force", *arguments]) == 2
        assert f"error: {directory} is a directory, and this is written to a file.\n" in capsys.readouterr().err


def test_search_shows_where(store: Store, chat_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    store.create_session(model="demo", turns=[Turn(role="user", content="nothing of the sort")])
    assert main(["sessions", "search", "peru IN"]) == 0
    (header, row) = capsys.readouterr().out.splitlines()
    assert header.split() == ["ID", "TITLE", "WHO", "TEXT"]
    assert row.startswith(chat_id)
    assert row.endswith("assistant  In Peru.")
    assert main(["sessions", "search", "peru", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["matches"][0]["position"] == 1
    assert main(["sessions", "search", "atlantis"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("text", ["", " \n"])
def test_to_look_for_nothing_is_refused(
    store: Store, chat_id: str, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert store.get(chat_id)
    assert main(["sessions", "search", text, "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "nothing to look for" in err


def test_rename_changes_the_title(store: Store, chat_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions", "rename", chat_id, "Capitals\nof the world"]) == 0
    assert store.get(chat_id).title == "Capitals of the world"
    assert main(["sessions", "rename", chat_id, " "]) == 2
    assert "empty" in capsys.readouterr().err


def test_delete_removes_the_chats_that_are_named(
    store: Store, chat_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = store.create_session(model="demo", title="other").id
    assert main(["sessions", "delete", chat_id, chat_id[:7], "-y"]) == 0
    assert "Deleted 1 chat with 2 turns" in capsys.readouterr().err
    assert [summary.id for summary in store.sessions()] == [other]


def test_delete_all_leaves_no_text_behind(store: Store, chat_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert store.get(chat_id)
    assert main(["sessions", "delete", "--all", "-y"]) == 0
    assert "1 chat" in capsys.readouterr().err
    assert b"Lima" not in b"".join(path.read_bytes() for path in store.path.parent.iterdir())
    assert main(["sessions", "delete", "--all", "-y"]) == 0
    assert "no chats" in capsys.readouterr().err


def test_delete_says_where_else_the_text_may_be(
    store: Store, chat_id: str, runner_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = user_paths(runner_home).prompt_history
    history.parent.mkdir(parents=True)
    history.write_text("+Where is Lima?\n")
    assert main(["sessions", "delete", chat_id, "-y"]) == 0
    assert str(history) in capsys.readouterr().err
    assert store.sessions() == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["delete"],
        ["delete", "--all", "0"],
        ["delete", "absent"],
        ["show", "absent"],
        ["export", "x", "--format", "pdf"],
    ],
)
def test_a_wrong_call_deletes_nothing_and_exits_2(
    store: Store, chat_id: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sessions", *arguments]) == 2
    assert capsys.readouterr().err != ""
    assert store.get(chat_id)


def test_one_wrong_id_keeps_the_others_from_being_deleted(store: Store, chat_id: str) -> None:
    assert main(["sessions", "delete", chat_id, "absent", "-y"]) == 2
    assert store.get(chat_id)


def test_delete_without_a_terminal_asks_for_the_flag(
    store: Store, chat_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sessions", "delete", chat_id]) == 2
    assert "-y" in capsys.readouterr().err
    assert store.get(chat_id)


def test_resume_goes_on_with_the_chats_model_and_takes_the_flags_of_chat(store: Store, tmp_path: Path) -> None:
    script = tmp_path / "a.script.json"
    script.write_text(json.dumps({"replies": ["first", "second"]}))
    turns = [Turn(role="user", content="q1"), Turn(role="assistant", content="first")]
    session = store.create_session(model=str(script), turns=turns)
    code = "import sys; from runner.cli.app import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "sessions", "resume", session.id[:6], "--max-tokens", "3", "-q"]
    done = subprocess.run(command, input="q2\n", capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "sec")
    assert [turn.content for turn in store.turns(session.id)] == ["q1", "first", "q2", "sec"]


def test_a_damaged_database_is_reported_with_the_remedy(runner_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = user_paths(runner_home).database
    database.parent.mkdir(parents=True)
    database.write_bytes(b"garbage " * 1000)
    assert main(["sessions", "list"]) == 1
    err = capsys.readouterr().err
    assert "damaged" in err
    assert "mv " in err
    assert "--no-log" not in err  # which is of `runner chat` alone
