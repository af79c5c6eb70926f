"""`runner bench history`, `show`, `compare` and `export`: what can be done with earlier runs.

It reads the options and prints; what a report says is made in runner.bench. It knows nothing of measuring.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from runner.cli import completing, render
from runner.cli.bench_reports import (
    FORMATS,
    allowed_share,
    check_options,
    draw,
    fails,
    form_of,
    read_kept,
    run_meant,
    show_run,
    width_of,
    without_schema,
    write_plot,
)
from runner.errors import RunnerError, UsageError
from runner.paths import user_paths
from runner.safe_text import safe_line

if TYPE_CHECKING:
    from runner.bench.record import BenchRun
    from runner.bench.store import History

_LATEST: Final = 20  # runs that `history` shows unless told otherwise
_BOARDS: Final = ("localmaxxing",)

FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="|".join(FORMATS),
        help="How it is written to stdout. [default: table]",
        autocompletion=lambda: list(FORMATS),
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
FailBelow = Annotated[
    str | None, typer.Option("--fail-below", metavar="P%", help="Exit 1 when a row is slower by more than that.")
]


def history(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Only runs of that model.", autocompletion=completing.models)
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="The last N runs; of a table 20 when left out.")
    ] = None,
    form: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """List earlier runs, the last one last, and how their figures went on."""
    form = form_of(form, as_json=as_json)
    runs = [run for run in read_kept(user_paths()).runs if model is None or _is_of(run, model)]
    shown = runs[-(limit or (_LATEST if form in ("table", "md") else len(runs) or 1)) :]
    if not shown and form in ("table", "md"):
        whose = f" of {model}" if model else ""
        render.narrate(f"No benchmark{whose} is kept yet: `runner bench MODEL` makes one.")
        return
    _show_history(shown, form)
    if len(shown) < len(runs) and form == "table":
        which = "This is the last" if len(shown) == 1 else f"These are the last {len(shown)}"
        render.narrate(f"{which} of {len(runs)} runs (--limit).")


def _is_of(run: BenchRun, model: str) -> bool:
    """Whether it is meant by a name as the run has it, or by a path, which a run has of its files alone."""
    name = run.model.lower()
    if name == model.lower() or name.startswith(f"{model.lower()}:"):
        return True
    meant = {Path(model).absolute(), Path(os.path.realpath(model))}
    paths = (Path(file.path) for file in run.files)
    return any(path in meant or path.parent in meant for path in paths)


def _show_history(runs: Sequence[BenchRun], form: str) -> None:
    from runner.bench import formats, history_table
    from runner.bench.record import SCHEMA, run_to_json
    from runner.bench.text_plot import can_show

    if form == "table":
        is_ascii = not can_show(sys.stdout.encoding)
        draw(history_table.history_lines(runs, width_of(sys.stdout), is_ascii=is_ascii))
        if any(row.test.startswith(("pp", "tg")) for run in runs for row in run.rows):
            render.narrate("Before each speed of prefill and decode, in tok/s, is the number of tokens.")
    elif form == "md":
        render.data(history_table.history_markdown(runs))
    elif form == "json":
        render.emit_json("runner.bench.history/1", {"runs": [run_to_json(run) for run in runs]})
    elif form == "jsonl":
        render.emit_ndjson(SCHEMA, [without_schema(run_to_json(run)) for run in runs])
    else:
        render.data(formats.csv_text(*runs).rstrip("\n"))


_REF: Final = "An id or its beginning, last, last~1, or a file of --format json."
Ref = Annotated[str, typer.Argument(metavar="RUN", help=_REF)]


def show(
    run_id: Ref = "last",
    form: FormatOption = None,
    as_json: JsonOption = False,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw the rows into FILE (.svg).")] = None,
) -> None:
    """Show an earlier run as it was shown when it was made."""
    form = form_of(form, as_json=as_json)
    check_options(None, None, plot)
    run = run_meant(read_kept(user_paths()), run_id)
    show_run(run, form)
    if plot is not None:
        write_plot(run, plot, kept_as=run_id)


def compare(
    before: Annotated[str | None, typer.Argument(metavar="BEFORE", help=_REF)] = None,
    after: Annotated[str, typer.Argument(metavar="AFTER", help=_REF)] = "last",
    fail_below: FailBelow = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="table|md|json",
            help="How it is written to stdout. [default: table]",
            autocompletion=lambda: ["table", "md", "json"],
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two runs, row by row: what is faster, what is slower, and what cannot be told from noise.

    Without arguments: the last run, with the last before it that measured the same with the same options on the same
    device, else with the last of the same model that has one of its rows.
    """
    from runner.bench.comparison import compare_runs
    from runner.bench.comparison_table import comparison_json, comparison_lines, comparison_markdown

    form = form_of(form, as_json=as_json, known=("table", "md", "json"))
    if fail_below is not None:
        allowed_share(fail_below)
    kept = read_kept(user_paths())
    new = run_meant(kept, after)
    old = run_meant(kept, before) if before is not None else _comparable(kept, new)
    comparison = compare_runs(old, new)
    if form == "table":
        draw(comparison_lines(comparison, width_of(sys.stdout)))
    elif form == "md":
        render.data(comparison_markdown(comparison))
    else:
        render.emit_json("runner.bench.compare/1", comparison_json(comparison))
    if fails(comparison, fail_below):
        raise typer.Exit(1)


def _comparable(kept: History, run: BenchRun) -> BenchRun:
    """What the last run is compared with when nothing is named: what --baseline last and the interface hold it
    against, where there is that. Raises UsageError where there is nothing."""
    from runner.bench.store import last_comparable

    earlier = kept.runs[:-1]
    found = last_comparable(earlier, run)
    if found is None:
        has_numbers = any(row.samples for row in run.rows)
        why = "no earlier one has a row of it" if has_numbers else "it has no numbers"
        raise UsageError(
            f"The last run ({run.id}, {safe_line(run.model)}) cannot be compared: {why}.",
            hint="Name two runs, BEFORE and AFTER: `runner bench history` lists them.",
        )
    if found is not earlier[-1]:
        render.narrate(f"Compared with {found.id}: no run since is more like it.")
    return found


def export(
    run_id: Ref = "last",
    board: Annotated[
        str,
        typer.Option(
            "--for", metavar="|".join(_BOARDS), help="The board it is for.", autocompletion=lambda: list(_BOARDS)
        ),
    ] = _BOARDS[0],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to FILE; stdout when left out, or -.")
    ] = None,
    hf_id: Annotated[
        str | None, typer.Option("--hf-id", metavar="OWNER/NAME", help="The model's repository on Hugging Face.")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend",
            metavar="native|llamacpp",
            help="[default: the one that decodes fastest]",
            autocompletion=lambda: ["native", "llamacpp"],
        ),
    ] = None,
    depth: Annotated[int, typer.Option("-d", "--depth", min=0, metavar="N", help="The rows at that depth.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
) -> None:
    """Write a run as a submission to a public board. Nothing is uploaded.

    No name of a user or a computer is in it, and no path.
    """
    from runner.bench.localmaxxing import localmaxxing_payload
    from runner.new_file import write_new

    if board not in _BOARDS:
        raise UsageError(f"--for is {board!r}.", hint=f"It must be {', '.join(_BOARDS)}.")
    run = run_meant(read_kept(user_paths()), run_id)
    payload = localmaxxing_payload(run, hf_id=hf_id or _repository(run), backend=backend, depth=depth)
    text = json.dumps(payload, indent=2, ensure_ascii=True)
    if output is None or str(output) == "-":
        render.data(text)
        return
    write_new(output, text + "\n", overwrite=force, is_private=False, remedy="--force replaces it.")
    render.narrate(f"Wrote {safe_line(str(output))}; nothing was uploaded.")


def _repository(run: BenchRun) -> str:
    """Where the model's weights come from. Raises UsageError."""
    from runner.registry import Registry

    try:
        spec = Registry.load_for().resolve(run.model)
    except RunnerError:
        spec = None
    found = (spec.repo or spec.gguf) if spec is not None else ""
    if not found:
        raise UsageError(f"The repository of {safe_line(run.model)} is not known.", hint="Name it: --hf-id owner/name.")
    return found
