"""What else a GPU is doing: who else holds memory of it, why its clocks are low, and which driver says so.

NVML alone tells; of other GPUs, and of what a driver does not say, nothing is known. It judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import psutil

from runner.machine.gpu import ask_nvml, nvml
from runner.types import Device

# NVML's bits for what holds the clocks down. An idle GPU has low clocks too, which is no fault (bit 0), and so has one
# whose owner asked for them (bit 1).
_REASONS: Final[Mapping[int, str]] = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "clocks synchronized with another GPU's",
    0x20: "heat",
    0x40: "heat, by the hardware",
    0x80: "power brake",
}


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU. used_bytes: None where the driver does not say."""

    pid: int
    name: str
    used_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class GpuActivity:
    """processes: all of them, this program's too; pids are the host's, which a container's differ from."""

    memory_clock_mhz: int | None = None
    throttled: tuple[str, ...] = ()
    processes: tuple[GpuProcess, ...] = ()


def gpu_activity(device: Device) -> GpuActivity:
    """What `device` is doing now, if it is an NVIDIA GPU."""
    binding = nvml()
    handle = ask_nvml(binding.nvmlDeviceGetHandleByIndex, device.index) if binding and device.kind == "cuda" else None
    if binding is None or handle is None:
        return GpuActivity()
    reasons = ask_nvml(binding.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
    running = ask_nvml(binding.nvmlDeviceGetComputeRunningProcesses, handle) or ()
    return GpuActivity(
        memory_clock_mhz=ask_nvml(binding.nvmlDeviceGetClockInfo, handle, binding.NVML_CLOCK_MEM),
        throttled=throttle_reasons(reasons),
        processes=tuple(
            GpuProcess(pid=int(one.pid), name=_name(int(one.pid)), used_bytes=one.usedGpuMemory) for one in running
        ),
    )


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """NVML's reasons for low clocks in words."""
    return tuple(words for bit, words in _REASONS.items() if bits & bit)


def driver_version(device: Device) -> str:
    """The version of the driver of an NVIDIA GPU, or ""."""
    binding = nvml()
    return str(ask_nvml(binding.nvmlSystemGetDriverVersion) or "") if binding and device.kind == "cuda" else ""


def _name(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return ""
