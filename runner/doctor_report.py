"""What doctor found, as a text that can be copied and passed on, and in one sentence.

Pure functions of checks. It knows neither what is checked nor a terminal.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence

import runner
from runner.doctor import Check
from runner.measures import hung
from runner.safe_text import safe_line

_STATUS_WIDTH, _NAME_WIDTH = 7, 18


def heading() -> str:
    """Which runner, and where."""
    return f"runner {runner.__version__} on {platform.system()} {platform.machine()}"


def check_rest(check: Check, width: int | None = None) -> str:
    """A check without its status, aligned: its name and detail, and the remedy on a line of its own.

    width: that of a terminal, at which words are not to be broken.
    """
    parts = [(check.name, safe_line(check.detail))]
    if check.remedy:
        parts.append(("", f"-> {safe_line(check.remedy)}"))
    lines = [
        hung(f"{'':{_STATUS_WIDTH}s}  {name:{_NAME_WIDTH}s}  ", text, width, narrow=_STATUS_WIDTH + 2)
        for name, text in parts
    ]
    return "\n".join(lines)[_STATUS_WIDTH:]


def summary(found: Sequence[Check]) -> str:
    """ "1 error and 2 warnings.", or that everything is fine."""
    counts = [(sum(check.status == status for check in found), status) for status in ("error", "warning")]
    words = [f"{count} {word}{'s' * (count > 1)}" for count, word in counts if count]
    return f"{' and '.join(words)}." if words else "Everything is fine."


def report(found: Sequence[Check]) -> str:
    """The whole report. It names no chats and no passwords."""
    lines = [f"{check.status:{_STATUS_WIDTH}s}{check_rest(check)}" for check in found]
    return "\n".join([heading(), "", *lines, "", summary(found), ""])
