"""The thread that watches the machine: real samples of this one, and what happens when something fails."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from live_samples import ENGINE, GIB, gpu_sample
from waiting import wait_for

from runner.machine import devices
from runner.tui.machine_watch import (
    MachineSample,
    MachineWatch,
    programs_in_memory,
    programs_on_gpu,
    take_sample,
)


class Samples:
    """Takes samples from the watch's thread."""

    def __init__(self) -> None:
        self.all: list[MachineSample] = []
        self._came = threading.Condition()

    def take(self, sample: MachineSample) -> None:
        with self._came:
            self.all.append(sample)
            self._came.notify_all()

    def wait_for(self, count: int) -> list[MachineSample]:
        with self._came:
            assert self._came.wait_for(lambda: len(self.all) >= count, timeout=60)
        return self.all


def watch_threads() -> int:
    return sum(thread.name == "machine-watch" for thread in threading.enumerate())


def test_a_sample_has_the_devices_and_what_this_program_holds() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        sample = take_sample(devices(), [child.pid, child.pid, os.getpid()])
        child.kill()
    assert [one.pid for one in sample.own] == [os.getpid(), child.pid]
    assert all(0 < one.private_bytes <= one.resident_bytes for one in sample.own)
    memory = sample.devices[-1]
    assert memory.device.kind == "cpu"
    assert memory.now.total_bytes == memory.device.total_bytes


def test_a_process_that_has_ended_is_left_out() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert [one.pid for one in take_sample(devices(), [child.pid]).own] == [os.getpid()]


def test_samples_come_at_once_and_again() -> None:
    samples = Samples()
    watch = MachineWatch(samples.take, lambda: (), period_s=0.02)
    watch.start()
    first = samples.wait_for(1)[0]
    later = samples.wait_for(3)[-1]
    watch.stop()
    assert later.time_s > first.time_s
    assert later.devices[-1].now.utilization is not None


def test_it_stops_at_once_and_starts_again() -> None:
    samples = Samples()
    watch = MachineWatch(samples.take, lambda: (), period_s=60)
    watch.start()
    samples.wait_for(1)
    began = time.monotonic()
    watch.stop()
    assert time.monotonic() - began < 20
    wait_for(lambda: watch_threads() == 0)
    watch.start()
    watch.start()  # a second time changes nothing
    assert watch_threads() == 1
    samples.wait_for(2)
    watch.stop()
    watch.stop()


def test_a_failure_leaves_the_watch_running() -> None:
    samples = Samples()
    failures = iter([RuntimeError("no pids yet"), None])

    def pids() -> tuple[int, ...]:
        if error := next(failures, None):
            raise error
        return ()

    watch = MachineWatch(samples.take, pids, period_s=0.02)
    watch.start()
    samples.wait_for(2)
    watch.stop()


def test_who_is_told_may_fail_or_stop_the_watch() -> None:
    called: list[int] = []
    stopped = threading.Event()

    def post(sample: MachineSample) -> None:
        called.append(len(sample.devices))
        if len(called) == 3:
            watch.stop()  # from its own thread
            stopped.set()
        raise RuntimeError("the screen is gone")

    watch = MachineWatch(post, lambda: (), period_s=0.01)
    watch.start()
    assert stopped.wait(60)
    assert not watch.is_running


def test_watching_costs_less_than_a_hundredth_of_a_core() -> None:
    watched = devices()
    take_sample(watched, ())  # the first one opens drivers
    began = time.thread_time()
    for _ in range(10):
        take_sample(watched, ())
    assert (time.thread_time() - began) / 10 < 0.01


def test_programs_in_memory_are_others_by_name_the_largest_first(tmp_path: Path) -> None:
    program = tmp_path / "ballast"  # a name that no other process has
    program.symlink_to(sys.executable)
    with subprocess.Popen(
        [program, "-c", "data = bytearray(80_000_000); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = programs_in_memory([os.getpid()], n_most=1000)
        without = programs_in_memory([os.getpid(), child.pid], n_most=1000)
        child.kill()
    sizes = [program.used_bytes for program in found]
    assert sizes == sorted(sizes, reverse=True)
    ballast = next(one for one in found if one.name == "ballast")
    assert ballast.used_bytes >= 40_000_000
    assert ballast.n_processes == 1
    assert all(one.name != "ballast" for one in without)


def test_programs_on_a_gpu_are_those_that_are_not_ours() -> None:
    one = gpu_sample(
        [(ENGINE, "python", 9 * GIB), (5, "python", GIB), (6, "python", GIB), (7, "", 3 * GIB), (8, "x", None)]
    )
    assert [(p.name, p.n_processes, p.used_bytes) for p in programs_on_gpu(one, [ENGINE])] == [
        ("process 7", 1, 3 * GIB),
        ("python", 2, 2 * GIB),
    ]
