"""A run written to a file of the user's own: .md, .csv, .json or .svg, by the file's suffix.

The same text as the CLI writes to stdout. It knows no screen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from runner.bench.formats import csv_text, markdown, run_json
from runner.bench.record import BenchRun
from runner.bench.svg_plot import svg_of
from runner.errors import UsageError
from runner.new_file import write_new
from runner.paths import expanded


def _json(run: BenchRun) -> str:
    return json.dumps(run_json(run), indent=2) + "\n"


_WRITERS: Final[Mapping[str, Callable[[BenchRun], str]]] = {
    ".md": lambda run: markdown(run).rstrip("\n") + "\n",
    ".csv": lambda run: csv_text(run),
    ".json": _json,
    ".svg": svg_of,
}
SUFFIXES: Final = tuple(_WRITERS)


def export_run(run: BenchRun, path: Path) -> Path:
    """Write a run in one step; returns the whole path. Nothing is uploaded.

    Raises UsageError for another suffix or a file that is there already, RunnerError when it cannot be written.
    """
    write = _WRITERS.get(path.suffix.lower())
    if write is None or "\0" in str(path):
        raise UsageError(f"{path.name!r} says no format.", hint=f"Use a name that ends in {', '.join(SUFFIXES)}.")
    whole = expanded(path).absolute()
    write_new(whole, write(run), is_private=False)
    return whole
