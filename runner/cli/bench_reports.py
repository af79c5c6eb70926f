"""What is done with a run of `runner bench`: it is shown, kept, drawn, and held against a baseline.

It reads and writes files and prints; what a report says is made in runner.bench. It knows nothing of measuring.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from runner.cli import render
from runner.errors import RunnerError, UsageError
from runner.paths import Paths, expanded, user_paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runner.bench.comparison import RunComparison
    from runner.bench.record import BenchRun
    from runner.bench.store import History
    from runner.bench.styled import Line, Style

FORMATS: Final = ("table", "md", "json", "jsonl", "csv")
_COLOURS: Final[dict[Style, render.Colour | None]] = {
    "": None,
    "bold": "bold",
    "dim": "dim",
    "good": "green",
    "bad": "red",
    "doubt": "yellow",
    "accent": "cyan",
}


# --- a new run -------------------------------------------------------------------------------------------------------


def check_options(baseline: str | None, fail_below: str | None, plot: Path | None) -> BenchRun | None:
    """Refuse now what could only fail after minutes of measuring; gives the baseline, None for the last run like it.

    Raises UsageError, and RunnerError.
    """
    if fail_below is not None:
        allowed_share(fail_below)
        if baseline is None:
            raise UsageError("--fail-below needs something to compare with.", hint="Add --baseline last.")
    if plot is not None:
        _check_plot(plot)
    return None if baseline in (None, "last") else run_meant(read_kept(user_paths()), str(baseline))


def form_of(form: str | None, *, as_json: bool, known: Sequence[str] = FORMATS) -> str:
    """The format that --format and --json ask for: the first of `known` when neither is given. Raises UsageError."""
    if form is not None and form not in known:
        raise UsageError(f"--format is {form!r}.", hint=f"It must be one of {', '.join(known)}.")
    if as_json and form not in (None, "json"):
        raise UsageError(f"--json contradicts --format {form}.", hint="Leave one of them out.")
    return "json" if as_json else form or known[0]


def show_run(run: BenchRun, form: str) -> None:
    """The run on stdout."""
    from runner.bench import formats
    from runner.bench.record import SCHEMA

    if form == "table":
        draw(_report_lines(run))
    elif form == "md":
        render.data(formats.markdown(run))
    elif form == "json":
        render.emit_json(SCHEMA, without_schema(formats.run_json(run)))
    elif form == "jsonl":
        render.emit_ndjson(formats.ROW_SCHEMA, formats.flat_rows(run))
    else:
        render.data(formats.csv_text(run).rstrip("\n"))


def _report_lines(run: BenchRun) -> list[Line]:
    """The table, and on a terminal the bars under it."""
    from runner.bench.run_table import run_lines
    from runner.bench.text_plot import bar_lines, can_show

    width = width_of(sys.stdout)
    lines = run_lines(run, width)
    if width is not None:
        bars = bar_lines(run.rows, width, is_ascii=not can_show(sys.stdout.encoding))
        lines += [(), *bars] if bars else []
    return lines


def keep_run(run: BenchRun, paths: Paths) -> bool:
    """Add the run to the history; whether it is there. If it cannot be, that is a warning: it is shown all the same."""
    from runner.bench.store import append_run

    try:
        append_run(paths.bench_history, run)
    except RunnerError as error:
        render.warn(error.message, error.hint)
        return False
    render.narrate(f"Kept as {run.id}: `runner bench compare` sets it beside an earlier one.")
    return True


def write_plot(run: BenchRun, plot: Path, *, kept_as: str = "") -> None:
    """Draw the run into an .svg file, replacing it. kept_as: what names it later, "" for nothing.

    Raises RunnerError when the file cannot be written.
    """
    from runner.bench.svg_plot import svg_of
    from runner.new_file import write_new

    _check_plot(plot)
    try:
        write_new(plot, svg_of(run), overwrite=True, is_private=False)
    except RunnerError as error:
        error.hint = f"`runner bench show {kept_as} --plot FILE` draws it into another file." if kept_as else error.hint
        raise
    render.narrate(f"Drawn into {plot}.")


def _check_plot(plot: Path) -> None:
    if plot.suffix.lower() != ".svg":
        raise UsageError(f"--plot is {str(plot)!r}, and plots are SVG.", hint="Name a file that ends in .svg.")
    if plot.is_dir():
        raise UsageError(f"{plot} is a directory, and a plot is a file.", hint="Name another file.")
    if not plot.parent.is_dir():
        raise UsageError(f"There is no directory {plot.parent} for the plot.", hint="Make it first.")


def compare_with_baseline(run: BenchRun, before: BenchRun | None, fail_below: str | None, paths: Paths) -> bool:
    """Say on stderr how a new run differs from an earlier one; whether a row is slower than `fail_below` allows.

    before: None for the last whole run of the same files with the same options on the same device. Where there is none,
    that is said, and nothing is slower: the first run of a series has nothing to fall behind.
    """
    from runner.bench.comparison import compare_runs
    from runner.bench.comparison_table import comparison_lines
    from runner.bench.store import last_like

    before = before or last_like(read_kept(paths).runs, run)
    if before is None:
        render.say("There is no baseline: no earlier run measured the same files with these options on this device.")
        return False
    comparison = compare_runs(before, run)
    draw([(), *comparison_lines(comparison, width_of(sys.stderr))], sys.stderr)
    return fails(comparison, fail_below)


def fails(comparison: RunComparison, fail_below: str | None) -> bool:
    """Say which rows have fallen too far behind, if any."""
    if fail_below is None:
        return False
    share = allowed_share(fail_below)
    allowed = f"{100 * share:g} %"
    lost = [row for row in comparison.rows if row.before is not None and row.before.samples and row.speed is None]
    slower = [row for row in comparison.rows if row.is_slower_by(share)]
    for row in slower:
        assert row.speed is not None
        render.say(
            f"FAILED: {row.backend} {row.test} is {100 * (1 - row.speed.value):.1f} % slower; {allowed} is allowed."
        )
    for row in lost:
        render.say(f"FAILED: {row.backend} {row.test}: {row.missing}.")
    if any(row.after is None for row in lost):
        render.say("Sizes that are asked for (-p 512 -n 128) are never made smaller where a machine is slow.")
    untold = [f"{row.backend} {row.test}" for row in comparison.rows if row.verdict == "unknown"]
    if untold:
        render.say(f"NOT TOLD: {', '.join(untold)}: one repetition, in either run, tells nothing of noise (-r 5).")
    if not (slower or lost):
        render.say(f"No {'other ' if untold else ''}row is slower by more than {allowed} beyond noise.")
    return bool(slower or lost)


def allowed_share(text: str) -> float:
    """The value of --fail-below: "5%" and "5" are 0.05. Raises UsageError."""
    match = re.fullmatch(r"\s*(\d{1,2}(?:\.\d+)?)\s*%?\s*", text)
    if match is None:
        raise UsageError(f"--fail-below is {text!r}.", hint="It must be percent from 0 to 99, such as 5%.")
    return float(match[1]) / 100


# --- files and streams -----------------------------------------------------------------------------------------------


def read_kept(paths: Paths) -> History:
    """Every run that can be read; what cannot is said."""
    from runner.bench.store import read_history

    found = read_history(paths.bench_history)
    if found.n_damaged:
        lines = "1 damaged line is" if found.n_damaged == 1 else f"{found.n_damaged} damaged lines are"
        render.warn(f"{lines} passed over in {paths.bench_history}.")
    if found.n_newer:
        runs = "1 run is" if found.n_newer == 1 else f"{found.n_newer} runs are"
        render.warn(f"{runs} of a newer version of runner, and passed over.", hint="Update runner to see them.")
    return found


def run_meant(kept: History, ref: str) -> BenchRun:
    """A run of the history, or of a file. Raises UsageError, and RunnerError."""
    from runner.bench.store import find_run, read_run

    path = expanded(Path(ref))
    is_file = path.suffix.lower() == ".json" or path.is_file()
    return read_run(path) if is_file else find_run(kept, ref)


def without_schema(plain: dict[str, Any]) -> dict[str, Any]:
    """For render.py, which puts it first."""
    return {name: value for name, value in plain.items() if name != "schema"}


def width_of(stream: TextIO) -> int | None:
    """Columns of a terminal, without the last one; None for a pipe, which has room for everything."""
    return render.terminal_size().columns - 1 if render.is_terminal(stream) else None


def draw(lines: Sequence[Line], stream: TextIO | None = None) -> None:
    """Lines in their colours on `stream`, stdout when not given."""
    render.painted([[(segment.text, _COLOURS[segment.style]) for segment in line] for line in lines], stream)
