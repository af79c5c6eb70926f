"""Chats in files of the user's own: written as JSON or Markdown by suffix, read back from JSON.

They are the user's alone. It knows nothing of the database that chats are usually kept in.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from runner.errors import RunnerError, UsageError
from runner.new_file import write_new
from runner.paths import expanded
from runner.transcript import Session, Turn, from_json, to_json, to_markdown

MAX_BYTES = 256 * 1024 * 1024


def write_chat(path: Path, session: Session, turns: Sequence[Turn], *, overwrite: bool = False) -> Path:
    """Write a chat to `path` (.json or .md; ~ is the home directory); returns the path that was written.

    Raises UsageError for another suffix or a file that is there already, RunnerError when it cannot be written.
    """
    path = _file(path)
    if path.suffix.lower() == ".json":
        text = json.dumps(to_json(session, turns), ensure_ascii=False, indent=2) + "\n"
    elif path.suffix.lower() in (".md", ".markdown"):
        text = to_markdown(session, turns)
    else:
        raise UsageError(f"{path.name!r} says no format.", hint="Use a name that ends in .json or .md.")
    write_new(path, text, overwrite=overwrite)
    return path


def read_chat(path: Path) -> tuple[Session, list[Turn]]:
    """The chat in a JSON file. Raises UsageError for something else, RunnerError when it cannot be read."""
    path = _file(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RunnerError(
            f"{path} cannot be read: {error.strerror or error}.", hint="Give the name of a file that /save wrote."
        ) from error
    if len(raw) > MAX_BYTES:
        raise UsageError(f"{path} is larger than {MAX_BYTES // 2**20} MiB.", hint="That is no saved chat.")
    try:
        plain = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON.", hint="Load a chat that was saved as .json.") from error
    return from_json(plain)


def _file(path: Path) -> Path:
    """The path with ~ as a home directory. Raises UsageError for one that no file can have."""
    if "\0" in str(path) or not path.name:
        raise UsageError(f"{str(path)!r} is not the name of a file.", hint="Give a name such as chat.json.")
    return expanded(path)
