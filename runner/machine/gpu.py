"""The devices that can hold a model: NVIDIA GPUs by NVML, AMD GPUs by sysfs, Apple's GPU, and main memory, always last.

NVML is opened at the first question and kept. Numbers are the driver's; this file does not know what uses the memory.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from runner.machine.cgroup import cgroup_limits
from runner.machine.cpu import cpu_info
from runner.types import Device

DRM = Path("/sys/class/drm")
_AMD_VENDOR = "0x1002"
_NVML_LIBRARY = "libnvidia-ml.so.1"  # of the driver: where there is none, its binding need not be imported to see that


@dataclass(frozen=True, kw_only=True)
class DeviceReadings:
    """What a device is doing now; None where the driver does not say. utilization: 0 to 1."""

    used_bytes: int | None = None
    total_bytes: int | None = None
    utilization: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    clock_mhz: int | None = None


def devices(environ: Mapping[str, str] | None = None, drm: Path = DRM) -> tuple[Device, ...]:
    """The GPUs that this process may use, then main memory as kind "cpu". Never raises, never empty.

    CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES hide GPUs here as they do from the libraries that compute on them.
    """
    environ = os.environ if environ is None else environ
    return (
        *_nvidia(environ.get("CUDA_VISIBLE_DEVICES")),
        *_amd(drm, environ.get("HIP_VISIBLE_DEVICES")),
        *_apple(),
        main_memory(),
    )


def readings(device: Device, drm: Path = DRM) -> DeviceReadings:
    """What `device` is doing now; what cannot be read is None."""
    if device.kind == "cuda":
        return _nvidia_readings(device.index)
    if device.kind == "rocm":
        cards = _amd_cards(drm)
        return _amd_readings(cards[device.index]) if device.index < len(cards) else DeviceReadings()
    memory = main_memory()
    return DeviceReadings(
        used_bytes=memory.total_bytes - memory.free_bytes,
        total_bytes=memory.total_bytes,
        utilization=psutil.cpu_percent() / 100 if device.kind == "cpu" else None,
    )


def cuda_capability(device: Device) -> tuple[int, int] | None:
    """The compute capability of an NVIDIA GPU, (9, 0) for an H100; None for others and where the driver says none."""
    binding = nvml() if device.kind == "cuda" else None
    handle = None if binding is None else ask_nvml(binding.nvmlDeviceGetHandleByIndex, device.index)
    found = None if binding is None or handle is None else ask_nvml(binding.nvmlDeviceGetCudaComputeCapability, handle)
    return None if found is None else (int(found[0]), int(found[1]))


def rated_bandwidth(device: Device) -> float | None:
    """Bytes a second that the memory of an NVIDIA GPU gives at most: two bits a cycle on each line of its bus.

    None for others, and where the driver does not say. An H200: 4.9 TB/s, of which a read measures 4.6.
    """
    binding = nvml() if device.kind == "cuda" else None
    handle = None if binding is None else ask_nvml(binding.nvmlDeviceGetHandleByIndex, device.index)
    if binding is None or handle is None:
        return None
    lines = ask_nvml(binding.nvmlDeviceGetMemoryBusWidth, handle)
    clock_mhz = ask_nvml(binding.nvmlDeviceGetMaxClockInfo, handle, binding.NVML_CLOCK_MEM)
    return 2 * clock_mhz * 1e6 * lines / 8 if lines and clock_mhz else None


def process_memory_bytes(pid: int) -> int | None:
    """Main memory that a process holds (resident, mapped weights included), or None when it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


# --- main memory, Apple ----------------------------------------------------------------------------------------------


def main_memory() -> Device:
    """Main memory as kind "cpu", or the part of it that control groups leave to this process."""
    memory, limits = psutil.virtual_memory(), cgroup_limits()
    total, free = int(memory.total), int(memory.available)
    if limits.memory_bytes is not None and limits.memory_left_bytes is not None:
        total, free = min(total, limits.memory_bytes), min(free, limits.memory_left_bytes)
    return Device(kind="cpu", index=0, name=cpu_info().model, total_bytes=total, free_bytes=free)


def _apple() -> Iterator[Device]:
    """Apple's GPU works in main memory."""
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        memory = psutil.virtual_memory()
        yield Device(
            kind="metal",
            index=0,
            name=cpu_info().model,
            total_bytes=int(memory.total),
            free_bytes=int(memory.available),
            is_in_main_memory=True,
        )


def is_visible(index: int, uuid: str, visible: str | None) -> bool:
    """Whether a variable such as CUDA_VISIBLE_DEVICES ("0,2", "GPU-1f2e…") shows a GPU; None shows all of them.

    As in CUDA, the list ends at its first entry that is no name: "-1" and "" hide everything.
    """
    if visible is None:
        return True
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdigit():
            if int(entry) == index:
                return True
        elif not entry.startswith(("GPU-", "MIG-")):
            return False
        elif uuid.startswith(entry):
            return True
    return False


# --- NVIDIA ----------------------------------------------------------------------------------------------------------


@cache
def nvml() -> Any | None:
    """The NVML binding, opened, or None where there is no NVIDIA driver."""
    try:
        ctypes.CDLL(_NVML_LIBRARY)
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # a missing, broken or mismatched driver fails in many ways, and each means "no NVIDIA GPU"
        return None
    return pynvml


def ask_nvml(question: Callable[..., Any], *arguments: Any) -> Any | None:
    """The driver's answer, or None where it has none (a laptop without a power sensor, a lost GPU)."""
    binding = nvml()
    if binding is None:
        return None
    try:
        return question(*arguments)
    except binding.NVMLError:
        return None


def _nvidia(visible: str | None) -> Iterator[Device]:
    binding = nvml()
    if binding is None:
        return
    for index in range(ask_nvml(binding.nvmlDeviceGetCount) or 0):
        handle = ask_nvml(binding.nvmlDeviceGetHandleByIndex, index)
        if handle is None or not is_visible(index, str(ask_nvml(binding.nvmlDeviceGetUUID, handle) or ""), visible):
            continue
        memory = ask_nvml(binding.nvmlDeviceGetMemoryInfo, handle)
        shared = psutil.virtual_memory()  # GPUs that work in main memory give no numbers of their own
        yield Device(
            kind="cuda",
            index=index,
            name=str(ask_nvml(binding.nvmlDeviceGetName, handle) or "NVIDIA GPU"),
            total_bytes=int(shared.total if memory is None else memory.total),
            free_bytes=int(shared.available if memory is None else memory.free),
            is_in_main_memory=memory is None,
        )


def _nvidia_readings(index: int) -> DeviceReadings:
    binding = nvml()
    handle = None if binding is None else ask_nvml(binding.nvmlDeviceGetHandleByIndex, index)
    if binding is None or handle is None:
        return DeviceReadings()
    memory = ask_nvml(binding.nvmlDeviceGetMemoryInfo, handle)
    busy = ask_nvml(binding.nvmlDeviceGetUtilizationRates, handle)
    power_mw = ask_nvml(binding.nvmlDeviceGetPowerUsage, handle)
    temperature = ask_nvml(binding.nvmlDeviceGetTemperature, handle, binding.NVML_TEMPERATURE_GPU)
    return DeviceReadings(
        used_bytes=None if memory is None else int(memory.used),
        total_bytes=None if memory is None else int(memory.total),
        utilization=None if busy is None else busy.gpu / 100,
        power_w=None if power_mw is None else power_mw / 1000,
        temperature_c=None if temperature is None else float(temperature),
        clock_mhz=ask_nvml(binding.nvmlDeviceGetClockInfo, handle, binding.NVML_CLOCK_SM),
    )


# --- AMD -------------------------------------------------------------------------------------------------------------


def _amd_cards(drm: Path) -> list[Path]:
    """The device folders of AMD GPUs, in the kernel's order. `card0-DP-1` and the like are connectors, not cards."""
    found = []
    for card in drm.glob("card*"):
        number = card.name.removeprefix("card")
        device = card / "device"
        if number.isdigit() and _word(device / "vendor") == _AMD_VENDOR and _count(device / "mem_info_vram_total"):
            found.append((int(number), device))
    return [device for _, device in sorted(found)]


def _amd(drm: Path, visible: str | None) -> Iterator[Device]:
    for index, folder in enumerate(_amd_cards(drm)):
        uuid = f"GPU-{_word(folder / 'unique_id')}"
        if is_visible(index, uuid, visible):
            total = _count(folder / "mem_info_vram_total") or 0
            yield Device(
                kind="rocm",
                index=index,
                name=_word(folder / "product_name") or f"AMD GPU {_word(folder / 'device')}".strip(),
                total_bytes=total,
                free_bytes=max(0, total - (_count(folder / "mem_info_vram_used") or 0)),
            )


def _amd_readings(folder: Path) -> DeviceReadings:
    busy = _count(folder / "gpu_busy_percent")
    sensors = next(iter(sorted(folder.glob("hwmon/hwmon*"))), folder / "hwmon")
    microwatts = _count(sensors / "power1_average") or _count(sensors / "power1_input")
    millidegrees = _count(sensors / "temp1_input")
    hertz = _count(sensors / "freq1_input")
    return DeviceReadings(
        used_bytes=_count(folder / "mem_info_vram_used"),
        total_bytes=_count(folder / "mem_info_vram_total"),
        utilization=None if busy is None else busy / 100,
        power_w=None if microwatts is None else microwatts / 1e6,
        temperature_c=None if millidegrees is None else millidegrees / 1000,
        clock_mhz=None if hertz is None else hertz // 1_000_000,
    )


def _word(path: Path) -> str:
    """The content of a sysfs file, or "" when it is missing or unreadable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _count(path: Path) -> int | None:
    text = _word(path)
    return int(text) if text.isdigit() else None
