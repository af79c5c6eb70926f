"""What Linux control groups allow this process: processor time and memory, in version 1 and 2.

A container sees the host's cores and memory everywhere else; only here is what it may use. It knows nothing of why the
limits are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC_FILE = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a process may use; None is no limit.

    cpus: processor time in cores (1.5 is one and a half). memory_left_bytes: what is not used yet of memory_bytes.
    """

    cpus: float | None = None
    memory_bytes: int | None = None
    memory_left_bytes: int | None = None


def cgroup_limits(proc_file: Path = PROC_FILE, mount: Path = MOUNT) -> Limits:
    """The tightest limits of this process's groups and of all above them."""
    cpus: list[float] = []
    memory: list[tuple[int, int]] = []
    for controller, folder in _folders(proc_file, mount):
        if controller in ("", "cpu") and (limit := _cpu_limit(folder)) is not None:
            cpus.append(limit)
        if controller in ("", "memory") and (pair := _memory_limit(folder)) is not None:
            memory.append(pair)
    return Limits(
        cpus=min(cpus, default=None),
        memory_bytes=min((limit for limit, _ in memory), default=None),
        memory_left_bytes=min((left for _, left in memory), default=None),
    )


def _folders(proc_file: Path, mount: Path) -> Iterator[tuple[str, Path]]:
    """(controller, folder) of each group that holds this process, from its own up to the root; "" is version 2.

    Inside a container the path may be the host's and not exist under the mount; the mount's root is the group then.
    """
    for line in (_text(proc_file) or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            if controller not in ("", "cpu", "memory"):
                continue
            root = mount / controller
            folder = root / path.lstrip("/")
            for candidate in (folder, *folder.parents):
                if candidate.is_relative_to(root) and candidate.is_dir():
                    yield controller, candidate


def _cpu_limit(folder: Path) -> float | None:
    fields = (_text(folder / "cpu.max") or "").split()
    if len(fields) == 2:
        quota, period = _number(fields[0]), _number(fields[1])
    else:
        quota, period = _number(_text(folder / "cpu.cfs_quota_us")), _number(_text(folder / "cpu.cfs_period_us"))
    return quota / period if quota is not None and quota > 0 and period else None


def _memory_limit(folder: Path) -> tuple[int, int] | None:
    """(limit, what is left of it). Cached file pages are given up when memory is short, so they count as left."""
    for limit_file, usage_file, cached_key in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit = _number(_text(folder / limit_file))
        if limit is not None and limit < 2**60:  # version 1 writes a number of about 2^63 for "no limit"
            usage = _number(_text(folder / usage_file)) or 0
            stat = dict(line.partition(" ")[::2] for line in (_text(folder / "memory.stat") or "").splitlines())
            cached = _number(stat.get(cached_key)) or 0
            return limit, max(0, min(limit, limit - usage + cached))
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def _number(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:  # "max"
        return None
