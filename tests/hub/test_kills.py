"""Downloads that are killed at random, and downloads of the same files by several processes at once."""

from __future__ import annotations

import json
import math
import random
import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from threading import Thread
from time import monotonic

import pytest
from fetching import QUICK, REPO, blob_names, fetch, noise, start_fetch
from hub_server import Hub, etag_of
from waiting import PATIENCE_S, wait_for

from runner import hub
from runner.hub_cache import repo_directory
from runner.types import CancelToken

SIZE = 3_000_000
# What the system may have received for a process that is killed before it could read it, and the server's own buffer.
IN_FLIGHT_BYTES = 120_000


def wait_for_bytes(server: Hub, n_bytes: float, process: subprocess.Popen[str]) -> None:
    """Until the server has sent that many in all, or the process has ended."""
    is_there = lambda: server.sent_bytes() >= n_bytes or process.poll() is not None  # noqa: E731
    wait_for(is_there, "the download stands still")


def finish(process: subprocess.Popen[str]) -> tuple[list[list[object]], Path]:
    """The states that a process reported, and the directory that it fetched into."""
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    *states, directory = out.splitlines()
    return [json.loads(line) for line in states], Path(directory)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_download_killed_at_random_moments_fetches_hardly_a_byte_twice(server: Hub, seed: int) -> None:
    data = noise(SIZE, seed)
    server.repos[REPO].files["big.gguf"] = data
    server.bytes_s, server.most_bytes = 2_500_000, 0.9 * SIZE  # it is not whole before the last one is killed
    server.cdn = seed % 2 == 0
    moments = random.Random(seed)
    for _ in range(4):
        process = start_fetch(["big.gguf"])
        n_bytes = server.sent_bytes() + moments.randrange(1, SIZE // 3)
        wait_for_bytes(server, min(n_bytes, server.most_bytes), process)
        assert process.poll() is None
        process.send_signal(moments.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT]))
        process.communicate(timeout=PATIENCE_S)
    server.let_go()
    directory, seen = fetch(["big.gguf"])
    assert (directory / "big.gguf").read_bytes() == data
    assert blob_names() == [etag_of("big.gguf", data)]
    assert server.sent_bytes() <= 1.01 * SIZE + 4 * IN_FLIGHT_BYTES
    assert seen[0].done_bytes > 0


def test_who_waits_for_a_process_that_is_at_work_goes_on_waiting_though_nothing_arrives(server: Hub) -> None:
    data = server.repos[REPO].files["big.gguf"] = noise(200_000)
    server.bytes_s, server.most_bytes = 2_500_000, 50_000  # then the first hears nothing, as while it hashes
    tuning = replace(QUICK, attach_timeout_s=2.0, beat_s=0.05, quiet_s=0.1)
    first = Thread(target=fetch, args=(["big.gguf"],), kwargs={"tuning": tuning})
    first.start()
    wait_for(lambda: server.sent_bytes() >= server.most_bytes, "the download did not begin")
    told = list[tuple[float, str]]()

    def show(state: hub.FetchState) -> None:
        if state.trouble:
            told.append((monotonic(), state.trouble))
            if told[-1][0] - told[0][0] > 2.2:
                server.let_go()

    options = hub.FetchOptions(tuning=tuning)
    found = hub.fetch(hub.list_files(REPO), ["big.gguf"], on_progress=show, cancel=CancelToken(), options=options)
    first.join()
    assert (found / "big.gguf").read_bytes() == data
    assert {text for _, text in told if re.search(r"^Another process.* is fetching big\.gguf, and is waited for", text)}
    assert server.sent_bytes() == len(data)


def test_an_interrupted_download_loses_nothing(server: Hub) -> None:
    data = noise(SIZE)
    server.repos[REPO].files["big.gguf"] = data
    server.bytes_s, server.most_bytes = 2_500_000, 0.9 * SIZE
    process = start_fetch(["big.gguf"])
    wait_for_bytes(server, 1_000_000, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
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
    server.bytes_s, server.most_bytes = 2_500_000, 500_000
    first = start_fetch(["big.gguf"])
    wait_for_bytes(server, 300_000, first)
    attached, last = list[int](), None

    def show(state: hub.FetchState) -> None:
        nonlocal last
        last = state
        if state.files[0].state == "attached":
            attached.append(state.done_bytes)
            server.most_bytes = state.done_bytes + 500_000  # the first goes on from what the second has shown

    options = hub.FetchOptions(tuning=QUICK)
    hub.fetch(hub.list_files(REPO), ["big.gguf"], on_progress=show, cancel=CancelToken(), options=options)
    finish(first)
    assert len(set(attached)) > 2
    assert attached == sorted(attached)
    assert last is not None
    assert last.fetched_bytes == 0
    assert server.sent_bytes() == SIZE


def test_when_the_first_process_dies_the_second_takes_over(server: Hub) -> None:
    data = noise(SIZE)
    server.repos[REPO].files["big.gguf"] = data
    server.bytes_s, server.most_bytes = 2_500_000, 0.9 * SIZE
    first = start_fetch(["big.gguf"])
    wait_for_bytes(server, 300_000, first)
    second = start_fetch(["big.gguf"])
    wait_for_bytes(server, SIZE // 2, first)
    first.kill()
    first.communicate(timeout=PATIENCE_S)
    server.most_bytes = math.inf
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
    with WeakFileLock(lock), pytest.raises(BusyError, match=r"Another process .*holds"):
        fetch(["tiny-Q4_0.gguf"], tuning=Tuning(attach_timeout_s=0.3))
    assert server.bodies == []
    fetch(["tiny-Q4_0.gguf"])
