"""Chats in files of the user's own: written as JSON or Markdown by suffix, read back from JSON.

A file appears whole or not at all, and replaces another only when asked to; a chat's is the user's alone. Other files
of the user's are written the same way (`write_new`). It knows nothing of the database that chats are usually kept in.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from runner.errors import RunnerError, UsageError
from runner.transcript import Session, Turn, from_json, to_json, to_markdown

MAX_BYTES = 256 * 1024 * 1024


def write_chat(path: Path, session: Session, turns: Sequence[Turn], *, overwrite: bool = False) -> Path:
    """Write a chat to `path` (.json or .md; ~ is the home directory); returns the path that was written.

    Raises UsageError for another suffix or a file that is there already, RunnerError when it cannot be written.
    """
    path = _expanded(path)
    if path.suffix.lower() == ".json":
        text = json.dumps(to_json(session, turns), ensure_ascii=False, indent=2) + "\n"
    elif path.suffix.lower() in (".md", ".markdown"):
        text = to_markdown(session, turns)
    else:
        raise UsageError(f"{path.name!r} says no format.", hint="Use a name that ends in .json or .md.")
    write_new(path, text, overwrite=overwrite)
    return path


def write_new(
    path: Path,
    text: str,
    *,
    overwrite: bool = False,
    is_private: bool = True,
    remedy: str = "Choose another name, or remove it first.",
) -> None:
    """Write `text` to `path` in one step. Half a surrogate pair, which is no character, becomes "?".

    is_private: with mode 0600, else as the umask says. remedy: the hint where it is there already.
    """
    beside = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}")
    try:
        if path.exists() and not overwrite:
            raise UsageError(f"{path} is there already.", hint=remedy)
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if is_private else 0o666)
            with open(descriptor, "wb") as file:
                file.write(text.encode("utf-8", "replace"))
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RunnerError(
            f"{path} cannot be written: {error.strerror or error}.",
            hint="Give another name, in a directory of your own on a disk with room.",
        ) from error


def read_chat(path: Path) -> tuple[Session, list[Turn]]:
    """The chat in a JSON file. Raises UsageError for something else, RunnerError when it cannot be read."""
    path = _expanded(path)
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


def _expanded(path: Path) -> Path:
    """Raises UsageError for a path that no file can have."""
    if "\0" in str(path) or not path.name:
        raise UsageError(f"{str(path)!r} is not the name of a file.", hint="Give a name such as chat.json.")
    try:
        return path.expanduser()
    except RuntimeError as error:  # ~nobody
        raise UsageError(f"{str(path)!r}: there is no such user.", hint="Give the path in full.") from error
