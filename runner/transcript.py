"""What a kept chat is (sessions and turns), and its forms outside the database: Markdown, and JSON that loads again.

Pure functions of values. It knows nothing of SQLite, files or screens; text is raw throughout.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

from runner.errors import UsageError
from runner.types import Message, Role

TurnState = Literal["complete", "partial", "cancelled", "error"]

SCHEMA = "runner.session/1"
TITLE_LENGTH = 60
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_SECOND = 253_402_300_799  # of the year 9999, the last one that ISO 8601 writes
NOTES: Mapping[str, str] = {
    "partial": "this answer was cut off when runner ended",
    "cancelled": "this answer was stopped",
    "error": "this answer ended with an error",
}
_NAMES: Mapping[str, str] = {"system": "System", "user": "You", "assistant": "Assistant", "tool": "Tool"}


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One message of a kept chat.

    state: "complete"; "partial" while it streams, and for good if runner was killed then; "cancelled" by the user;
    "error" when the engine failed in it. model, seed and timings (a telemetry.Timings as JSON) belong to answers.
    created_at: seconds since the epoch, UTC.
    """

    role: Role
    content: str
    reasoning: str = ""
    state: TurnState = "complete"
    model: str = ""
    seed: int | None = None
    timings: Mapping[str, Any] = field(default_factory=dict)
    created_at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Session:
    """A kept chat without its turns.

    revision: counts the writes to it, so that a second runner on the same chat is noticed. settings: what the chat was
    held with, as JSON. Times are seconds since the epoch, UTC.
    """

    id: str
    title: str = ""
    model: str = ""
    backend: str = ""
    system: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    created_at: float = 0.0
    updated_at: float = 0.0
    revision: int = 0


@dataclass(frozen=True, kw_only=True)
class SessionSummary:
    """One row in a list of chats. Times are seconds since the epoch, UTC."""

    id: str
    title: str
    model: str
    backend: str
    n_turns: int
    created_at: float
    updated_at: float


def title_from(text: str) -> str:
    """A title of one line, at most TITLE_LENGTH characters, from the first thing that was said."""
    line = " ".join(text[: TITLE_LENGTH * 20].split())
    if len(line) <= TITLE_LENGTH:
        return line
    cut = line[: TITLE_LENGTH - 1]
    while cut and unicodedata.combining(line[len(cut)]):  # do not part a letter from its accent
        cut = cut[:-1]
    return cut.rstrip() + "…"


def to_messages(system: str | None, turns: Sequence[Turn]) -> tuple[Message, ...]:
    """What a model is asked with: many templates refuse two messages of the user in a row, or an empty answer.

    Answers without text are left out, and messages of the user that then stand together become one.
    """
    messages = [Message(role="system", content=system)] if system else []
    for turn in turns:
        if turn.role == "assistant" and not turn.content:
            continue
        if turn.role == "user" and messages and messages[-1].role == "user":
            messages[-1] = Message(role="user", content=f"{messages[-1].content}\n\n{turn.content}")
        else:
            messages.append(Message(role=turn.role, content=turn.content, reasoning=turn.reasoning))
    return tuple(messages)


def code_blocks(markdown: str) -> list[str]:
    """The contents of the fenced code blocks of a text, in order; a fence that was not closed ends with the text."""
    from markdown_it import MarkdownIt

    return [token.content for token in MarkdownIt("commonmark").parse(markdown) if token.type == "fence"]


def iso_time(seconds: float) -> str:
    """Seconds since the epoch as ISO 8601 in UTC, to the millisecond."""
    moment = _EPOCH + timedelta(milliseconds=round(seconds * 1000))  # fromtimestamp would cut what it cannot round
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_markdown(session: Session, turns: Sequence[Turn]) -> str:
    """A chat as a document for people. Thoughts fold away; an answer that did not end says why."""
    about = [part for part in (session.model, session.backend, iso_time(session.created_at)) if part]
    parts = [f"# {session.title or 'Chat'}", "*" + " · ".join(about) + "*"]
    if session.system:
        parts += [f"## {_NAMES['system']}", session.system.rstrip("\n")]
    for turn in turns:
        parts.append(f"## {_NAMES[turn.role]}")
        if turn.reasoning.strip():
            parts.append(f"<details><summary>Thought</summary>\n\n{turn.reasoning.strip()}\n\n</details>")
        if turn.content:
            parts.append(turn.content.rstrip("\n"))
        if note := NOTES.get(turn.state):
            parts.append(f"*({note})*")
    return "\n\n".join(parts) + "\n"


def to_json(session: Session, turns: Sequence[Turn]) -> dict[str, Any]:
    """A chat as JSON of schema runner.session/1; `from_json` reads it back."""
    return {
        "schema": SCHEMA,
        "id": session.id,
        "title": session.title,
        "model": session.model,
        "backend": session.backend,
        "system": session.system,
        "settings": dict(session.settings),
        "created_at": iso_time(session.created_at),
        "updated_at": iso_time(session.updated_at),
        "turns": [
            {
                "role": turn.role,
                "content": turn.content,
                "reasoning": turn.reasoning,
                "state": turn.state,
                "model": turn.model,
                "seed": turn.seed,
                "timings": dict(turn.timings),
                "created_at": iso_time(turn.created_at),
            }
            for turn in turns
        ],
    }


def from_json(plain: object) -> tuple[Session, list[Turn]]:
    """The chat that `to_json` wrote. Keys that may be absent: all but "schema", "turns", a turn's role and content.

    The revision is not part of it: a chat that is loaded is a new one. Raises UsageError naming the first bad value.
    """
    top = _Reader(plain, "the file")
    if (schema := top.text("schema")) != SCHEMA:
        raise UsageError(f"The schema of this chat is {schema!r}.", hint=f"This version reads {SCHEMA!r}.")
    session = Session(
        id=top.text("id", ""),
        title=top.text("title", ""),
        model=top.text("model", ""),
        backend=top.text("backend", ""),
        system=top.text("system", "") or None,
        settings=top.mapping("settings"),
        created_at=top.time("created_at"),
        updated_at=top.time("updated_at"),
    )
    turns = top.values.get("turns")
    if not isinstance(turns, list):
        raise top.wrong("turns", "a list")
    return session, [_read_turn(_Reader(turn, f"turn {index}")) for index, turn in enumerate(turns, 1)]


def _read_turn(reader: _Reader) -> Turn:
    return Turn(
        role=reader.choice("role", get_args(Role)),
        content=reader.text("content"),
        reasoning=reader.text("reasoning", ""),
        state=reader.choice("state", get_args(TurnState), "complete"),
        model=reader.text("model", ""),
        seed=reader.seed("seed"),
        timings=reader.mapping("timings"),
        created_at=reader.time("created_at"),
    )


class _Reader:
    """Takes checked values out of a JSON object, and says which one is wrong."""

    def __init__(self, plain: object, where: str) -> None:
        self.where = where
        if not isinstance(plain, dict):
            raise UsageError(f"Not a saved chat: {where} is not a JSON object.", hint="Save one with /save chat.json.")
        self.values: dict[str, Any] = plain

    def wrong(self, key: str, wanted: str) -> UsageError:
        problem = f"is not {wanted}" if key in self.values else "is missing"
        return UsageError(
            f"Not a saved chat: {key!r} of {self.where} {problem}.", hint="Save one with /save chat.json."
        )

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.wrong(key, "text")
        return value

    def choice(self, key: str, allowed: tuple[Any, ...], default: str | None = None) -> Any:
        value = self.text(key, default)
        if value not in allowed:
            raise self.wrong(key, "one of " + ", ".join(allowed))
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        value = self.values.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return value

    def seed(self, key: str) -> int | None:
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
            raise self.wrong(key, "a number from 0 to 2^64 - 1")
        return value

    def time(self, key: str) -> float:
        value = self.text(key, "1970-01-01T00:00:00Z")
        try:
            moment = datetime.fromisoformat(value)
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise self.wrong(key, "a time in ISO 8601") from None
        if not 0 <= seconds <= LAST_SECOND:
            raise self.wrong(key, "a time from 1970 to 9999")
        return round(seconds, 3)
