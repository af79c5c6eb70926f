"""`runner doctor`: the checks of this machine as a report that can be copied, or as JSON.

It knows how a check looks, not what is checked.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

import runner
from runner.cli import render
from runner.paths import user_paths
from runner.safe_text import safe_line

if TYPE_CHECKING:
    from runner.doctor import Check

_COLOURS: dict[str, render.Colour] = {"ok": "green", "warning": "yellow", "error": "red"}
_NAME_WIDTH = 18


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Check this machine and this installation, and say what to mend. Exit code 1 when something is broken.

    Nothing is changed, and no server is asked. The report names no chats and no passwords: it can be passed on.
    """
    from runner.doctor import checks

    found = checks(user_paths())
    done = list(found) if as_json else list(_shown(found))
    worst = [check.status for check in done]
    if as_json:
        rows = [asdict(check) for check in done]
        render.emit_json("runner.doctor/1", {"version": runner.__version__, "checks": rows})
    else:
        render.data("\n" + _summary(worst.count("error"), worst.count("warning")))
    if "error" in worst:
        raise typer.Exit(1)


def _shown(found: Iterable[Check]) -> Iterable[Check]:
    """Print each check as it comes."""
    render.data(f"runner {runner.__version__} on {platform.system()} {platform.machine()}\n")
    for check in found:
        _show(check)
        yield check


def _show(check: Check) -> None:
    colour = _COLOURS[check.status]
    render.control(render.paint(f"{check.status:7s}", colour))  # our own word: the rest goes through safe_text
    render.data(f"  {check.name:{_NAME_WIDTH}s}  {safe_line(check.detail)}")
    if check.remedy:
        render.data(f"{'':7s}  {'':{_NAME_WIDTH}s}  -> {safe_line(check.remedy)}")


def _summary(errors: int, warnings: int) -> str:
    if not errors and not warnings:
        return "Everything is fine."
    counts = [
        f"{count} {word}{'s' * (count > 1)}" for count, word in ((errors, "error"), (warnings, "warning")) if count
    ]
    return " and ".join(counts) + "."
