"""The tables of the chat database, and their rows as values and back.

Migrations are only ever added to: a script that was released is never changed. This file opens nothing and runs no
query beyond inserting turns.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

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


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise sqlite3.DatabaseError("a row holds something else than the JSON that was written")
    return value


def session_from(row: tuple[Any, ...]) -> Session:
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


def turn_from(row: tuple[Any, ...]) -> Turn:
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


def summary_from(row: tuple[Any, ...]) -> SessionSummary:
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
