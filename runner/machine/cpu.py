"""The processor: its name, cores, caches and instruction sets, and how many threads a model should use on it.

Affinity and control groups are respected, so that a container of two cores on a host of 64 counts two. It knows nothing
of what the threads will do.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from runner.machine.cgroup import cgroup_limits

SYSTEM_CPUS = Path("/sys/devices/system/cpu")
HYBRID_FAST_CPUS = Path("/sys/devices/cpu_core/cpus")
PROC_CPUINFO = Path("/proc/cpuinfo")

# The kernel's flag -> the name that llama.cpp and people use.
_FEATURES: Mapping[str, str] = {
    "sse4_2": "sse4.2",
    "avx": "avx",
    "f16c": "f16c",
    "fma": "fma",
    "avx2": "avx2",
    "avx_vnni": "avx-vnni",
    "avx512f": "avx512",
    "avx512_vnni": "avx512-vnni",
    "avx512_bf16": "avx512-bf16",
    "amx_int8": "amx",
    "asimd": "neon",
    "asimddp": "dotprod",
    "i8mm": "i8mm",
    "sve": "sve",
}


@dataclass(frozen=True, kw_only=True)
class CpuInfo:
    """physical_cores, logical_cores: of the machine. usable_cores: logical ones that this process may run on.

    cpu_limit: processor time granted by control groups, in cores, or None. features: of what models profit from, such
    as "avx2", "avx512", "neon".
    """

    model: str
    physical_cores: int
    logical_cores: int
    usable_cores: int
    cpu_limit: float | None
    features: tuple[str, ...]


def cpu_info() -> CpuInfo:
    """The processor as this process sees it."""
    model, features = _identity()
    logical = os.cpu_count() or 1
    return CpuInfo(
        model=model,
        physical_cores=psutil.cpu_count(logical=False) or logical,
        logical_cores=logical,
        usable_cores=len(_allowed_cpus()),
        cpu_limit=cgroup_limits().cpus,
        features=features,
    )


def default_threads() -> int:
    """How many threads a model should compute with: one for each fast physical core that this process may use."""
    if sys.platform == "darwin":
        fast = _sysctl("hw.perflevel0.physicalcpu")
        return int(fast) if fast.isdigit() and int(fast) > 0 else psutil.cpu_count(logical=False) or 1
    return _threads(_physical_cores(_allowed_cpus()), cgroup_limits().cpus)


def _threads(cores: int, limit: float | None) -> int:
    """A thread more than the limit allows would make all of them wait for it, so a fraction is left unused."""
    return max(1, cores if limit is None else min(cores, int(limit)))


def _allowed_cpus() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _physical_cores(allowed: frozenset[int], cpus: Path = SYSTEM_CPUS, fast_cpus: Path = HYBRID_FAST_CPUS) -> int:
    """The cores under these logical processors; where there are fast and slow ones, the fast ones.

    Two threads of one core share its arithmetic units, and one slow core makes all the others wait.
    """
    fast = allowed & _cpu_list(_first_line(fast_cpus))
    cores = set()
    for number in fast or allowed:
        siblings = _cpu_list(_first_line(cpus / f"cpu{number}" / "topology" / "thread_siblings_list"))
        cores.add(min(siblings, default=number))
    return len(cores)


def cache_bytes() -> int | None:
    """What the largest caches of the processors hold together that this process may use; None where nobody says."""
    return _largest_caches(_allowed_cpus())


def _largest_caches(allowed: frozenset[int], cpus: Path = SYSTEM_CPUS) -> int | None:
    """The caches of the highest level, each counted once."""
    of_level: dict[int, dict[frozenset[int], int]] = {}
    for number in allowed:
        for index in (cpus / f"cpu{number}" / "cache").glob("index*"):
            level, size = _first_line(index / "level"), _first_line(index / "size").removesuffix("K")
            if level.isdigit() and size.isdigit():
                sharers = _cpu_list(_first_line(index / "shared_cpu_list")) or frozenset({number})
                of_level.setdefault(int(level), {})[sharers] = int(size) * 1024
    return sum(of_level[max(of_level)].values()) if of_level else None


def _cpu_list(text: str) -> frozenset[int]:
    """The kernel's list format: "0-3,8" is 0, 1, 2, 3, 8."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.strip().isdigit():
            numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


@cache
def _identity() -> tuple[str, tuple[str, ...]]:
    if sys.platform == "darwin":
        names = ("neon", "dotprod") if platform.machine() == "arm64" else ()
        return _sysctl("machdep.cpu.brand_string") or platform.machine(), names
    try:
        text = PROC_CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    model, features = parse_cpuinfo(text, fallback="")
    return model or platform.processor() or platform.machine() or "unknown", features  # a process is asked, so at last


def parse_cpuinfo(text: str, fallback: str) -> tuple[str, tuple[str, ...]]:
    """(model name, instruction sets) from /proc/cpuinfo; ARM kernels give no name, so it is `fallback` there."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return fields.get("model name") or fallback, tuple(name for flag, name in _FEATURES.items() if flag in flags)


def _sysctl(name: str) -> str:
    """A value of macOS's sysctl, or "" where it has none."""
    try:
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
