"""`runner logs`: the end of the program's log, and what is added to it.

It reads the file from its end and knows nothing of what is logged.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from runner.cli import render
from runner.errors import RunnerError
from runner.paths import user_paths

_POLL_S = 0.25
_BLOCK_BYTES = 64 * 1024


def logs(
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, metavar="N", help="How many lines.")] = 50,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as lines are added; Ctrl+C ends it.")] = False,
    path: Annotated[bool, typer.Option("--path", help="Print where the log is, and nothing else.")] = False,
) -> None:
    """Show the end of the program's log. It holds no chats."""
    file = user_paths().log_file
    if path:
        render.data(str(file))
        return
    try:
        position = _print_tail(file, lines)
        if follow:
            for text in _added(file, position):
                render.stream(text)
    except OSError as error:
        raise RunnerError(f"The log {file} cannot be read: {error.strerror or error}.") from error


def _print_tail(file: Path, lines: int) -> int:
    """Print the last lines; returns the size of what was read, from where to go on."""
    text, position = b"", 0
    with suppress(FileNotFoundError), file.open("rb") as opened:
        text = tail(opened, lines)
        position = opened.tell()
    if text:
        render.data(text.decode("utf-8", "replace").rstrip("\n"))
    elif position == 0:
        render.narrate(f"Nothing is logged yet in {file}")
    return position


def tail(opened: BinaryIO, lines: int) -> bytes:
    """The last `lines` lines of a file, read in blocks from its end; leaves it at its end."""
    end = start = opened.seek(0, os.SEEK_END)
    found = b""
    while start > 0 and found.count(b"\n") <= lines:
        size = min(_BLOCK_BYTES, start)
        start = opened.seek(start - size)
        found = opened.read(size) + found
    opened.seek(end)
    return b"".join(found.splitlines(keepends=True)[-lines:]) if lines else b""


def _added(file: Path, position: int) -> Iterator[str]:
    """What is added after `position`, for ever; a log that was rotated is read on from its beginning."""
    identity = None
    pending = b""
    while True:
        with suppress(FileNotFoundError), file.open("rb") as opened:  # it is away for a moment while it is rotated
            status = os.fstat(opened.fileno())
            if (identity is not None and status.st_ino != identity) or status.st_size < position:
                position = 0
            identity = status.st_ino
            opened.seek(position)
            pending += opened.read()
            position = opened.tell()
        whole, newline, pending = pending.rpartition(b"\n")
        if newline:
            yield (whole + newline).decode("utf-8", "replace")
        time.sleep(_POLL_S)
