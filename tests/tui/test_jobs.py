"""The job queue with the real command line as its children, against a hub on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hub_server import Fault, Hub
from pulled import GGUF, SHARDS, WEIGHTS, begin_fetch, server
from waiting import PATIENCE_S, has_ended, wait_for

from runner.hub_cache import repo_directory
from runner.inventory import local_models
from runner.paths import Paths, user_paths
from runner.registry import Registry
from runner.tui.jobs import Job, JobQueue
from runner.tui.jobs.asked import Asked, Failure, keep, kept
from runner.tui.jobs.commands import discard_download

__all__ = ["server"]  # the fixture


class Watched:
    """A queue, and everything that it posted."""

    def __init__(self) -> None:
        self.posted: list[tuple[Job, ...]] = []
        self.queue = JobQueue(user_paths(), self.posted.append)

    def job(self, job_id: str) -> Job:
        return next(job for job in self.queue.jobs if job.id == job_id)

    def wait(self, condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
        end = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < end, f"it did not happen: {self.queue.jobs}"
            time.sleep(0.02)

    def wait_for(self, job_id: str, state: str) -> Job:
        self.wait(lambda: self.job(job_id).state in (state, "failed", "done", "cancelled"))
        assert self.job(job_id).state == state, self.job(job_id)
        return self.job(job_id)

    def leave(self) -> None:
        self.queue.close()
        self.queue.wait(10)


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.leave()


def slow_download(server: Hub, watched: Watched) -> str:
    """A pull of the GGUF that has fetched half of it, and gets no more until the server lets it go."""
    server.bytes_s, server.most_bytes = 1_000_000, 700_000
    job_id = watched.queue.pull(GGUF)
    watched.wait(lambda: watched.job(job_id).done > 600_000)
    return job_id


@contextmanager
def held_up() -> Iterator[None]:
    """No child gets on meanwhile: what is asked of one is not done yet, however busy this process is kept."""
    children = psutil.Process().children()
    for child in children:
        child.suspend()
    try:
        yield
    finally:
        for child in children:
            with suppress(psutil.NoSuchProcess):  # it was killed meanwhile
                child.resume()


def test_a_download_runs_to_its_end_and_tells_how_far_it_is(server: Hub, watched: Watched) -> None:
    server.bytes_s, server.most_bytes = 1_000_000, 1_000_000

    def is_told_on_the_way() -> bool:
        seen = [job for jobs in watched.posted for job in jobs]
        return any(one.stage == "download" and 0 < one.done < size and one.rate_bytes_s and one.eta_s for one in seen)

    size = len(server.repos[GGUF].files[WEIGHTS])
    job_id = watched.queue.pull(GGUF)
    watched.wait(is_told_on_the_way)
    server.let_go()
    job = watched.wait_for(job_id, "done")
    assert (job.done, job.total, job.unit, job.message) == (size, size, "bytes", "")
    assert {model.name: model.state for model in local_models(Registry.load_for())}[GGUF + ":Q8_0"] == "complete"
    watched.queue.forget(job_id)
    assert watched.queue.jobs == ()


def test_paused_and_resumed_a_download_fetches_hardly_a_byte_twice(server: Hub, watched: Watched) -> None:
    job_id = slow_download(server, watched)
    with held_up():
        watched.queue.pause(job_id)
        assert watched.job(job_id).stage == "stopping"
    assert watched.wait_for(job_id, "paused").done > 0
    server.let_go()
    assert watched.queue.pull(GGUF) == job_id  # asking for the same again goes on with it
    watched.wait_for(job_id, "done")
    assert server.sent_bytes(WEIGHTS) < 1.1 * len(server.repos[GGUF].files[WEIGHTS])


def test_a_download_that_is_given_up_leaves_nothing(server: Hub, watched: Watched) -> None:
    job_id = slow_download(server, watched)
    watched.queue.cancel(job_id)
    job = watched.wait_for(job_id, "cancelled")
    assert "freed" in job.message
    assert not list(repo_directory(GGUF).glob("blobs/*"))
    assert all(model.repo != GGUF for model in local_models(Registry.load_for()))


@pytest.mark.parametrize("stop", ["cancel", "pause"])
def test_a_download_that_is_asked_for_again_while_it_stops_goes_on_after_that(
    server: Hub, watched: Watched, stop: str
) -> None:
    job_id = slow_download(server, watched)
    with held_up():
        getattr(watched.queue, stop)(job_id)
        assert watched.queue.pull(GGUF) == job_id
        job = watched.job(job_id)
        assert (job.stage, job.can_cancel) == ("restarting", True)
    watched.wait(lambda: len(server.ranges(WEIGHTS)) == 2)  # the one that stops is gone: nothing more is sent to it
    server.let_go()
    watched.wait(lambda: watched.job(job_id).state == "done")
    assert server.sent_bytes(WEIGHTS) < 1.2 * len(server.repos[GGUF].files[WEIGHTS])
    assert kept(user_paths()) == ()


def test_a_download_that_is_given_up_again_after_it_was_asked_for_again_is_gone(server: Hub, watched: Watched) -> None:
    job_id = slow_download(server, watched)
    with held_up():
        watched.queue.cancel(job_id)
        watched.queue.pull(GGUF)
        watched.queue.cancel(job_id)
        assert watched.job(job_id).stage == "stopping"
    watched.wait_for(job_id, "cancelled")
    assert not list(repo_directory(GGUF).glob("blobs/*"))
    assert kept(user_paths()) == ()


def test_what_is_asked_for_while_its_rest_is_deleted_begins_after_that(
    server: Hub, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_deleting, may_end = threading.Event(), threading.Event()

    def slow_discard(paths: Paths, model: str, names: Collection[str]) -> int:
        is_deleting.set()
        assert may_end.wait(PATIENCE_S)
        return discard_download(paths, model, names)

    monkeypatch.setattr("runner.tui.jobs.queue.discard_download", slow_discard)
    job_id = slow_download(server, watched)
    watched.queue.cancel(job_id)
    assert is_deleting.wait(PATIENCE_S)
    server.let_go()
    watched.queue.pull(GGUF)
    assert watched.job(job_id).stage == "restarting"
    may_end.set()
    watched.wait(lambda: watched.job(job_id).state == "done")


def test_giving_up_one_quantization_keeps_the_whole_one_beside_it(server: Hub, watched: Watched) -> None:
    server.repos[GGUF].files["llama-Q4_0.gguf"] = b"\x01" * 1_500_000
    watched.wait_for(watched.queue.pull(f"{GGUF}:Q8_0"), "done")
    server.bytes_s, server.most_bytes = 1_000_000, server.sent_bytes() + 700_000
    job_id = watched.queue.pull(f"{GGUF}:Q4_0")
    watched.wait(lambda: server.sent_bytes("llama-Q4_0.gguf") > 50_000)
    watched.queue.cancel(job_id)
    watched.wait_for(job_id, "cancelled")
    assert [(m.name, m.state) for m in local_models(Registry.load_for()) if m.repo == GGUF] == [
        (f"{GGUF}:Q8_0", "complete")
    ]


def test_downloads_wait_for_each_other_and_a_quantization_runs_beside_them(server: Hub, watched: Watched) -> None:
    first = slow_download(server, watched)
    second = watched.queue.pull(SHARDS)
    third = watched.queue.quantize("demo", "q8_0")
    assert [watched.job(one).state for one in (first, second, third)] == ["running", "queued", "running"]
    watched.queue.pause(second)
    assert watched.job(second).state == "paused"
    watched.queue.resume(second)
    assert watched.job(second).state == "queued"
    made = watched.wait_for(third, "done")
    assert "bits a weight" in made.message
    assert "The source is Q8_0" in made.hint
    assert (user_paths().models / "demo-q8_0" / "demo-q8_0.gguf").is_file()
    server.let_go()
    watched.wait_for(first, "done")
    watched.wait_for(second, "done")


def test_a_failure_says_why_and_can_be_tried_again(server: Hub, watched: Watched) -> None:
    server.repos[GGUF].is_gated = True
    job = watched.wait_for(watched.queue.pull(GGUF), "failed")
    assert job.exit_code == 2
    assert "licence" in f"{job.message} {job.hint}".lower() or "access" in f"{job.message} {job.hint}".lower()
    server.repos[GGUF].is_gated = False
    watched.queue.retry(job.id)
    watched.wait_for(job.id, "done")


def test_what_failed_and_is_asked_for_again_is_the_same_job(server: Hub, watched: Watched) -> None:
    server.repos[GGUF].is_gated = True
    job = watched.wait_for(watched.queue.pull(GGUF), "failed")
    server.repos[GGUF].is_gated = False
    assert watched.queue.pull(GGUF) == job.id
    watched.wait_for(job.id, "done")
    assert [one.id for one in watched.queue.jobs] == [job.id]
    assert watched.queue.pull(GGUF) != job.id  # that one is done


def test_without_a_network_the_reason_is_told(watched: Watched) -> None:
    job = watched.wait_for(watched.queue.pull(GGUF), "failed")
    assert job.exit_code == 3
    assert job.message
    assert job.hint


def test_a_dropped_connection_does_not_end_a_download(server: Hub, watched: Watched) -> None:
    server.faults.append(Fault("drop", at=400_000, name=WEIGHTS, times=2))
    watched.wait_for(watched.queue.pull(GGUF), "done")
    assert len(server.bodies) > 2


def test_what_does_not_fit_is_fetched_when_tried_again(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(stand_in(Path(os.environ["RUNNER_HOME"]))))
    job = watched.wait_for(watched.queue.pull(GGUF), "failed")
    assert (job.exit_code, job.hint) == (4, "Retry fetches it all the same.")
    watched.queue.retry(job.id)
    watched.wait_for(job.id, "done")


def stand_in(directory: Path) -> Path:
    """A program in the place of Python that refuses what is not forced: no model here is as large as that."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "stand-in"
    path.write_text(
        "#!/bin/sh\n"
        'case "$*" in *--force*) echo \'{"schema": "runner.pull/1"}\'; exit 0;; esac\n'
        "echo 'error: It needs 900 GiB.' >&2; echo 'hint: --force fetches it all the same.' >&2; exit 4\n"
    )
    path.chmod(0o755)
    return path


def test_a_child_that_is_killed_is_a_failure_and_goes_on_where_it_was(server: Hub, watched: Watched) -> None:
    job_id = slow_download(server, watched)
    child = watched.queue._entries[job_id].child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    job = watched.wait_for(job_id, "failed")
    assert "signal 9" in job.message
    server.let_go()
    watched.queue.retry(job_id)
    watched.wait_for(job_id, "done")
    assert server.sent_bytes(WEIGHTS) < 1.2 * len(server.repos[GGUF].files[WEIGHTS])


def test_leaving_stops_the_children_and_the_next_start_lists_what_is_unfinished(server: Hub, watched: Watched) -> None:
    job_id = slow_download(server, watched)
    child = watched.queue._entries[job_id].child
    assert child is not None
    watched.leave()
    n_posted = len(watched.posted)
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
    server.let_go()
    after = Watched()
    after.queue.find_unfinished()
    after.wait(lambda: bool(after.queue.jobs))
    (job,) = after.queue.jobs
    assert (job.model, job.state, job.total) == (
        f"{GGUF}:Q8_0",
        "paused",
        len(server.repos[GGUF].files[WEIGHTS]),
    )
    assert job.done > 0
    after.queue.resume(job.id)
    after.wait_for(job.id, "done")
    after.leave()
    assert len(watched.posted) == n_posted


def test_an_unfinished_download_of_an_earlier_start_can_be_given_up(server: Hub, watched: Watched) -> None:
    begin_fetch(GGUF, WEIGHTS, server)
    watched.queue.find_unfinished()
    watched.wait(lambda: bool(watched.queue.jobs))
    (job,) = watched.queue.jobs
    watched.queue.cancel(job.id)
    watched.wait_for(job.id, "cancelled")
    assert all(model.repo != GGUF for model in local_models(Registry.load_for()))


def test_a_quantization_that_is_given_up_leaves_nothing(watched: Watched) -> None:
    job_id = watched.queue.quantize("demo", "mq4")
    partial = user_paths().models / "demo-mq4.partial"
    watched.wait(lambda: partial.is_dir() or watched.job(job_id).state != "running")
    watched.queue.cancel(job_id)
    watched.wait_for(job_id, "cancelled")
    assert not partial.exists()
    assert not (user_paths().models / "demo-mq4").exists()


def test_a_quantization_that_was_left_is_listed_by_the_next_start_and_made(watched: Watched) -> None:
    first = watched.queue.quantize("demo", "mq4", calibrate=False)
    watched.queue.quantize("demo", "q8_0")  # it waits for its turn
    watched.wait(lambda: watched.job(first).done > 0 or watched.job(first).state != "running")
    watched.leave()
    after = Watched()
    after.queue.find_unfinished()
    after.wait(lambda: len(after.queue.jobs) == 2)
    assert {(job.title, job.state) for job in after.queue.jobs} == {("demo → mq4", "paused"), ("demo → q8_0", "paused")}
    one, other = sorted(after.queue.jobs, key=lambda job: job.weight_format)
    assert after.queue._entries[one.id].calibrate is False
    after.queue.cancel(one.id)
    assert after.queue.quantize("demo", "q8_0") == other.id  # asking for the same again goes on with it
    after.wait_for(one.id, "cancelled")
    after.wait_for(other.id, "done")
    assert (user_paths().models / "demo-q8_0" / "demo-q8_0.gguf").is_file()
    after.leave()
    assert kept(user_paths()) == ()


def test_a_download_of_which_nothing_has_come_is_listed_by_the_next_start(server: Hub, watched: Watched) -> None:
    first = slow_download(server, watched)
    second = watched.queue.pull(SHARDS, force=True)  # it waits for its turn
    watched.leave()
    server.let_go()
    after = Watched()
    after.queue.find_unfinished()
    after.wait(lambda: len(after.queue.jobs) == 2)
    one, other = after.queue.jobs
    assert (one.model, other.model, other.state, other.done) == (f"{GGUF}:Q8_0", SHARDS, "paused", 0)
    assert after.queue._entries[other.id].force
    assert watched.job(first).model == GGUF  # the disk has told of it, by its own name
    assert watched.job(second).state == "queued"
    after.queue.resume(other.id)
    after.wait_for(other.id, "done")
    after.leave()
    assert kept(user_paths()) == ()
    assert not list((user_paths().state / "downloads").iterdir())


@pytest.mark.parametrize("is_next_start", [False, True])
def test_a_download_that_nobody_wants_any_more_is_not_listed_again(watched: Watched, is_next_start: bool) -> None:
    failed = watched.wait_for(watched.queue.pull("owner/nothing-there"), "failed")  # there is no network
    (asked,) = kept(user_paths())
    assert asked.failure == Failure(message=failed.message, hint=failed.hint, exit_code=3)
    queue = watched.queue
    if is_next_start:
        after = Watched()
        after.queue.find_unfinished()
        after.wait(lambda: bool(after.queue.jobs))
        (job,) = after.queue.jobs
        assert replace(job, id=failed.id) == failed
        queue = after.queue
        failed = job
    queue.forget(failed.id)
    assert kept(user_paths()) == ()


def test_what_is_killed_on_leaving_has_not_failed(server: Hub, watched: Watched) -> None:
    job_id = slow_download(server, watched)
    child = watched.queue._entries[job_id].child
    assert child is not None
    with held_up():
        watched.queue.close()  # what it is asked to do it cannot hear
        os.kill(child.pid, signal.SIGKILL)
    watched.wait_for(job_id, "failed")
    (note,) = (user_paths().state / "downloads").iterdir()
    assert "failure" not in note.read_text()


def test_what_failed_in_an_earlier_start_can_be_tried_again(server: Hub, watched: Watched) -> None:
    server.repos[GGUF].is_gated = True
    watched.wait_for(watched.queue.pull(GGUF), "failed")
    server.repos[GGUF].is_gated = False
    after = Watched()
    after.queue.find_unfinished()
    after.wait(lambda: bool(after.queue.jobs))
    (job,) = after.queue.jobs
    assert (job.state, job.exit_code) == ("failed", 2)
    server.bytes_s, server.most_bytes = 1_000_000, server.sent_bytes() + 100_000
    after.queue.retry(job.id)
    (note,) = (user_paths().state / "downloads").iterdir()
    assert "failure" not in note.read_text()  # it is none any more, should this one be killed
    server.let_go()
    after.wait_for(job.id, "done")
    assert kept(user_paths()) == ()
    after.leave()


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"null", b"\xff", b'{"source": "demo"}', b'{"source": "a", "format": 1}']
)
def test_a_note_of_a_quantization_that_makes_no_sense_is_passed_over(content: bytes) -> None:
    paths = user_paths()
    asked = Asked(source="demo", weight_format="mq4", output=paths.models / "demo-mq4", calibrate=True)
    keep(paths, asked)
    assert kept(paths) == (asked,)
    (note,) = (paths.state / "quantizations").iterdir()
    assert note.stat().st_mode & 0o777 == 0o600
    note.write_bytes(content)
    assert kept(paths) == ()


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"7", b'{"force": true}', b'{"source": ""}', b'{"source": "a\\u0000"}']
)
def test_a_note_of_a_download_that_makes_no_sense_is_passed_over(content: bytes) -> None:
    paths = user_paths()
    keep(paths, Asked(source="owner/repo:Q8_0", force=True))
    assert kept(paths) == (Asked(source="owner/repo:Q8_0", force=True),)
    (note,) = (paths.state / "downloads").iterdir()
    note.write_bytes(content)
    assert kept(paths) == ()


@pytest.mark.parametrize("failure", ["7", '{"message": 7, "hint": ""}', '{"message": "full"}'])
def test_a_failure_that_makes_no_sense_is_none(failure: str) -> None:
    paths = user_paths()
    keep(paths, Asked(source="owner/repo"))
    (note,) = (paths.state / "downloads").iterdir()
    note.write_text(f'{{"source": "owner/repo", "failure": {failure}}}')
    assert kept(paths) == (Asked(source="owner/repo"),)


def test_what_was_made_by_somebody_else_meanwhile_is_not_asked_for_any_more() -> None:
    paths = user_paths()
    output = paths.models / "demo-mq4"
    keep(paths, Asked(source="demo", weight_format="mq4", output=output, calibrate=True))
    output.mkdir(parents=True)
    assert kept(paths) == ()
    assert not list((paths.state / "quantizations").iterdir())


_PARENT = """
import sys, time
from runner.paths import user_paths
from runner.tui.jobs import JobQueue
queue = JobQueue(user_paths(), lambda jobs: None)
job_id = queue.pull(sys.argv[1])
print(queue._entries[job_id].child.pid, flush=True)
time.sleep(60)
"""


def test_a_child_does_not_outlive_a_parent_that_is_killed(server: Hub) -> None:
    server.faults.append(Fault("stall", at=50_000, name=WEIGHTS))
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, GGUF], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    wait_for(lambda: sum(part.stat().st_size for part in (repo_directory(GGUF) / "blobs").glob("*.runner-part")))
    parent.kill()
    parent.wait()
    wait_for(lambda: has_ended(pid), "the child is still there")
