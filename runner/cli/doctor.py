"""`runner doctor`: the checks of this machine as a report that can be copied, or as JSON.

It knows how a check looks, not what is checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

import runner
from runner.cli import render
from runner.paths import user_paths

if TYPE_CHECKING:
    from runner.doctor import Check

_COLOURS: dict[str, render.Colour] = {"ok": "green", "warning": "yellow", "error": "red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Check this machine and this installation, and say what to mend. Exit code 1 when something is broken.

    Nothing is changed, and no server is asked. The report names no chats and no passwords: it can be passed on.
    """
    from runner.doctor import checks
    from runner.doctor_report import summary

    found = checks(user_paths())
    done = list(found) if as_json else list(_shown(found))
    if as_json:
        rows = [asdict(check) for check in done]
        render.emit_json("runner.doctor/1", {"version": runner.__version__, "checks": rows})
    else:
        render.data("\n" + summary(done))
    if any(check.status == "error" for check in done):
        raise typer.Exit(1)


def _shown(found: Iterable[Check]) -> Iterable[Check]:
    """Print each check as it comes."""
    from runner.doctor_report import check_rest, heading

    width = render.terminal_size().columns if render.is_terminal() else None
    render.data(f"{heading()}\n")
    for check in found:
        render.control(render.paint(f"{check.status:7s}", _COLOURS[check.status]))  # our own word
        render.data(check_rest(check, width))
        yield check
