"""Who holds the lock (flock) on a file or a directory, where the system tells: Linux does, in /proc/locks.

It only reads, and locks nothing.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_HELD: Final = re.compile(r"^\d+: FLOCK +ADVISORY +WRITE (\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE)


def lock_holder(path: Path) -> int | None:
    """The id of the process that locked `path`; None where nobody did, or it cannot be known."""
    try:
        stat = os.stat(path)
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    wanted = (os.major(stat.st_dev), os.minor(stat.st_dev), stat.st_ino)
    for pid, major, minor, inode in _HELD.findall(locks):
        if (int(major, 16), int(minor, 16), int(inode)) == wanted:
            return int(pid)
    return None


def other_process(path: Path) -> str:
    """Whoever locked `path`, as the beginning of a sentence: "Another process (pid 1234)"."""
    pid = lock_holder(path)
    return "Another process" if pid is None else f"Another process (pid {pid})"
