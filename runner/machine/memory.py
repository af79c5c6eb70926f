"""What main memory this process takes, as the kernel counts it: what it maps of files included."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path
from typing import Final

_STATUS: Final = Path("/proc/self/status")


def peak_bytes() -> int:
    """The most that it ever held.

    Of Linux its own status, since getrusage goes on from what the process held that this one was started by.
    """
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found:
        return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
