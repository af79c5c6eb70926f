"""The machine of a run: what it is, what it was doing before and after, and with which versions.

It reads drivers, the processor and installed packages through runner.machine and importlib; it measures nothing.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import runner
from runner.bench.record import BenchMachine, MachineState, OtherProcess
from runner.machine import cpu_info, devices, driver_version, gpu_activity, readings
from runner.types import Device

_PACKAGES = ("torch", "triton", "llama-cpp-python")
_GIT_PATIENCE_S = 2.0
_BUSY_SHARE = 0.5  # of the cores, by the load average: beyond that a CPU measurement is of two programs


def device_of_run(n_gpu_layers: int | str) -> Device:
    """What a model is put on: the first GPU, or main memory."""
    everything = devices()
    return everything[0] if n_gpu_layers != 0 else everything[-1]


def machine_state(device: Device) -> MachineState:
    """What the machine is doing now. others: every process that holds memory of the GPU, our own too."""
    now, activity = readings(device), gpu_activity(device)
    return MachineState(
        clock_mhz=now.clock_mhz,
        memory_clock_mhz=activity.memory_clock_mhz,
        temperature_c=now.temperature_c,
        power_w=now.power_w,
        throttled=activity.throttled,
        others=tuple(OtherProcess(pid=p.pid, name=p.name, bytes=p.used_bytes) for p in activity.processes),
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def over_a_run(during: Sequence[MachineState], afterwards: MachineState) -> MachineState:
    """The state after a run: under load, as it was seen last; with all that lowered the clocks at any time.

    afterwards: when our own processes had ended, so that those on the GPU are others.
    """
    last = during[-1] if during else afterwards
    throttled = tuple(dict.fromkeys(reason for state in during for reason in state.throttled))
    return dataclasses.replace(last, throttled=throttled, others=afterwards.others)


def describe_machine(device: Device, before: MachineState) -> BenchMachine:
    """The machine as it is before a run. Reads the disk, and asks git and the driver: it may take seconds."""
    cpu, ram = cpu_info(), devices()[-1]
    return BenchMachine(
        device=device.name,
        kind=device.kind,
        memory_bytes=device.total_bytes,
        driver=driver_version(device),
        cpu=cpu.model,
        physical_cores=cpu.physical_cores,
        usable_cores=cpu.usable_cores,
        ram_bytes=ram.total_bytes,
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
        before=before,
        after=before,
        bandwidth=None,
        versions=versions(),
    )


def machine_notes(machine: BenchMachine) -> Iterable[str]:
    """What a reader of the figures should know of the state of the machine."""
    if machine.after.throttled:
        yield f"The GPU lowered its clocks in this run ({', '.join(machine.after.throttled)})."
    seen = {other.pid: other for state in (machine.before, machine.after) for other in state.others}
    for other in seen.values():
        size = "" if other.bytes is None else f", {other.bytes / 2**30:.1f} GiB"
        yield f"Another process was on the GPU: {other.name or 'unknown'} (pid {other.pid}{size})."
    load = machine.before.load_average
    if load is not None and load > _BUSY_SHARE * machine.usable_cores:
        cores = "1 core" if machine.usable_cores == 1 else f"{machine.usable_cores} cores"
        yield f"The machine was busy before this run: a load of {load:.1f} on {cores}."


# --- versions --------------------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    """Of runner, Python and the libraries that compute; "commit" where runner runs from a checkout."""
    found = {"runner": runner.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    commit = _commit(Path(runner.__file__).parent.parent)
    return found | ({"commit": commit} if commit else {})


def _commit(root: Path) -> str:
    """The commit of a checkout, with "-dirty" when its files were changed since; "" where there is none."""
    if not (root / ".git").exists():
        return ""
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    return f"{commit}-dirty" if commit and _git(root, "status", "--porcelain", "--", "runner") else commit


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_PATIENCE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
