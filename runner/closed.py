"""Directories that this user may not look into, and links that lead nowhere: which, and what to do about it.

Where they are passed over in silence, what is in them looks as if it were not there.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from runner.errors import RunnerError

MOUNT: Final = "mount the disk that it is on, or delete the link"
GONE: Final = "the models.toml that names it is wrong, or it was moved or deleted, or its disk is not mounted"


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


def lost_target(place: Path) -> Path | None:
    """Where `place` links to, where nothing is to be found there, as when a disk is not mounted; None for all else."""
    return Path(os.path.realpath(place)) if os.path.islink(place) and not os.path.exists(place) else None


def leads_nowhere(link: Path, target: Path) -> RunnerError:
    """The error for a link whose target was lost."""
    return RunnerError(
        f"{link} is a link to {target}, which cannot be found.",
        hint=f"{MOUNT[0].upper()}{MOUNT[1:]}.",
    )
