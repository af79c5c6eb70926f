"""`runner sessions`: list, show, resume, export, search, rename and delete the chats that are kept.

It reads the store and prints; it knows nothing of how a chat is held.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from runner.cli import completing, render
from runner.cli.app import main, new_app
from runner.errors import UsageError
from runner.new_file import write_new
from runner.paths import user_paths
from runner.safe_text import safe_line
from runner.store import Store
from runner.transcript import SCHEMA, Session, SessionSummary, Turn, iso_time, title_from, to_json, to_markdown

app = new_app(help="List, show, resume, export, search, rename and delete saved chats.", no_args_is_help=True)

Id = Annotated[
    str, typer.Argument(metavar="ID", help="The chat's id, or the beginning of it.", autocompletion=completing.chats)
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


class Format(StrEnum):
    md = "md"
    json = "json"


@app.command("list")
def list_sessions(
    limit: Annotated[int | None, typer.Option("-n", "--limit", min=1, metavar="N", help="At most this many.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the saved chats, the one used last first."""
    with _store() as store:
        found = store.sessions(limit)
    if as_json:
        render.emit_json("runner.sessions/1", {"sessions": [_plain(summary) for summary in found]})
    elif found:
        rows = [(s.id, s.title, s.model, str(s.n_turns), _local(s.updated_at)) for s in found]
        render.table(("ID", "TITLE", "MODEL", "TURNS", "UPDATED"), rows, right=(3,))
    else:
        render.narrate("No chats are kept yet.")


@app.command()
def show(session_id: Id, as_json: AsJson = False) -> None:
    """Print a chat."""
    session, turns = _chat(session_id)
    _print_chat(session, turns, Format.json if as_json else Format.md)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def resume(ctx: typer.Context, session_id: Id) -> None:
    """Go on with a chat, with the model it was held with. Takes the options of `runner chat`."""
    with _store() as store:
        session = store.get(session_id)
    raise typer.Exit(main(["chat", session.model, "--resume", session.id, *ctx.args]))


@app.command()
def export(
    session_id: Id,
    form: Annotated[Format | None, typer.Option("--format", help="[default: by FILE's suffix, else md]")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to FILE.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
) -> None:
    """Write a chat as Markdown, or as JSON that /load reads back."""
    session, turns = _chat(session_id)
    if form is None:
        form = Format.json if output is not None and output.suffix.lower() == ".json" else Format.md
    if output is None or str(output) == "-":
        _print_chat(session, turns, form)
        return
    text = to_markdown(session, turns)
    if form is Format.json:
        text = json.dumps(to_json(session, turns), ensure_ascii=False, indent=2) + "\n"
    write_new(output, text, overwrite=force, remedy="--force replaces it.")
    render.narrate(f"Wrote {safe_line(str(output))}.")


@app.command()
def search(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Words that must all occur in one message.")],
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, metavar="N", help="At most this many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Find messages in the saved chats."""
    if not text.strip():
        raise UsageError("There is nothing to look for.", hint="Give a word, such as: runner sessions search paris")
    with _store() as store:
        matches = store.search(text, limit)
    if as_json:
        rows = [
            {"id": m.session.id, "title": m.session.title, "position": m.position, "role": m.role, "excerpt": m.excerpt}
            for m in matches
        ]
        render.emit_json("runner.sessions.search/1", {"text": text, "matches": rows})
    elif matches:
        render.table(
            ("ID", "TITLE", "WHO", "TEXT"),
            [(m.session.id, m.session.title, m.role or "title", m.excerpt) for m in matches],
        )
    else:
        render.narrate("Nothing was found.")


@app.command()
def rename(session_id: Id, title: Annotated[str, typer.Argument(metavar="TITLE", help="The new title.")]) -> None:
    """Give a chat another title."""
    new = title_from(title)
    if not new:
        raise UsageError("The title is empty.", hint="Give some words.")
    with _store() as store:
        session = store.update_session(store.get(session_id).id, lambda current: replace(current, title=new))
    render.narrate(f"{session.id if session else session_id} is now: {new}")


@app.command()
def delete(
    session_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID...", help="Ids, or their beginnings.", autocompletion=completing.chats),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete every chat.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
) -> None:
    """Delete chats for good.

    Their text is wiped from the database's files.
    """
    if bool(session_ids) == everything:
        raise UsageError("Which chats?", hint="Name their ids (`runner sessions list`), or pass --all alone.")
    with _store() as store:
        ids = _ids_to_delete(store, session_ids)
        if not ids:
            render.narrate("There are no chats.")
            return
        if not render.confirm(f"Delete {_question(store, ids)}?", yes):
            render.narrate("Nothing was deleted.")
            return
        done = store.delete(ids)
    chats, turns = _count(done.n_sessions, "chat"), _count(done.n_turns, "turn")
    freed = f"; {render.decimal_size(done.freed_bytes)} freed" if done.freed_bytes else ""
    render.narrate(f"Deleted {chats} with {turns}{freed}.")
    history = user_paths().prompt_history
    if history.exists():
        render.narrate(f"What you typed is also in the prompt history: {history}")


def _ids_to_delete(store: Store, given: Sequence[str] | None) -> list[str]:
    """All of them are looked up before anything is deleted."""
    if given:
        return list(dict.fromkeys(store.find(one).id for one in given))
    return [session.id for session in store.sessions()]


def _question(store: Store, ids: Sequence[str]) -> str:
    if len(ids) == 1:
        session = store.find(ids[0])
        return f"chat {session.id} ({safe_line(session.title)})"
    return f"{len(ids)} chats"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@contextmanager
def _store() -> Iterator[Store]:
    with closing(Store(user_paths().database)) as store:
        yield store


def _chat(session_id: str) -> tuple[Session, list[Turn]]:
    with _store() as store:
        session = store.get(session_id)
        return session, store.turns(session.id)


def _print_chat(session: Session, turns: Sequence[Turn], form: Format) -> None:
    if form is Format.json:
        render.emit_json(SCHEMA, {key: value for key, value in to_json(session, turns).items() if key != "schema"})
    else:
        render.data(to_markdown(session, turns).rstrip("\n"))


def _local(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def _plain(summary: SessionSummary) -> dict[str, Any]:
    return {
        "id": summary.id,
        "title": summary.title,
        "model": summary.model,
        "backend": summary.backend,
        "turns": summary.n_turns,
        "created_at": iso_time(summary.created_at),
        "updated_at": iso_time(summary.updated_at),
    }
