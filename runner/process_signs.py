"""What a process of ours is seen to do when it says nothing: compute, read from a disk, wait for one.

What cannot be told on this system counts as not seen. It knows nothing of what the process is for.
"""

from __future__ import annotations


def cpu_s(pid: int) -> float:
    """The CPU time that a process has used."""
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def waits_for_disk(pid: int) -> bool:
    """Whether a process waits in a way that nothing interrupts: for a disk, or for another device."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_DISK_SLEEP)
    except psutil.Error:
        return False


class DiskWatch:
    """When a process was last seen at a disk; to be looked at again and again while it says nothing.

    A library that is loaded from a slow disk stops every thread of its process: Python holds its lock meanwhile. Bytes
    that arrive are a sign for as long as they do. Waiting alone is one for `patience_s`: a driver that hangs waits too.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._read_bytes: int | None = None
        self._read_at = self._waited_at = 0.0

    def look(self, pid: int, now: float) -> None:
        import psutil

        try:
            if waits_for_disk(pid):
                self._waited_at = now
            read_bytes = int(psutil.Process(pid).io_counters().read_bytes)
        except (psutil.Error, AttributeError, OSError, RuntimeError, ValueError):
            return  # macOS has no counters, some containers neither
        if self._read_bytes is not None and read_bytes > self._read_bytes:
            self._read_at = now
        self._read_bytes = read_bytes

    def pause(self, paused_s: float) -> None:
        """Nobody could look for so long."""
        self._read_at += paused_s
        self._waited_at += paused_s

    def sign_at(self, heard_at: float) -> float:
        """When the process, last heard at `heard_at`, gave its last sign of life."""
        moved_at = max(heard_at, self._read_at)
        return max(moved_at, min(self._waited_at, moved_at + self._patience_s))
