"""python -m runner.kernels.compile [--target NAME] [--only NAME] [--fewer] [--json FILE] [--ttgir DIR]
    [--markdown [FILE]]

Compiles the kernels for every target without a GPU, a line for each, and exits with 1 if one fails, spills much though
it is for decoding, or takes more shared memory than there is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

from runner.errors import RunnerError, UsageError
from runner.kernels.compile import report
from runner.kernels.compile.compilation import Compiled
from runner.kernels.compile.jobs import compile_jobs, fewer, jobs
from runner.kernels.compile.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m runner.kernels.compile", description=__doc__.split("\n\n", 1)[1])
    parser.add_argument(
        "--target", action="append", choices=list(TARGETS), help="compile for this one; may be repeated"
    )
    parser.add_argument("--only", metavar="NAME", help="a kernel file (gemv_packed) or a variant, in full")
    parser.add_argument(
        "--fewer", action="store_true", help="each variant for one target, one of each kernel for three"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there")
    parser.add_argument(
        "--ttgir", type=Path, metavar="DIR", help="write Triton's intermediate language there, with its layouts"
    )
    parser.add_argument(
        "--markdown", nargs="?", const="-", metavar="FILE", help="print a table, or write it into a page that has one"
    )
    parser.add_argument("--jobs", type=int, default=_cores(), metavar="N", help="processes (one for each core)")
    options = parser.parse_args()
    try:
        return run(options)
    except RunnerError as error:
        print(f"error: {error.message}", f"hint: {error.hint}" if error.hint else "", sep="\n", file=sys.stderr)
        return error.exit_code


def run(options: argparse.Namespace) -> int:
    # Before Triton is imported, here or in the processes: kernels for the interpreter cannot be compiled.
    os.environ.pop("TRITON_INTERPRET", None)
    narration = sys.stderr if options.markdown == "-" else sys.stdout
    outcomes = []
    page = None if options.markdown in (None, "-") else read_page(Path(options.markdown))
    wanted = jobs(options.target or list(TARGETS), options.only)
    if options.fewer:
        wanted = fewer(wanted)
    for outcome in compile_jobs(wanted, options.jobs):
        print(report.line(outcome), file=narration, flush=True)
        outcomes.append(outcome)
        if options.ttgir is not None and isinstance(outcome.result, Compiled):
            options.ttgir.mkdir(parents=True, exist_ok=True)
            (options.ttgir / f"{outcome.job.variant} for {outcome.job.target}").write_text(outcome.result.ttgir)
    outcomes.sort(key=lambda outcome: wanted.index(outcome.job))
    if options.json is not None:
        options.json.write_text(json.dumps(report.values(outcomes), indent=1) + "\n")
    table = report.markdown(outcomes, version("triton"))
    if page is not None:
        Path(options.markdown).write_text(report.with_table(page, table))
    elif options.markdown is not None:
        print(table)
    complaints = [outcome.complaint for outcome in outcomes if outcome.complaint]
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


def read_page(path: Path) -> str:
    """A page that a table can be written into, before minutes of compiling. Raises UsageError when it is none."""
    try:
        page = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no page to read: {error}.", hint="One is docs/KERNELS.md.") from error
    report.with_table(page, "")
    return page


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    sys.exit(main())
