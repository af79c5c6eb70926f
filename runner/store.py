"""Keeps chats in SQLite: sessions and their turns, search, and deletion that leaves nothing behind.

Each write is one transaction: what a call has written survives the death of the process right after it. Any number of
threads and processes may use one database. It knows nothing of engines or screens; text is kept as it came.
"""

from __future__ import annotations

import difflib
import json
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.database import as_runner_errors, connect, transaction, truncate_log, wipe_deleted
from runner.errors import UsageError
from runner.search_text import excerpt, fold, fold_terms
from runner.transcript import Session, SessionSummary, Turn

MIGRATIONS = (
    """
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL,
        model TEXT NOT NULL,
        backend TEXT NOT NULL,
        system TEXT,
        settings TEXT NOT NULL,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        revision INTEGER NOT NULL
    );
    CREATE INDEX sessions_by_use ON sessions (updated_at DESC);
    CREATE TABLE turns (
        session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant', 'tool')),
        content TEXT NOT NULL,
        reasoning TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('complete', 'partial', 'cancelled', 'error')),
        model TEXT NOT NULL,
        seed TEXT,
        timings TEXT NOT NULL,
        created_at REAL NOT NULL,
        PRIMARY KEY (session_id, position)
    ) WITHOUT ROWID;
    """,
)

# Letters and digits that are not mistaken for each other (Crockford's base 32).
_ID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_ID_LENGTH = 8
_DESCRIBED = "title, model, backend, system, settings"
_SESSION = f"id, created_at, updated_at, revision, {_DESCRIBED}"
_TURN = "role, content, reasoning, state, model, seed, timings, created_at"
_SUMMARY = """id, title, model, backend, created_at, updated_at,
    (SELECT count(*) FROM turns WHERE session_id = id)"""
_NEWEST_FIRST = "ORDER BY updated_at DESC, sessions.rowid DESC"


@dataclass(frozen=True, kw_only=True)
class Match:
    """A turn in which a search found its text. position is None for a match in the title; excerpt is safe to print."""

    session: SessionSummary
    position: int | None
    role: str
    excerpt: str


@dataclass(frozen=True, kw_only=True)
class Deleted:
    """What a deletion removed. freed_bytes: how much smaller the database became."""

    n_sessions: int
    n_turns: int
    freed_bytes: int


class Store:
    """The chats in the database at `path`. Nothing is opened or made before it is needed, no file before a write.

    now: the clock, in seconds since the epoch. Every method raises StoreError or BusyError (database.py says when).
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self.path = path
        self._now = now
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        """Close the database; the next call opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    # --- writing ---------------------------------------------------------------------------------------------------

    def create_session(
        self,
        *,
        model: str,
        backend: str = "",
        title: str = "",
        system: str | None = None,
        settings: Mapping[str, Any] | None = None,
        turns: Sequence[Turn] = (),
    ) -> Session:
        """A new chat, with the turns that it has already."""
        now = round(self._now(), 3)
        with self._write() as database:
            session = Session(
                id=self._free_id(database),
                title=title,
                model=model,
                backend=backend,
                system=system,
                settings=dict(settings or {}),
                created_at=now,
                updated_at=now,
            )
            database.execute(
                f"INSERT INTO sessions ({_SESSION}) VALUES (?, ?, ?, 0, ?, ?, ?, ?, ?)",
                (session.id, now, now, *_described(session)),
            )
            _insert_turns(database, session.id, 0, turns, now)
        return session

    def write_turns(
        self,
        session_id: str,
        position: int,
        turns: Sequence[Turn],
        *,
        revision: int | None = None,
        durable: bool = True,
    ) -> int | None:
        """Replace everything from `position` on by `turns`: append, correct, and remove are all this one step.

        Returns the new revision, or None, with nothing written, when the chat is gone or is no longer at `revision`
        (another process wrote to it). durable False spares the fsync: the write survives a kill but perhaps not a
        power cut. Removed text is wiped from the files.
        """
        now = round(self._now(), 3)
        with self._write(durable=durable) as database:
            row = database.execute("SELECT revision FROM sessions WHERE id = ?", (session_id,)).fetchone()
            if row is None or revision not in (None, row[0]):
                return None
            removed = database.execute(
                "DELETE FROM turns WHERE session_id = ? AND position >= ?", (session_id, position)
            ).rowcount
            _insert_turns(database, session_id, position, turns, now)
            database.execute(
                "UPDATE sessions SET revision = revision + 1, updated_at = max(updated_at, ?) WHERE id = ?",
                (now, session_id),
            )
        if removed and durable:  # not while an answer streams: each save replaces the one before
            with self._read() as database:
                truncate_log(database)
        return int(row[0]) + 1

    def update_session(self, session_id: str, change: Callable[[Session], Session]) -> Session | None:
        """Apply `change` to the title, model, backend, system prompt and settings as they are kept now.

        Returns the new session, or None when there is none with that id. Its place in the list of chats stays.
        """
        if not self._exists():
            return None
        with self._write() as database:
            row = database.execute(f"SELECT {_SESSION} FROM sessions WHERE id = ?", (session_id,)).fetchone()
            if row is None:
                return None
            new = change(_session(row))
            database.execute(
                "UPDATE sessions SET title = ?, model = ?, backend = ?, system = ?, settings = ? WHERE id = ?",
                (*_described(new), session_id),
            )
            row = database.execute(f"SELECT {_SESSION} FROM sessions WHERE id = ?", (session_id,)).fetchone()
        return _session(row)

    def delete(self, session_ids: Sequence[str]) -> Deleted:
        """Delete these chats (full ids; others are passed over) for good: no file of the database keeps their text."""
        if not session_ids or not self._exists():
            return Deleted(n_sessions=0, n_turns=0, freed_bytes=0)
        before = self._size()
        n_sessions = n_turns = 0
        with self._write() as database:
            for session_id in session_ids:
                n_turns += database.execute("DELETE FROM turns WHERE session_id = ?", (session_id,)).rowcount
                n_sessions += database.execute("DELETE FROM sessions WHERE id = ?", (session_id,)).rowcount
        with self._read() as database:
            wipe_deleted(database)
        return Deleted(n_sessions=n_sessions, n_turns=n_turns, freed_bytes=max(0, before - self._size()))

    def delete_all(self) -> Deleted:
        """Delete every chat for good."""
        return self.delete([session.id for session in self.sessions()])

    # --- reading ---------------------------------------------------------------------------------------------------

    def sessions(self, limit: int | None = None) -> list[SessionSummary]:
        """The chats, the one used last first; at most `limit`."""
        query = f"SELECT {_SUMMARY} FROM sessions {_NEWEST_FIRST} LIMIT ?"
        return [_summary(row) for row in self._all(query, -1 if limit is None else limit)]

    def latest(self) -> Session | None:
        """The chat used last."""
        rows = self._all(f"SELECT {_SESSION} FROM sessions {_NEWEST_FIRST} LIMIT 1")
        return _session(rows[0]) if rows else None

    def get(self, id_or_prefix: str) -> Session:
        """The chat with that id, or the only one whose id begins so. Raises UsageError naming what was perhaps meant."""
        wanted = id_or_prefix.strip().lower()
        query = f"SELECT {_SESSION} FROM sessions WHERE substr(id, 1, ?) = ? ORDER BY id"
        found = [_session(row) for row in self._all(query, len(wanted), wanted)] if wanted else []
        exact = [session for session in found if session.id == wanted]
        if len(found) == 1 or exact:
            return (exact or found)[0]
        if found:
            listed = ", ".join(f"{session.id} ({session.title})" for session in found[:5])
            raise UsageError(f"{len(found)} chats have an id that begins with {id_or_prefix!r}.", hint=f"{listed}.")
        raise self._unknown(id_or_prefix)

    def turns(self, session_id: str) -> list[Turn]:
        """The turns of the chat with that id (in full), in order."""
        query = f"SELECT {_TURN} FROM turns WHERE session_id = ? ORDER BY position"
        return [_turn(row) for row in self._all(query, session_id)]

    def search(self, text: str, limit: int | None = 50) -> list[Match]:
        """Where all words of `text` occur in one turn or title, the chats used last first.

        Case and the form of accents do not matter, and a word may be part of a longer one, so that scripts without
        spaces are found. It reads every turn (about 0.3 s for 100 MB); an index would keep a second copy of the text.
        """
        terms = fold_terms(text)
        matches: list[Match] = []
        for summary in self.sessions() if terms else ():
            candidates: list[tuple[Any, ...]] = [(None, "", summary.title)]
            query = "SELECT position, role, content FROM turns WHERE session_id = ? ORDER BY position"
            candidates += self._all(query, summary.id)
            for position, role, content in candidates:
                folded = fold(content)
                if all(term in folded for term in terms):
                    shown = excerpt(content, terms)
                    matches.append(Match(session=summary, position=position, role=role, excerpt=shown))
                    if limit is not None and len(matches) >= limit:
                        return matches
        return matches

    # --- the database ----------------------------------------------------------------------------------------------

    def _exists(self) -> bool:
        with as_runner_errors(self.path):
            return self._connection is not None or self.path.exists()

    def _size(self) -> int:
        names = (self.path.name, f"{self.path.name}-wal")
        return sum(path.stat().st_size for name in names if (path := self.path.with_name(name)).exists())

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        with self._lock, as_runner_errors(self.path):
            if self._connection is None:
                self._connection = connect(self.path, MIGRATIONS)
            yield self._connection

    @contextmanager
    def _write(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        with self._read() as database, transaction(database, durable=durable):
            yield database

    def _all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        if not self._exists():
            return []
        with self._read() as database:
            return database.execute(query, values).fetchall()

    def _free_id(self, database: sqlite3.Connection) -> str:
        while True:
            new = "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))
            if database.execute("SELECT 1 FROM sessions WHERE id = ?", (new,)).fetchone() is None:
                return new

    def _unknown(self, wanted: str) -> UsageError:
        known = self.sessions(limit=200)
        if not known:
            return UsageError(f"There is no chat {wanted!r}.", hint="No chats are kept yet.")
        names = {name.lower(): session for session in known for name in (session.id, session.title) if name}
        near = [names[name] for name in difflib.get_close_matches(wanted.lower(), names, n=3, cutoff=0.5)]
        listed = " or ".join(dict.fromkeys(f"{session.id} ({session.title})" for session in near))
        hint = f"Did you mean {listed}?" if near else "`runner sessions list` shows them."
        return UsageError(f"There is no chat {wanted!r}.", hint=hint)


# --- rows and values -----------------------------------------------------------------------------------------------


def _insert_turns(
    database: sqlite3.Connection, session_id: str, position: int, turns: Sequence[Turn], now: float
) -> None:
    """Turns without a time of their own get `now`."""
    database.executemany(
        f"INSERT INTO turns (session_id, position, {_TURN}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                session_id,
                position + index,
                turn.role,
                _text(turn.content),
                _text(turn.reasoning),
                turn.state,
                _text(turn.model),
                None if turn.seed is None else str(turn.seed),  # SQLite's integers end at 2^63
                json.dumps(dict(turn.timings)),
                turn.created_at or now,
            )
            for index, turn in enumerate(turns)
        ],
    )


def _described(session: Session) -> tuple[str | None, ...]:
    """The values of the columns _DESCRIBED."""
    system = None if session.system is None else _text(session.system)
    settings = json.dumps(dict(session.settings))
    return _text(session.title), _text(session.model), _text(session.backend), system, settings


def _text(value: str) -> str:
    """`value` as it is, save that half of a surrogate pair, which is no character and has no UTF-8, becomes U+FFFD."""
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise sqlite3.DatabaseError("a row holds something else than the JSON that was written")
    return value


def _session(row: tuple[Any, ...]) -> Session:
    identity, created_at, updated_at, revision, title, model, backend, system, settings = row
    return Session(
        id=identity,
        title=title,
        model=model,
        backend=backend,
        system=system,
        settings=_object(settings),
        created_at=created_at,
        updated_at=updated_at,
        revision=revision,
    )


def _turn(row: tuple[Any, ...]) -> Turn:
    role, content, reasoning, state, model, seed, timings, created_at = row
    return Turn(
        role=role,
        content=content,
        reasoning=reasoning,
        state=state,
        model=model,
        seed=None if seed is None else int(seed),
        timings=_object(timings),
        created_at=created_at,
    )


def _summary(row: tuple[Any, ...]) -> SessionSummary:
    identity, title, model, backend, created_at, updated_at, n_turns = row
    return SessionSummary(
        id=identity,
        title=title,
        model=model,
        backend=backend,
        n_turns=n_turns,
        created_at=created_at,
        updated_at=updated_at,
    )
