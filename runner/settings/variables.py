"""RUNNER_ variables that nothing reads and that look like a misspelt setting.

Other programs use RUNNER_* too, so a variable that is near to no name of ours is theirs, and nothing is said of it.
This file knows no place where it is told.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from runner.errors import nearest
from runner.settings.table import SETTINGS

_PREFIX: Final = "RUNNER_"
_NO_SETTINGS: Final = ("RUNNER_HOME", "RUNNER_DEBUG", "RUNNER_SERVE_TOKEN")  # read elsewhere
_OF_OTHERS: Final = ("RUNNER_TEMP", "RUNNER_TOKEN")  # of build machines, though near to names of ours


def misspelt_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """{variable: what it may have been meant to be}, such as {"RUNNER_TOPK": "RUNNER_TOP_K"}; of the process's own."""
    known = [item.variable for item in SETTINGS] + list(_NO_SETTINGS)
    parts = [name.removeprefix(_PREFIX) for name in known]  # what all begin with would make any of them near
    found: dict[str, str] = {}
    for name, value in sorted((os.environ if environ is None else environ).items()):
        is_unread = name.startswith(_PREFIX) and name not in (*known, *_OF_OTHERS)
        if value and is_unread and (near := nearest(name.removeprefix(_PREFIX), parts)):
            found[name] = _PREFIX + near[0]
    return found
