"""Who holds a lock: it is found in the system's list."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

import pytest

from runner.lock_holders import lock_holder, other_process


@pytest.mark.skipif(sys.platform != "linux", reason="no other system lists its locks as files")
def test_who_holds_a_lock_is_told_as_long_as_it_is_held(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert other_process(tmp_path) == f"Another process (pid {os.getpid()})"
        assert lock_holder(tmp_path / "other") is None
    finally:
        os.close(descriptor)
    assert other_process(tmp_path) == "Another process"
    assert lock_holder(tmp_path / "nothing") is None
