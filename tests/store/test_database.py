"""Opening, migrating and refusing databases."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from runner.errors import BusyError, StoreError
from runner.store.database import as_runner_errors, connect, transaction

FIRST = "CREATE TABLE notes (text TEXT NOT NULL); -- a comment; with semicolons;\nINSERT INTO notes VALUES ('a;b');\n"
SECOND = "ALTER TABLE notes ADD COLUMN stars INTEGER NOT NULL DEFAULT 1;\n"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_an_older_schema_is_migrated_with_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite3"
    connect(path, (FIRST,)).close()
    with closing(connect(path, (FIRST, SECOND))) as database:
        assert database.execute("SELECT * FROM notes").fetchall() == [("a;b", 1)]
        assert database.execute("PRAGMA user_version").fetchone() == (2,)


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite3"
    connect(path, (FIRST,)).close()
    with pytest.raises(StoreError):
        connect(path, (FIRST, SECOND + "DROP TABLE absent;\n"))
    with closing(connect(path, (FIRST,))) as database:
        assert database.execute("SELECT * FROM notes").fetchall() == [("a;b",)]


def test_a_database_from_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite3"
    connect(path, (FIRST, SECOND)).close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="newer") as caught:
        connect(path, (FIRST,))
    assert "Upgrade" in caught.value.hint
    assert path.read_bytes() == before


def test_another_programs_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite3"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE theirs (x)")
        other.commit()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        connect(path, (FIRST,))
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database " * 500, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_file_is_refused_with_a_way_to_move_it_aside_that_works(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "it's here" / "chats.sqlite3"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged") as caught:
        connect(path, (FIRST,))
    assert path.read_bytes() == content
    command = caught.value.hint.split("`")[1]
    subprocess.run(["sh", "-c", command], check=True)
    connect(path, (FIRST,)).close()
    assert (path.parent / "chats-aside" / "chats.sqlite3").read_bytes() == content


def test_damage_that_shows_later_is_a_store_error_too(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite3"
    with closing(connect(path, (FIRST,))) as database, transaction(database):
        database.executemany("INSERT INTO notes VALUES (?)", [("x" * 500,)] * 200)
    with path.open("r+b") as file:
        file.seek(2 * 4096)
        file.write(b"\xa5" * 8 * 4096)
    database = connect(path, (FIRST,))
    with pytest.raises(StoreError, match="damaged"), as_runner_errors(path):
        database.execute("SELECT sum(length(text)) FROM notes").fetchall()
    database.close()


def test_a_text_that_is_none_is_shown_as_far_as_it_is_one_and_hides_no_other(tmp_path: Path) -> None:
    with closing(connect(tmp_path / "notes.sqlite3", (FIRST,))) as database:
        database.execute("INSERT INTO notes VALUES (CAST(X'fffe41' AS TEXT))")
        assert database.execute("SELECT text FROM notes").fetchall() == [("a;b",), ("\ufffd\ufffdA",)]


def test_a_table_that_is_gone_is_damage_with_a_way_to_move_it_aside(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite3"
    with closing(connect(path, (FIRST,))) as database:
        database.execute("DROP TABLE notes")
        with pytest.raises(StoreError, match="damaged") as caught, as_runner_errors(path):
            database.execute("SELECT text FROM notes")
    assert "chats-aside" in caught.value.hint


def test_files_and_new_directories_are_private(tmp_path: Path) -> None:
    path = tmp_path / "data" / "notes.sqlite3"
    with closing(connect(path, (FIRST,))) as database, transaction(database):
        database.execute("INSERT INTO notes VALUES ('x')")
        modes = {file.name: mode(file) for file in path.parent.iterdir()}
    assert modes == {"notes.sqlite3": 0o600, "notes.sqlite3-wal": 0o600, "notes.sqlite3-shm": 0o600}
    assert mode(path.parent) == 0o700


def test_files_that_others_could_read_become_private(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite3"
    with closing(connect(path, (FIRST,))) as first, transaction(first):
        first.execute("INSERT INTO notes VALUES ('x')")
        for file in tmp_path.glob("notes*"):
            file.chmod(0o644)
        connect(path, (FIRST,)).close()
        assert {mode(file) for file in tmp_path.glob("notes*")} == {0o600}


def test_a_directory_in_the_way_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot be opened") as caught:
        connect(tmp_path / "file" / "notes.sqlite3", (FIRST,))
    assert "RUNNER_HOME" in caught.value.hint


def test_a_database_that_stays_locked_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.store.database.BUSY_TIMEOUT_S", 0.05)
    path = tmp_path / "notes.sqlite3"
    with closing(connect(path, (FIRST,))) as first, closing(connect(path, (FIRST,))) as second:
        first.execute("BEGIN IMMEDIATE")
        with pytest.raises(BusyError, match="in use"), as_runner_errors(path), transaction(second):
            pass


def test_a_transaction_that_fails_is_undone(tmp_path: Path) -> None:
    with closing(connect(tmp_path / "notes.sqlite3", (FIRST,))) as database:
        with pytest.raises(KeyboardInterrupt), transaction(database):
            database.execute("INSERT INTO notes VALUES ('lost')")
            raise KeyboardInterrupt
        assert database.execute("SELECT text FROM notes").fetchall() == [("a;b",)]


def test_processes_that_open_a_new_database_at_once_all_succeed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from runner.store.database import connect, transaction\n"
        "sys.stdin.readline()\n"
        "database = connect(Path(sys.argv[1]), (sys.argv[2],))\n"
        "with transaction(database): database.execute('INSERT INTO notes VALUES (1)')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "notes.sqlite3"), FIRST]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(6)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert errors == [b""] * 6
    with closing(connect(tmp_path / "notes.sqlite3", (FIRST,))) as database:
        assert database.execute("SELECT count(*) FROM notes").fetchone() == (7,)
