"""Downloads that are killed at random, and downloads of the same files by several processes at once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from fetching import REPO, blob_names, fetch, noise, start_fetch
from hub_server import Hub, etag_of

from runner.hub_cache import repo_directory

SIZE = 3_000_000
# What the system may have received for a process that is killed before it could read it, and the server's own buffer.
IN_FLIGHT_BYTES = 120_000


def wait_for_bytes(server: Hub, n_bytes: int, process: subprocess.Popen[str]) -> None:
    """Until the server has sent that many in all, or the process has ended."""
    deadline = time.monotonic() + 30
    while server.sent_bytes() < n_bytes and process.poll() is None:
        assert time.monotonic() < deadline, "the download stands still"
        time.sleep(0.002)


def finish(process: subprocess.Popen[str]) -> tuple[list[list[object]], Path]:
    """The states that a process reported, and the directory that it fetched into."""
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    *states, directory = out.splitlines()
    return [json.loads(line) for line in states], Path(directory)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_download_killed_at_random_moments_fetches_hardly_a_byte_twice(server: Hub, seed: int) -> None:
    data = noise(SIZE, seed)
    server.repos[REPO].files["big.gguf"] = data
    server.bytes_s = 2_500_000
    server.cdn = seed % 2 == 0
    moments = random.Random(seed)
    n_killed = 0
    for _ in range(4):
        process = start_fetch(["big.gguf"])
        wait_for_bytes(server, server.sent_bytes() + moments.randrange(1, SIZE // 3), process)
        n_killed += process.poll() is None
        process.send_signal(moments.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT]))
        process.communicate(timeout=10)
    server.bytes_s = 0
    directory, seen = fetch(["big.gguf"])
    assert (directory / "big.gguf").read_bytes() == data
    assert blob_names() == [etag_of("big.gguf", data)]
    assert n_killed >= 2
    assert server.sent_bytes() <= 1.01 * SIZE + n_killed * IN_FLIGHT_BYTES
    assert seen[0].done_bytes > 0


def test_an_interrupted_download_loses_nothing(server: Hub) -> None:
    data = noise(SIZE)
    server.repos[REPO].files["big.gguf"] = data
    server.bytes_s = 2_500_000
    process = start_fetch(["big.gguf"])
    wait_for_bytes(server, 1_000_000, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert "KeyboardInterrupt" in err
    part = repo_directory(REPO) / "blobs" / f"{etag_of('big.gguf', data)}.runner-part"
    assert part.read_bytes() == data[: part.stat().st_size]
    assert part.stat().st_size > 1_000_000 - IN_FLIGHT_BYTES


def test_two_processes_fetch_each_byte_once(server: Hub) -> None:
    files = {f"shard-{number}.safetensors": noise(400_000, number) for number in range(4)}
    server.repos[REPO].files |= files
    server.bytes_s = 120_000  # the second has begun before the first has ended, on a busy machine too
    processes = [start_fetch(list(files), parallel=2) for _ in range(2)]
    results = [finish(process) for process in processes]
    for states, directory in results:
        assert {name: (directory / name).read_bytes() for name in files} == files
        assert states[-1][:2] == [1_600_000, 1_600_000]
        assert any(stage == "attached" for state in states for _, _, stage in state[3])
    assert server.sent_bytes() == 1_600_000
    assert len(server.bodies) == 4
    assert sum(states[-1][2] for states, _ in results) == 1_600_000


def test_the_second_process_shows_the_progress_of_the_first(server: Hub) -> None:
    server.repos[REPO].files["big.gguf"] = noise(SIZE)
    server.bytes_s = 2_500_000
    first = start_fetch(["big.gguf"])
    wait_for_bytes(server, 300_000, first)
    _, seen = fetch(["big.gguf"])
    finish(first)
    attached = [state.done_bytes for state in seen if state.files[0].state == "attached"]
    assert len(set(attached)) > 2
    assert attached == sorted(attached)
    assert seen[-1].fetched_bytes == 0
    assert server.sent_bytes() == SIZE


def test_when_the_first_process_dies_the_second_takes_over(server: Hub) -> None:
    data = noise(SIZE)
    server.repos[REPO].files["big.gguf"] = data
    server.bytes_s = 2_500_000
    first = start_fetch(["big.gguf"])
    wait_for_bytes(server, 300_000, first)
    second = start_fetch(["big.gguf"])
    wait_for_bytes(server, SIZE // 2, first)
    first.kill()
    first.communicate(timeout=10)
    states, directory = finish(second)
    assert (directory / "big.gguf").read_bytes() == data
    assert server.sent_bytes() <= 1.01 * SIZE + IN_FLIGHT_BYTES
    assert len(server.bodies) == 2
    assert 0 < int(str(states[-1][2])) < SIZE


def test_a_lock_of_huggingface_hub_is_respected(server: Hub) -> None:
    from huggingface_hub.utils import WeakFileLock

    from runner.errors import BusyError
    from runner.hub.http import Tuning

    data = server.repos[REPO].files["tiny-Q4_0.gguf"]
    lock = repo_directory(REPO).parent / ".locks" / repo_directory(REPO).name / f"{etag_of('x.gguf', data)}.lock"
    lock.parent.mkdir(parents=True)
    with WeakFileLock(lock), pytest.raises(BusyError, match="Another process holds"):
        fetch(["tiny-Q4_0.gguf"], tuning=Tuning(attach_timeout_s=0.3))
    assert server.bodies == []
    fetch(["tiny-Q4_0.gguf"])
