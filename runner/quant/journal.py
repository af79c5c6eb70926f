"""Lines of JSON at the end of a file, each whole on the disk before the next: what a killed run left can be read.

It knows nothing of what the lines say.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def append_line(journal: int, line: Mapping[str, Any]) -> None:
    """One line at the end of the open file, on the disk before this returns. Raises OSError."""
    end = os.lseek(journal, 0, os.SEEK_END)
    write_all(journal, memoryview(json.dumps(line).encode() + b"\n"), end)
    os.fsync(journal)


def whole_lines(journal: int) -> list[dict[str, Any]]:
    """The whole lines; a torn one at the end, which a kill left, is cut off. Nothing when a line is damaged."""
    size = os.fstat(journal).st_size
    text = os.pread(journal, size, 0)
    if (whole := text.rfind(b"\n") + 1) != size:
        os.ftruncate(journal, whole)
    return lines_of(text)


def lines_of(text: bytes) -> list[dict[str, Any]]:
    """The whole lines of a journal's text. Nothing when one is damaged."""
    try:
        lines = [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]
    except (ValueError, RecursionError):
        return []
    return lines if all(isinstance(line, dict) for line in lines) else []


def write_all(file: int, data: memoryview, offset: int) -> None:
    """All of `data` at `offset` of an open file. Raises OSError."""
    while data:
        written = os.pwrite(file, data[: 2**28], offset)
        data, offset = data[written:], offset + written


def refusal(path: Path) -> OSError:
    """Why no more could be written to the end of a file, for writers that do not tell: what is said when more is."""
    try:
        with path.open("ab", buffering=0) as file:
            write_all(file.fileno(), memoryview(bytes(2**20)), os.fstat(file.fileno()).st_size)
    except OSError as error:
        return error
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # there is room again
