"""Directories that are there and that this user may not look into: which, and what to do about it.

Where they are passed over in silence, what is in them looks as if it were not there.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from runner.errors import RunnerError


def closed(place: Path) -> Path | None:
    """The first directory on the way to `place` that may not be entered, or that itself where it may not be listed."""
    if os.access(place, os.X_OK | os.R_OK):  # and all on the way to it
        return None
    for directory in (*reversed(place.parents), place):
        mode = os.X_OK | os.R_OK if directory == place else os.X_OK
        if os.path.isdir(directory) and not os.access(directory, mode):
            return directory
    return None


def cannot_read(directories: Sequence[Path]) -> RunnerError:
    """The error for what is closed, at least one."""
    first, *others = directories
    more = f", nor can {len(others)} more" if others else ""
    try:
        is_own = first.stat().st_uid == os.geteuid()
    except OSError:
        is_own = False
    own = f"Give yourself access: chmod -R u+rwX {shlex.quote(str(first))}"
    foreign = (
        "It is another user's: have that one give you access, or use directories of your own (HF_HOME, RUNNER_HOME)."
    )
    return RunnerError(f"{first} cannot be read{more}: permission denied.", hint=own if is_own else foreign)
