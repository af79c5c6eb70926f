"""Disks and files that may not hold what is to be written: real ones, as far as this user may have them."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Within it no file of this process, nor of those it starts, becomes larger than so many bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextmanager
def small_disk(directory: Path, size: str) -> Iterator[Path]:
    """A disk of that size, mounted there; the test is skipped where this user may mount none."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may mount no disk")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def fill(path: Path, *, spared: int = 0) -> None:
    """A file that takes all the room that its disk has left, but so many bytes."""
    with path.open("wb", 0) as file:
        with pytest.raises(OSError, match="No space left"):
            while True:
                file.write(bytes(4096))
        file.truncate(file.tell() - spared)
