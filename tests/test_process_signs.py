"""What a silent process is seen to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.process_signs import DiskWatch

_READ = """
import os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
while os.read(0, 1):
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.pread(file, 1 << 20, 0)
    print(flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere what is read is not counted")
def test_what_a_process_reads_from_a_disk_is_a_sign_of_life_and_what_it_read_is_none(tmp_path: Path) -> None:
    path = tmp_path / "library"
    with path.open("wb") as file:
        file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
    with subprocess.Popen(
        [sys.executable, "-c", _READ, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def read() -> None:
            child.stdin.write(b"x")  # type: ignore[union-attr]
            child.stdin.flush()  # type: ignore[union-attr]
            child.stdout.readline()  # type: ignore[union-attr]

        read()
        counters = Path(f"/proc/{child.pid}/io")
        before = counters.read_text()
        read()
        if before.split("read_bytes")[1] == counters.read_text().split("read_bytes")[1]:
            child.stdin.close()
            pytest.skip("files are in memory here")
        watch = DiskWatch(patience_s=0.0)
        watch.look(child.pid, 10.0)
        watch.look(child.pid, 20.0)
        assert watch.sign_at(5.0) == 5.0  # what it had read when it was first looked at is no sign
        read()
        watch.look(child.pid, 30.0)
        assert watch.sign_at(5.0) == 30.0
        watch.pause(7.0)
        assert watch.sign_at(5.0) == 37.0
        assert watch.sign_at(40.0) == 40.0
        child.stdin.close()
    watch.look(child.pid, 50.0)  # it is gone
    assert watch.sign_at(5.0) == 37.0
