"""What the machine is doing, once a second, from a thread of its own: devices, and what this program's processes hold.

It reads through runner.machine and hands values on. It knows no model, no widget and no words.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import psutil

from runner.machine import DeviceReadings, GpuActivity, devices, gpu_activity, readings
from runner.types import Device

_log = logging.getLogger(__name__)

_STOP_PATIENCE_S: Final = 0.8  # a driver that hangs keeps its thread; nobody waits for it
# Linux gives this number to the pid namespace of the machine itself; a container's is another one.
_HOST_PID_NAMESPACE: Final = "pid:[4026531836]"


@dataclass(frozen=True, kw_only=True)
class DeviceSample:
    """A device and what it is doing."""

    device: Device
    now: DeviceReadings
    activity: GpuActivity = field(default_factory=GpuActivity)


@dataclass(frozen=True, kw_only=True)
class OwnProcess:
    """A process of this program. resident_bytes: all it has in main memory; private_bytes: without mapped files."""

    pid: int
    resident_bytes: int
    private_bytes: int


@dataclass(frozen=True, kw_only=True)
class MachineSample:
    """The machine at one moment.

    devices: as runner.machine orders them, main memory last. own: this process first. has_host_pids: False in a
    container that numbers processes its own way, where the pids that a GPU's driver gives are others. time_s: of the
    monotonic clock. benchmarks: what tells the history of benchmarks from a longer one; None where there is none.
    """

    devices: tuple[DeviceSample, ...]
    own: tuple[OwnProcess, ...]
    has_host_pids: bool
    time_s: float
    benchmarks: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class OtherProgram:
    """Processes of one name that are not this program's. used_bytes: what they hold together."""

    name: str
    n_processes: int
    used_bytes: int


class MachineWatch:
    """Samples the machine every `period_s` between `start` and `stop`, and posts the samples from its thread.

    pids: this program's other processes at this moment. Both callables are called in the thread. benchmarks: the file
    that other programs may add to. Nothing here raises: what cannot be read is missing from the sample.
    """

    def __init__(
        self,
        post: Callable[[MachineSample], object],
        pids: Callable[[], Sequence[int]],
        period_s: float = 1.0,
        *,
        benchmarks: Path | None = None,
    ) -> None:
        self._post = post
        self._pids = pids
        self._benchmarks = benchmarks
        self._period_s = period_s
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """Begin, or go on after `stop`; the first sample comes at once."""
        if self._thread is None:
            self._stopped = threading.Event()
            self._thread = threading.Thread(target=self._run, args=(self._stopped,), name="machine-watch", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End within a second. No sample is posted afterwards."""
        thread, self._thread = self._thread, None
        self._stopped.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_PATIENCE_S)

    def _run(self, stopped: threading.Event) -> None:
        has_failed = False
        watched: tuple[Device, ...] = ()
        psutil.cpu_percent()  # its first answer in a thread means nothing
        while not stopped.is_set():
            try:
                watched = watched or devices()
                sample = take_sample(watched, self._pids(), self._benchmarks)
                if not stopped.is_set():
                    self._post(sample)
            except Exception:  # a screen without these numbers is better than none
                if not has_failed:
                    _log.exception("the machine cannot be read")
                has_failed = True
            stopped.wait(self._period_s)


def take_sample(watched: Sequence[Device], pids: Sequence[int], benchmarks: Path | None = None) -> MachineSample:
    """Read `watched` devices, this process and those of `pids` now."""
    return MachineSample(
        devices=tuple(_device_sample(device) for device in watched),
        own=tuple(_own_processes((os.getpid(), *pids))),
        has_host_pids=_has_host_pids(),
        time_s=time.monotonic(),
        benchmarks=None if benchmarks is None else _size_and_time(benchmarks),
    )


def _size_and_time(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _device_sample(device: Device) -> DeviceSample:
    return DeviceSample(device=device, now=readings(device), activity=gpu_activity(device))


def _own_processes(pids: Sequence[int]) -> list[OwnProcess]:
    found = []
    for pid in dict.fromkeys(pids):
        with contextlib.suppress(psutil.Error):  # it has just ended
            memory = psutil.Process(pid).memory_info()
            resident = int(memory.rss)
            shared = int(getattr(memory, "shared", 0))  # only Linux says it
            found.append(OwnProcess(pid=pid, resident_bytes=resident, private_bytes=max(0, resident - shared)))
    return found


def _has_host_pids() -> bool:
    try:
        return os.readlink("/proc/self/ns/pid") == _HOST_PID_NAMESPACE
    except OSError:  # not Linux, where there are no such containers
        return not os.path.isdir("/proc/self")


def programs_in_memory(own_pids: Sequence[int], n_most: int = 5) -> tuple[OtherProgram, ...]:
    """The programs that hold most main memory, this one left out, by name. Takes some milliseconds: ask in a thread."""
    programs: dict[str, OtherProgram] = {}
    for process in psutil.process_iter(["pid", "name", "memory_info"]):
        about = process.info
        if about["pid"] in own_pids or about["memory_info"] is None:
            continue
        _add(programs, about["name"] or "unknown", about["memory_info"].rss)
    return _largest(programs, n_most)


def programs_on_gpu(one: DeviceSample, own_pids: Sequence[int], n_most: int = 5) -> tuple[OtherProgram, ...]:
    """The programs that hold most memory of a GPU, as its driver says, this one left out."""
    programs: dict[str, OtherProgram] = {}
    for process in one.activity.processes:
        if process.pid not in own_pids and process.used_bytes is not None:
            _add(programs, process.name or f"process {process.pid}", process.used_bytes)
    return _largest(programs, n_most)


def _add(programs: dict[str, OtherProgram], name: str, used_bytes: int) -> None:
    before = programs.get(name, OtherProgram(name=name, n_processes=0, used_bytes=0))
    programs[name] = replace(before, n_processes=before.n_processes + 1, used_bytes=before.used_bytes + used_bytes)


def _largest(programs: dict[str, OtherProgram], n_most: int) -> tuple[OtherProgram, ...]:
    found = sorted(programs.values(), key=lambda one: (-one.used_bytes, one.name))
    return tuple(one for one in found if one.used_bytes > 0)[:n_most]
