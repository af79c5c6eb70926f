"""The machine, as its drivers and kernel describe it: GPUs, main memory, processor, and what they are doing now.

The edge to NVML, sysfs, cgroups and psutil. Nothing here raises because something is missing: a machine without a GPU
has only its main memory, and a reading that nobody gives is None. It knows no model and no backend.
"""

from runner.machine.activity import GpuActivity, GpuProcess, driver_version, gpu_activity
from runner.machine.cgroup import Limits, cgroup_limits
from runner.machine.cpu import CpuInfo, cache_bytes, cpu_info, default_threads
from runner.machine.gpu import (
    DeviceReadings,
    cuda_capability,
    devices,
    main_memory,
    process_memory_bytes,
    rated_bandwidth,
    readings,
)
from runner.machine.memory import peak_bytes

__all__ = [
    "CpuInfo",
    "DeviceReadings",
    "GpuActivity",
    "GpuProcess",
    "Limits",
    "cache_bytes",
    "cgroup_limits",
    "cpu_info",
    "cuda_capability",
    "default_threads",
    "devices",
    "driver_version",
    "gpu_activity",
    "main_memory",
    "peak_bytes",
    "process_memory_bytes",
    "rated_bandwidth",
    "readings",
]
