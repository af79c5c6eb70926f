"""The prompts of earlier chats, in a private file in prompt_toolkit's format, which every front end shares.

It knows the file and not who reads it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from runner.paths import open_private, private_directory

_HISTORY_BYTES = 1_000_000


def history(file: Path | None) -> History:
    """The prompts of earlier chats, in a private file that is kept under a megabyte; without a file, none are kept."""
    if file is None:
        return InMemoryHistory()
    try:
        private_directory(file.parent)
        os.close(open_private(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        _shorten(file)
    except OSError:
        return InMemoryHistory()  # a full or read-only disk is no reason not to chat
    return _Prompts(str(file))


class _Prompts(FileHistory):
    """Prompts in a file on a disk that may have filled up since it was opened."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def _shorten(file: Path) -> None:
    """Drop the older half of a history that has grown too long, at the border between two entries."""
    if file.stat().st_size <= _HISTORY_BYTES:
        return
    recent = file.read_bytes()[-_HISTORY_BYTES // 2 :]
    _, border, kept = recent.partition(b"\n\n# ")
    with os.fdopen(open_private(partial := file.with_name(f"{file.name}.{os.getpid()}.partial")), "wb") as written:
        written.write(b"\n# " + kept if border else b"")
    partial.replace(file)
