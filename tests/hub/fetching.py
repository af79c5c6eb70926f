"""What the tests of the hub share: a repository, impatient tuning, fetching here and in another process."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from runner import hub
from runner.hub.http import Tuning
from runner.hub_cache import repo_directory
from runner.types import CancelToken

REPO = "owner/tiny-GGUF"
FILES = {"tiny-Q4_0.gguf": b"4" * 3000, "tiny-Q8_0.gguf": b"8" * 7000, "README.md": b"hello", "sub/a.json": b"{}"}
# What takes its time with a real hub is short here. A server is silent for long only where a test has it so.
QUICK = Tuning(max_tries=4, backoff_s=0.01, backoff_max_s=0.05, wait_max_s=3.0)
IMPATIENT = replace(QUICK, stall_timeout_s=1.0)

_CHILD = """
import json, os, socket, sys
class Small(socket.socket):
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
socket.socket = Small  # however busy the machine is, little is on its way to a process that is killed
from runner import hub
from runner.hub.http import Tuning
from runner.types import CancelToken
repo, names, tuning, options = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]), json.loads(sys.argv[4])
def show(state):
    files = [(f.name, f.done_bytes, f.state) for f in state.files]
    print(json.dumps([state.done_bytes, state.total_bytes, state.fetched_bytes, files]), flush=True)
options = hub.FetchOptions(tuning=Tuning(**tuning), **options)
print(hub.fetch(hub.list_files(repo), names, on_progress=show, cancel=CancelToken(), options=options))
"""


def noise(n_bytes: int, seed: int = 1) -> bytes:
    """Bytes that are all different from place to place, so that a wrong join shows."""
    return random.Random(seed).randbytes(n_bytes)


def fetch(
    names: Sequence[str], repo: str = REPO, *, tuning: Tuning = QUICK, limit: int | None = None, parallel: int = 4
) -> tuple[Path, list[hub.FetchState]]:
    """List and fetch, in this process; the snapshot directory and every state that was reported."""
    seen: list[hub.FetchState] = []
    options = hub.FetchOptions(limit_rate_bytes_s=limit, parallel=parallel, tuning=tuning)
    directory = hub.fetch(hub.list_files(repo), names, on_progress=seen.append, cancel=CancelToken(), options=options)
    return directory, seen


def start_fetch(names: Sequence[str], repo: str = REPO, **options: int) -> subprocess.Popen[str]:
    """The same in a process of its own, which prints its states as JSON lines and then the directory."""
    tuning = asdict(QUICK)
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, repo, json.dumps(list(names)), json.dumps(tuning), json.dumps(options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ.copy(),
        cwd=Path(__file__).parent.parent.parent,
    )


def blob_names(repo: str = REPO) -> list[str]:
    """What is in the repository's blobs directory."""
    blobs = repo_directory(repo) / "blobs"
    return sorted(path.name for path in blobs.iterdir()) if blobs.is_dir() else []
