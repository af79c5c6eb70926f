"""Keeps chats in SQLite: sessions and their turns, search, and deletion that leaves nothing behind.

Each write is one transaction: what a call has written survives the death of the process right after it. Any number of
threads and processes may use one database. It knows nothing of engines or screens; text is kept as it came.
"""

from __future__ import annotations

import logging
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from runner.errors import BusyError, StoreError, StoreUnwritable, UsageError, nearest
from runner.store.database import as_runner_errors, connect, transaction, truncate_log, wipe_deleted
from runner.store.rows import (
    MIGRATIONS,
    SESSION,
    SUMMARY,
    TURN,
    described,
    insert_turns,
    legible,
    session_from,
    summary_from,
    turn_from,
)
from runner.store.search_text import excerpt, fold, fold_terms
from runner.transcript import Session, SessionSummary, Turn

log = logging.getLogger(__name__)

T = TypeVar("T")

# Letters and digits that are not mistaken for each other (Crockford's base 32).
_ID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_ID_LENGTH = 8
_NEWEST_FIRST = "ORDER BY updated_at DESC, sessions.rowid DESC"
_WHERE_NAMED = "WHERE typeof(id) = 'text'"  # what has none of our ids cannot be asked for


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

    now: the clock, in seconds since the epoch. without: how the user does without a database that cannot be used, a
    sentence for the hints. Every method raises StoreError or BusyError (database.py says when). A chat in which values
    are not as they were written is in the lists, and what opens it raises StoreError.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.time, *, without: str = "") -> None:
        self.path = path
        self._now = now
        self._without = without
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        """Close the database; the next call opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def check(self) -> None:
        """Raises StoreError for a file that is damaged or not ours, which its user is to move aside. Nothing is made.

        A place that cannot be written is no such matter: the first write tells.
        """
        with suppress(StoreUnwritable):
            if self._exists():
                with self._read():
                    pass

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
                f"INSERT INTO sessions ({SESSION}) VALUES (?, ?, ?, 0, ?, ?, ?, ?, ?)",
                (session.id, now, now, *described(session)),
            )
            insert_turns(database, session.id, 0, turns, now)
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
            insert_turns(database, session_id, position, turns, now)
            database.execute(
                "UPDATE sessions SET revision = revision + 1, updated_at = max(updated_at, ?) WHERE id = ?",
                (now, session_id),
            )
        if removed and durable:  # not while an answer streams: each save replaces the one before
            try:
                with self._read() as database:
                    truncate_log(database)
            except (StoreUnwritable, BusyError) as error:  # what was written is there, and the next time wipes
                log.warning("text that was replaced is not wiped yet: %s", error.message)
        return int(row[0]) + 1

    def update_session(self, session_id: str, change: Callable[[Session], Session]) -> Session | None:
        """Apply `change` to the title, model, backend, system prompt and settings as they are kept now.

        Returns the new session, or None when there is none with that id. Its place in the list of chats stays.
        """
        if not self._exists():
            return None
        with self._write() as database:
            row = database.execute(f"SELECT {SESSION} FROM sessions WHERE id = ?", (session_id,)).fetchone()
            if row is None:
                return None
            new = change(session_from(row))
            database.execute(
                "UPDATE sessions SET title = ?, model = ?, backend = ?, system = ?, settings = ? WHERE id = ?",
                (*described(new), session_id),
            )
        return new

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

    # --- reading ---------------------------------------------------------------------------------------------------

    def sessions(self, limit: int | None = None) -> list[SessionSummary]:
        """The chats, the one used last first; at most `limit`."""
        query = f"SELECT {SUMMARY} FROM sessions {_WHERE_NAMED} {_NEWEST_FIRST} LIMIT ?"
        return self._all(summary_from, query, -1 if limit is None else limit)

    def latest(self) -> Session | None:
        """The chat used last."""
        found = self._all(session_from, f"SELECT {SESSION} FROM sessions {_WHERE_NAMED} {_NEWEST_FIRST} LIMIT 1")
        return found[0] if found else None

    def get(self, id_or_prefix: str) -> Session:
        """The chat that `find` finds."""
        query = f"SELECT {SESSION} FROM sessions WHERE id = ?"
        found = self._all(session_from, query, self.find(id_or_prefix).id)
        if not found:  # it was deleted meanwhile
            raise self._unknown(id_or_prefix)
        return found[0]

    def find(self, id_or_prefix: str) -> SessionSummary:
        """The chat with that id, or the only one whose id begins so, damaged or not.

        Raises UsageError with what was perhaps meant.
        """
        wanted = id_or_prefix.strip().lower()
        query = f"SELECT {SUMMARY} FROM sessions {_WHERE_NAMED} AND substr(id, 1, ?) = ? ORDER BY id"
        found = self._all(summary_from, query, len(wanted), wanted) if wanted else []
        exact = [session for session in found if session.id == wanted]
        if len(found) == 1 or exact:
            return (exact or found)[0]
        if found:
            listed = ", ".join(f"{session.id} ({session.title})" for session in found[:5])
            raise UsageError(f"{len(found)} chats have an id that begins with {id_or_prefix!r}.", hint=f"{listed}.")
        raise self._unknown(id_or_prefix)

    def turns(self, session_id: str) -> list[Turn]:
        """The turns of the chat with that id (in full), in order."""
        query = f"SELECT {TURN} FROM turns WHERE session_id = ? ORDER BY position"
        return self._all(partial(turn_from, session_id), query, session_id)

    def search(self, text: str, limit: int | None = 50) -> list[Match]:
        """Where all words of `text` occur in one turn or title, the chats used last first.

        Case and the form of accents do not matter, and a word may be part of a longer one, so that scripts without
        spaces are found. It reads every turn (50,000 turns of 1 kB: a second); an index would be a second copy to wipe.
        """
        terms = fold_terms(text)
        matches: list[Match] = []
        for summary in self.sessions() if terms else ():
            query = "SELECT position, role, content FROM turns WHERE session_id = ? ORDER BY position"
            for position, role, content in [(None, "", summary.title), *self._all(tuple, query, summary.id)]:
                text_of_turn = legible(content)
                folded = fold(text_of_turn)
                if all(term in folded for term in terms):
                    shown = excerpt(text_of_turn, terms)
                    matches.append(Match(session=summary, position=position, role=legible(role), excerpt=shown))
                    if limit is not None and len(matches) >= limit:
                        return matches
        return matches

    # --- the database ----------------------------------------------------------------------------------------------

    @contextmanager
    def _with_remedy(self) -> Iterator[None]:
        try:
            with as_runner_errors(self.path):
                yield
        except StoreError as error:
            raise type(error)(error.message, hint=f"{error.hint} {self._without}".strip()) from error

    def _exists(self) -> bool:
        with self._with_remedy():
            return self._connection is not None or self.path.exists()

    def _size(self) -> int:
        names = (self.path.name, f"{self.path.name}-wal")
        return sum(path.stat().st_size for name in names if (path := self.path.with_name(name)).exists())

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._with_remedy():
            if self._connection is None:
                self._connection = connect(self.path, MIGRATIONS)
            yield self._connection

    @contextmanager
    def _write(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        with self._read() as database, transaction(database, durable=durable):
            yield database

    def _all(self, make: Callable[[tuple[Any, ...]], T], query: str, *values: object) -> list[T]:
        """What the query finds, each row made into a value; nothing when there is no database yet."""
        if not self._exists():
            return []
        with self._read() as database:
            rows = database.execute(query, values).fetchall()
        return [make(row) for row in rows]

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
        near = [names[name] for name in nearest(wanted, names)]
        listed = " or ".join(dict.fromkeys(f"{session.id} ({session.title})" for session in near))
        hint = f"Did you mean {listed}?" if near else "`runner sessions list` shows them."
        return UsageError(f"There is no chat {wanted!r}.", hint=hint)
