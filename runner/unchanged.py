"""What was read of a file, given again for as long as the file is the one that it was read from.

On the way to a load the headers of one model are asked for by whoever sees whether its files are whole, which backend
runs it and whether it fits; of a mixture of experts reading them takes a fifth of a second each time. It knows nothing
of what is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

T = TypeVar("T")
Stamp = tuple[int, int, int, int, int]

_SETTLED_NS: Final = 2 * 10**9  # a file that changes again within a tick of its clock, which may be 2 s, looks the same


@dataclass(frozen=True)
class _Kept(Generic[T]):
    path: Path
    stamp: Stamp
    value: T


class WhileUnchanged(Generic[T]):
    """`read(path)`, which must have a value that nobody changes. The last file's is kept, until `forget`."""

    def __init__(self, read: Callable[[Path], T]) -> None:
        self._read = read
        self._kept: _Kept[T] | None = None  # replaced as a whole, since threads may read at once

    def __call__(self, path: Path) -> T:
        """What `read` gives of the file at `path`. Raises what it does."""
        stamp, kept = _stamp(path), self._kept
        if kept is not None and (kept.path, kept.stamp) == (path, stamp):
            return kept.value
        value = self._read(path)
        self._kept = _Kept(path, stamp, value) if stamp is not None and stamp == _stamp(path) else None
        return value

    def forget(self) -> None:
        """Let go of what is kept."""
        self._kept = None


def _stamp(path: Path) -> Stamp | None:
    """What changes with a file, or None where it cannot be told, or where it changed a moment ago."""
    try:
        found = path.stat()
    except OSError:
        return None
    if time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) < _SETTLED_NS:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
