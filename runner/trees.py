"""Deleting directories with all that is in them: whether it may be done, and beside another process that does the same.

It knows nothing of models, caches or who asks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from runner.errors import RunnerError

_MOST_MEETINGS: Final = 1000  # with another process that deletes the same files


def check_deletable(directory: Path) -> None:
    """Raise RunnerError where this user may not take away all of it: before anything has gone, not in the middle."""
    folders = [Path(folder, name) for folder, names, _ in os.walk(directory) for name in names]
    for place in (directory.parent, directory, *folders):
        # In this order: what another process deletes in between is none that may not be deleted.
        if not os.access(place, os.W_OK | os.X_OK) and os.path.isdir(place) and not place.is_symlink():
            number = errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES
            raise cannot_delete(place, OSError(number, os.strerror(number)))


@contextmanager
def alone_at(directory: Path) -> Iterator[None]:
    """Wait for another process that deletes there, so that what it freed is not counted twice."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError:  # it is gone, or may not be read, which deleting tells
        yield
        return
    try:
        with suppress(OSError):  # not every network has locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def delete_tree(directory: Path) -> None:
    """Delete it. What another process deletes meanwhile is no failure. Raises OSError."""
    for _ in range(_MOST_MEETINGS):
        with suppress(FileNotFoundError):
            shutil.rmtree(directory)
        if not os.path.lexists(directory):
            return


def cannot_delete(path: Path, error: OSError) -> RunnerError:
    return RunnerError(
        f"{path} cannot be deleted: {error.strerror or error}.",
        hint="Is its disk or its directory read-only, or is it another user's? Mend that, and try again.",
    )
