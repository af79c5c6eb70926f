"""`runner du`: what models take on the disk, and what could be freed.

It shows what disk_usage.py counted.
"""

from __future__ import annotations

from typing import Annotated

import typer

from runner.cli import render
from runner.cli.unreadable import warn_of_unreadable
from runner.disk_usage import DiskUsage, disk_usage
from runner.measures import wrap
from runner.paths import user_paths
from runner.registry import Registry
from runner.safe_text import safe_line
from runner.wire import to_plain


def du(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, runner.du/1.")] = False,
) -> None:
    """Show what models take on the disk: the cache, what was made here, partial downloads, damaged files set aside."""
    paths = user_paths()
    registry = Registry.load_for(paths)
    usage = disk_usage(registry, paths.models, paths.drafts)
    closed = warn_of_unreadable(registry, paths)
    if as_json:
        plain = {**to_plain(usage), "disk_bytes": usage.disk_bytes, "unreadable": closed}
        render.emit_json("runner.du/1", plain)
        return
    _print(usage)


def _print(usage: DiskUsage) -> None:
    def size(value: int) -> str:
        return render.decimal_size(value) if value else ""

    rows = [
        [render.decimal_size(use.disk_bytes), size(use.partial_bytes), size(use.set_aside_bytes), use.kind, use.name]
        for use in usage.uses
    ]
    partial = sum(use.partial_bytes for use in usage.uses)
    aside = sum(use.set_aside_bytes for use in usage.uses)
    rows.append([render.decimal_size(usage.disk_bytes), size(partial), size(aside), "", "in all"])
    render.table(["ON DISK", "PARTIAL", "SET ASIDE", "KIND", "MODEL"], rows, right=[0, 1, 2])
    for disk in usage.disks:
        free, total = render.decimal_size(disk.free_bytes), render.decimal_size(disk.total_bytes)
        said = safe_line(f"{free} of {total} are free on the disk of {disk.path}")
        render.data(wrap(said, render.terminal_size().columns) if render.is_terminal() else said)
    if partial:
        render.narrate("`runner pull` goes on with a partial download.")
    kinds = {
        "partial downloads": partial > 0,
        "what is unfinished": any(use.kind == "unfinished" for use in usage.uses),
        "what was set aside": aside > 0,
    }
    if named := [kind for kind, is_there in kinds.items() if is_there]:
        render.narrate(f"`runner rm --partial` deletes {' and '.join(named)}.")
