"""RUNNER_ variables that nothing reads and that look like a misspelt setting.

Other programs use RUNNER_* too, so a variable that is near to no name of ours is theirs, and nothing is said of it.
This file knows no place where it is told.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Final

from runner.settings.table import SETTINGS

_PREFIX: Final = "RUNNER_"
_NO_SETTINGS: Final = ("RUNNER_HOME", "RUNNER_DEBUG", "RUNNER_SERVE_TOKEN")  # read elsewhere
_NEAR: Final = 0.8  # of letters alike: other programs' names are short, and many are near to one of ours
# Of build machines, though near to names of ours.
_OF_OTHERS: Final = ("RUNNER_TEMP", "RUNNER_TOKEN", "RUNNER_SCOPE", "RUNNER_TYPE", "RUNNER_SYSTEM_ID")


def misspelt_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """{variable: what it may have been meant to be}, such as {"RUNNER_TOPK": "RUNNER_TOP_K"}; of the process's own."""
    known = [item.variable for item in SETTINGS] + list(_NO_SETTINGS)
    parts = {_bare(name): name for name in known}
    found: dict[str, str] = {}
    for name, value in sorted((os.environ if environ is None else environ).items()):
        is_unread = name.startswith(_PREFIX) and name not in (*known, *_OF_OTHERS)
        if value and is_unread and (near := difflib.get_close_matches(_bare(name), parts, n=1, cutoff=_NEAR)):
            found[name] = parts[near[0]]
    return found


def _bare(name: str) -> str:
    """What tells one from another: what all begin with would make any of them near."""
    return name.removeprefix(_PREFIX).replace("_", "")
