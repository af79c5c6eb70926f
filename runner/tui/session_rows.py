"""How kept chats are listed: grouped by day, each on one line. Pure functions of values; it knows no widget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from runner.store import Match
from runner.transcript import SessionSummary
from runner.tui.model_names import short_name


@dataclass(frozen=True)
class Row:
    """One line of the list: a heading or a chat. excerpt: where a search found words, or ""; position: of that turn."""

    heading: str = ""
    session: SessionSummary | None = None
    excerpt: str = ""
    position: int | None = None


def day_name(seconds: float, today: date) -> str:
    """The day of a time as people name it: Today, Yesterday, Tuesday, November, November 2024."""
    day = datetime.fromtimestamp(seconds).date()
    age = (today - day).days
    if age <= 0:
        return "Today"
    if age == 1:
        return "Yesterday"
    if age < 7:
        return f"{day:%A}"
    return f"{day:%B}" if day.year == today.year else f"{day:%B %Y}"


def grouped(sessions: Sequence[SessionSummary], today: date) -> Iterator[Row]:
    """The chats, which come newest first, under a heading for each day."""
    last = ""
    for session in sessions:
        name = day_name(session.updated_at, today)
        if name != last:
            yield Row(heading=name)
            last = name
        yield Row(session=session)


def found(matches: Sequence[Match]) -> Iterator[Row]:
    """The chats in which a search found something, each once, with the first place that is not its title."""
    first: dict[str, Row] = {}
    for match in matches:
        excerpt = "" if match.position is None else match.excerpt
        known = first.get(match.session.id)
        if known is None or (excerpt and not known.excerpt):
            first[match.session.id] = Row(session=match.session, excerpt=excerpt, position=match.position)
    yield from first.values()


def about(session: SessionSummary) -> str:
    """The line under the list: what there is to know of one chat; the end, which a narrow list cuts, is no figure."""
    questions = (session.n_turns + 1) // 2
    time = datetime.fromtimestamp(session.updated_at)
    return f"{time:%d %b %H:%M} · {questions} question{'' if questions == 1 else 's'} · {short_name(session.model)}"
