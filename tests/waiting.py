"""Waiting for what another thread or process brings about, on a machine that may be busy with other things."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

PATIENCE_S = 60.0  # far longer than anything takes that happens at all


def wait_for(condition: Callable[[], object], what: str = "it did not happen") -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def has_ended(pid: int) -> bool:
    """Whether that process is gone, also if nobody has asked yet how it ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
