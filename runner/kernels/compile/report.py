"""Shows what came of compiling: a line each, a table for the documentation, values for programs.

It prints nothing and compiles nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from runner.errors import UsageError
from runner.kernels.compile.jobs import Outcome
from runner.kernels.compile.spread import Failure
from runner.kernels.compile.targets import TARGETS

BEGIN = "<!-- python -m runner.kernels.compile --markdown docs/KERNELS.md -->"
END = "<!-- end of the table -->"


def line(outcome: Outcome) -> str:
    """One outcome on one line, with an ! in front of what must not be."""
    job, result = outcome.job, outcome.result
    start = f"{'!' if outcome.complaint else ' '} {job.variant:<44} {job.target:<8}"
    if isinstance(result, Failure):
        return f"{start} {result.reason.splitlines()[0]}"
    return (
        f"{start} {result.registers:>4} registers {result.spilled_bytes:>6} B spilled {result.shared_bytes:>7} B shared"
        f" {result.size:>8} B code {result.seconds:>6.1f} s"
    )


def values(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The outcomes as JSON has them: the job's and the result's numbers, "failure" in place of the latter."""
    rows = []
    for outcome in outcomes:
        result = outcome.result
        numbers = {"failure": result.reason} if isinstance(result, Failure) else asdict(result)
        numbers.pop("ttgir", None)
        rows.append({**asdict(outcome.job), **numbers})
    return {"schema": "runner.kernels/1", "compiled": rows}


def markdown(outcomes: Sequence[Outcome], triton_version: str) -> str:
    """A table of variants by targets: registers and shared memory, and what spills."""
    targets = [name for name in TARGETS if any(outcome.job.target == name for outcome in outcomes)]
    cells = {(outcome.job.variant, outcome.job.target): _cell(outcome) for outcome in outcomes}
    variants = dict.fromkeys(outcome.job.variant for outcome in outcomes)
    rows = [["variant", *targets], ["---"] * (1 + len(targets))]
    rows += [[variant, *(cells.get((variant, target), "") for target in targets)] for variant in variants]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return (
        f"Triton {triton_version}. Registers of a thread / KiB of shared memory of a program, rounded up; in brackets\n"
        f"the bytes of registers that a thread spills.\n\n{table}\n"
    )


def _cell(outcome: Outcome) -> str:
    result = outcome.result
    if isinstance(result, Failure):
        return "fails"
    spilled = f" ({result.spilled_bytes})" if result.spilled_bytes else ""
    return f"{result.registers} / {-(-result.shared_bytes // 1024)}{spilled}"


def with_table(page: str, table: str) -> str:
    """The page with what stands between the two marks replaced. Raises UsageError when it has not both, in order."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UsageError("The page has no place for the table.", hint=f"Write these lines into it:\n{BEGIN}\n{END}")
    return f"{before}{BEGIN}\n\n{table}\n{END}{after}"
