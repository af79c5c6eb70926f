"""The tables of the chat database, and their rows as values and back.

Migrations are only ever added to: a script that was released is never changed. SQLite keeps values of any type in any
column, and others than runner write to the file: a chat with a value that is none of ours is damaged, and the list of
chats shows it all the same. This file opens nothing and runs no query beyond inserting turns.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from runner.errors import StoreError
from runner.transcript import LAST_SECOND, Session, SessionSummary, Turn, TurnState
from runner.types import Role

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
    );
    """,
)

DESCRIBED = "title, model, backend, system, settings"
SESSION = f"id, created_at, updated_at, revision, {DESCRIBED}"
TURN = "role, content, reasoning, state, model, seed, timings, created_at"
SUMMARY = """id, title, model, backend, created_at, updated_at,
    (SELECT count(*) FROM turns WHERE session_id = id)"""


def insert_turns(
    database: sqlite3.Connection, session_id: str, position: int, turns: Sequence[Turn], now: float
) -> None:
    """Turns without a time of their own get `now`."""
    database.executemany(
        f"INSERT INTO turns (session_id, position, {TURN}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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


def described(session: Session) -> tuple[str | None, ...]:
    """The values of the columns DESCRIBED."""
    system = None if session.system is None else _text(session.system)
    settings = json.dumps(dict(session.settings))
    return _text(session.title), _text(session.model), _text(session.backend), system, settings


def _text(value: str) -> str:
    """`value` as it is, save that half of a surrogate pair, which is no character and has no UTF-8, becomes U+FFFD."""
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def session_from(row: tuple[Any, ...]) -> Session:
    """The chat in a row of the columns SESSION. Raises StoreError where it is damaged."""
    read = _Reader.of(row[0], SESSION, row)
    return Session(
        id=read.text("id"),
        title=read.text("title"),
        model=read.text("model"),
        backend=read.text("backend"),
        system=None if read.values["system"] is None else read.text("system"),
        settings=read.mapping("settings"),
        created_at=read.time("created_at"),
        updated_at=read.time("updated_at"),
        revision=read.count("revision"),
    )


def turn_from(session_id: str, row: tuple[Any, ...]) -> Turn:
    """The turn of that chat in a row of the columns TURN. Raises StoreError where it is damaged."""
    read = _Reader.of(session_id, TURN, row)
    return Turn(
        role=read.choice("role", get_args(Role)),
        content=read.text("content"),
        reasoning=read.text("reasoning"),
        state=read.choice("state", get_args(TurnState)),
        model=read.text("model"),
        seed=read.seed("seed"),
        timings=read.mapping("timings"),
        created_at=read.time("created_at"),
    )


def summary_from(row: tuple[Any, ...]) -> SessionSummary:
    """The chat in a row of the columns SUMMARY. The id must be a text; what else is not ours is left out or mended."""
    identity, title, model, backend, created_at, updated_at, n_turns = row
    return SessionSummary(
        id=identity,
        title=legible(title),
        model=legible(model),
        backend=legible(backend),
        n_turns=n_turns,
        created_at=created_at if _is_time(created_at) else 0.0,
        updated_at=updated_at if _is_time(updated_at) else 0.0,
    )


def legible(value: object) -> str:
    """A value that should be a text, as one."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value <= LAST_SECOND


@dataclass(frozen=True)
class _Reader:
    """Takes checked values out of a row of that chat, and says which one is wrong."""

    session_id: str
    values: Mapping[str, Any]

    @staticmethod
    def of(session_id: str, columns: str, row: tuple[Any, ...]) -> _Reader:
        return _Reader(session_id, dict(zip(columns.split(", "), row, strict=True)))

    def wrong(self, name: str) -> StoreError:
        return StoreError(
            f"Chat {self.session_id} is damaged: its {name} in the database is not what runner writes there.",
            hint=f"`runner sessions delete {self.session_id}` deletes it. The other chats are as they were.",
        )

    def text(self, name: str) -> str:
        value = self.values[name]
        if not isinstance(value, str):
            raise self.wrong(name)
        return value

    def choice(self, name: str, allowed: tuple[Any, ...]) -> Any:
        if (value := self.text(name)) not in allowed:
            raise self.wrong(name)
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads(self.text(name))
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise self.wrong(name)
        return value

    def seed(self, name: str) -> int | None:
        if self.values[name] is None:
            return None
        text = self.text(name)
        if not (text.isdecimal() and len(text) <= 20 and int(text) < 2**64):
            raise self.wrong(name)
        return int(text)

    def time(self, name: str) -> float:
        value = self.values[name]
        if not _is_time(value):
            raise self.wrong(name)
        return float(value)

    def count(self, name: str) -> int:
        value = self.values[name]
        if not isinstance(value, int):
            raise self.wrong(name)
        return value
