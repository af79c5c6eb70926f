"""Opens a private SQLite file at the current version of its schema, and turns SQLite's errors into ours.

Responsible for file modes, durability, migrations and for wiping what was deleted; it knows no table. Nothing is ever
deleted or repaired here: a file that cannot be used is refused with the way to move it aside.
"""

from __future__ import annotations

import errno
import os
import shlex
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from runner.errors import BusyError, RunnerError, StoreError, StoreUnwritable
from runner.paths import open_private

BUSY_TIMEOUT_S = 5.0
# Says whose file this is ("RUNR"), so that no other program's database is ever migrated.
APPLICATION_ID = 0x52554E52
_USABLE = "It and its directory must be yours to write, on a disk that works; RUNNER_HOME names another place."
_ROOM = "Make room on it."


def connect(path: Path, migrations: Sequence[str]) -> sqlite3.Connection:
    """A connection to the database at `path`, made and migrated as needed; autocommit, usable from any thread.

    migrations: script i takes the schema from version i to i + 1. The file and SQLite's own beside it get mode 0600,
    directories that are missing 0700. Raises BusyError when another process holds it for longer than BUSY_TIMEOUT_S,
    StoreError when it is damaged, not ours or from a newer version, StoreUnwritable when it cannot be opened.
    """
    with as_runner_errors(path):
        _make_private(path)
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            _configure(connection)
            _migrate(connection, path, migrations)
            _use_wal(connection)
        except BaseException:
            connection.close()
            raise
        return connection


@contextmanager
def transaction(connection: sqlite3.Connection, *, durable: bool = True) -> Iterator[None]:
    """A write transaction: all of it is committed, or nothing.

    What is committed survives the death of the process; `durable` makes it survive a power cut as well, at the price
    of one fsync.
    """
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def truncate_log(connection: sqlite3.Connection) -> bool:
    """Move the write-ahead log into the database and empty it, so that it keeps no text that was replaced or removed.

    False when another process was reading for longer than BUSY_TIMEOUT_S: the log stays until the next time.
    """
    return not connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]


def wipe_deleted(connection: sqlite3.Connection) -> None:
    """Remove what was deleted from the files: rebuild the database without unused pages, and empty its log.

    secure_delete zeroes rows as they go, but their old pages are in the log, and pages that were rearranged may keep
    scraps. What a disk or a snapshot keeps below the file system is out of reach. Raises BusyError when another
    process stands in the way.
    """
    try:
        connection.execute("VACUUM")
        wiped = truncate_log(connection)
    except sqlite3.OperationalError as error:
        if not _is_busy(error):
            raise
        wiped = False
    if not wiped:
        raise BusyError(
            "The chats are deleted, but their text is still in the files of the database, which another runner uses.",
            hint="Close the other one, or delete something else later: both wipe it.",
        )


@contextmanager
def as_runner_errors(path: Path) -> Iterator[None]:
    """SQLite's and the system's errors about the database at `path`, as StoreError or BusyError with the remedy."""
    try:
        yield
    except RunnerError:
        raise
    except sqlite3.OperationalError as error:
        raise _operational(error, path) from error
    except sqlite3.DatabaseError as error:
        if type(error) is not sqlite3.DatabaseError:  # a broken constraint or a wrong call is a bug of ours
            raise
        raise _damaged(error, path) from error
    except OSError as error:
        reason = error.strerror or str(error)
        hint = _ROOM if error.errno in (errno.ENOSPC, errno.EDQUOT) else _USABLE
        raise StoreUnwritable(f"The chat database {path} cannot be opened: {reason}.", hint=hint) from error


def _operational(error: sqlite3.OperationalError, path: Path) -> RunnerError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if _is_busy(error):
        return BusyError(f"The chat database {path} is in use by another process.", hint="Try again.")
    if code == sqlite3.SQLITE_FULL:
        return StoreUnwritable(f"The disk of the chat database {path} is full.", hint=_ROOM)
    if code == sqlite3.SQLITE_READONLY:
        return StoreUnwritable(f"The chat database {path} may only be read.", hint=_USABLE)
    if code == sqlite3.SQLITE_ERROR:  # our statements are right, so what they speak of is not as it was made
        return _damaged(error, path)
    return StoreUnwritable(f"The chat database {path} cannot be used: {error}.", hint=_USABLE)


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _damaged(error: sqlite3.DatabaseError, path: Path) -> StoreError:
    return StoreError(f"The chat database {path} is damaged: {error}.", hint=_move_aside(path))


def _move_aside(path: Path) -> str:
    """How to keep a file that cannot be used and start a new one; SQLite's own files must go along."""
    target = path.parent / "chats-aside"
    command = f"mkdir {shlex.quote(str(target))} && mv {shlex.quote(str(path))}* {shlex.quote(str(target))}/"
    return f"`{command}` moves it aside, and runner starts a new one."


def _make_private(path: Path) -> None:
    """The database file with mode 0600; SQLite gives the same mode to the -wal and -shm files that it makes."""
    os.close(open_private(path, os.O_RDWR | os.O_CREAT))
    for suffix in ("-wal", "-shm"):
        beside = path.with_name(path.name + suffix)
        try:
            beside.chmod(0o600)
        except FileNotFoundError:  # the usual case: nobody else has it open
            pass


def _configure(connection: sqlite3.Connection) -> None:
    # One damaged text is no reason to show no chat.
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("PRAGMA temp_store = MEMORY")  # VACUUM would copy every chat to a file in /tmp


def _use_wal(connection: sqlite3.Connection) -> None:
    """Write-ahead logging: a reader never waits for a writer. The mode is kept in the file.

    Two processes that change it at once do not wait for each other as they do elsewhere, so this one tries again.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return  # a file system without shared memory keeps the old mode, which is as safe and only slower
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    if (
        _pragma(connection, "user_version") == len(migrations)
        and _pragma(connection, "application_id") == APPLICATION_ID
    ):
        return
    with transaction(connection):  # the version is read again inside: another process may have migrated meanwhile
        version = _pragma(connection, "user_version")
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and _pragma(connection, "application_id") != APPLICATION_ID:
            raise StoreError(f"{path} is a database of another program.", hint=_move_aside(path))
        if version > len(migrations):
            raise StoreError(
                f"The chat database {path} was written by a newer runner (version {version}, this one knows "
                f"{len(migrations)}).",
                hint="Upgrade runner.",
            )
        for script in migrations[version:]:
            for statement in _statements(script):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(migrations)}")


def _statements(script: str) -> Iterator[str]:
    """The single statements of a script: sqlite3's executescript would commit the transaction that it runs in."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        raise ValueError(f"a migration ends inside a statement: {pending.strip()!r}")
