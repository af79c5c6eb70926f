"""Where benchmarks make their models: in memory where that has room, since the speed of a disk is not measured.

It imports nothing large: a process whose start is timed uses it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def workplace(chosen: Path | None, room_bytes: float) -> Iterator[Path]:
    """A directory that is gone afterwards, in `chosen` or where there is room for that much.

    Shared memory is half of a machine's, so that what fills it leaves processes the other half.
    """
    place = chosen
    if place is None and SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > room_bytes:
        place = SHARED_MEMORY
    with tempfile.TemporaryDirectory(prefix="runner-benchmark-", dir=place) as made:
        yield Path(made)
