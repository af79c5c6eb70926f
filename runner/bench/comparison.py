"""Two runs beside each other: what differs between them, and for each row whether it is faster, slower, or neither.

Pure functions of two runs. A row is called faster or slower only where noise.py's interval leaves out 1. It knows no
history and no layout.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from runner.bench.noise import Ratio, Samples, ratio_of
from runner.bench.record import BenchRow, BenchRun, Unit
from runner.measures import binary_size
from runner.types import BackendName

# same: no difference that can be told from noise. unknown: too few samples to tell. none: one side has no numbers.
Verdict = Literal["faster", "slower", "same", "unknown", "none"]


@dataclass(frozen=True, kw_only=True)
class RowComparison:
    """One test of one backend in both runs; None where a run does not have it.

    speed: how many times faster `after` is, for every unit: above 1 is better. missing: why there is no ratio.
    is_one_process: a side's samples are of one process, which cannot show how much processes differ.
    """

    backend: BackendName
    test: str
    unit: Unit
    before: BenchRow | None
    after: BenchRow | None
    speed: Ratio | None
    verdict: Verdict
    missing: str = ""
    is_one_process: bool = False

    def is_slower_by(self, share: float) -> bool:
        """Whether the mean is lower by more than that share, and the difference is beyond noise."""
        return self.verdict == "slower" and self.speed is not None and self.speed.value < 1 - share


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Something that is not the same in both runs, in words."""

    what: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    before: BenchRun
    after: BenchRun
    rows: tuple[RowComparison, ...]
    differences: tuple[Difference, ...]


def compare_runs(before: BenchRun, after: BenchRun) -> RunComparison:
    """`after` against `before`, row by row; the rows of each test together."""
    olds = {(row.backend, row.test): row for row in before.rows}
    news = {(row.backend, row.test): row for row in after.rows}
    tests = list(dict.fromkeys(test for _, test in (*olds, *news)))
    keys = sorted(dict.fromkeys((*olds, *news)), key=lambda key: tests.index(key[1]))
    rows = tuple(_compare_rows(olds.get(key), news.get(key), after) for key in keys)
    return RunComparison(before=before, after=after, rows=rows, differences=tuple(_differences(before, after)))


def _compare_rows(before: BenchRow | None, after: BenchRow | None, run: BenchRun) -> RowComparison:
    row = after or before
    assert row is not None
    missing = _missing(before, after, run)
    if missing or before is None or after is None:
        verdict: Verdict = "none"
        speed = None
    else:
        speed = _speed(before, after)
        verdict = _verdict(speed)
    return RowComparison(
        backend=row.backend,
        test=row.test,
        unit=row.unit,
        before=before,
        after=after,
        speed=speed,
        verdict=verdict,
        missing=missing,
        is_one_process=speed is not None and any(_n_processes(one) == 1 for one in (before, after) if one),
    )


def _missing(before: BenchRow | None, after: BenchRow | None, run: BenchRun) -> str:
    if before is None:
        return "the earlier run does not have it"
    if after is None:
        refused = next((one.refused for one in run.backends if one.name == before.backend and one.refused), None)
        return f"the later run does not have it: {refused}" if refused else "the later run does not have it"
    if after.invalid is not None:
        return f"INVALID in the later run: {after.invalid}"
    if before.invalid is not None:
        return f"INVALID in the earlier run: {before.invalid}"
    if not (before.samples and after.samples):
        return "one of the runs has no samples of it"
    return "" if before.unit == after.unit else "its unit is another"


def _speed(before: BenchRow, after: BenchRow) -> Ratio:
    old = Samples(values=before.samples, segments=before.segments)
    new = Samples(values=after.samples, segments=after.segments)
    return ratio_of(new, old) if after.is_higher_better else ratio_of(old, new)


def _verdict(speed: Ratio) -> Verdict:
    if speed.low is None:
        return "unknown"
    if not speed.is_beyond_noise:
        return "same"
    return "faster" if speed.value > 1 else "slower"


def _n_processes(row: BenchRow) -> int:
    return sum(1 for size in row.segments if size)


# --- what differs ----------------------------------------------------------------------------------------------------


_OF_THE_MACHINE = ("device", "driver", "cpu", "physical_cores", "usable_cores", "os")


def _differences(before: BenchRun, after: BenchRun) -> Iterator[Difference]:
    pairs: list[tuple[str, Any, Any]] = [
        ("model", before.model, after.model),
        ("quantization", before.quantization, after.quantization),
        ("model files", _digests(before), _digests(after)),
        ("prompts", before.prompts_md5, after.prompts_md5),
        ("interrupted", before.is_partial, after.is_partial),
    ]
    pairs += [(name, getattr(before.machine, name), getattr(after.machine, name)) for name in _OF_THE_MACHINE]
    pairs += [
        ("memory", binary_size(before.machine.memory_bytes), binary_size(after.machine.memory_bytes)),
        ("main memory", binary_size(before.machine.ram_bytes), binary_size(after.machine.ram_bytes)),
    ]
    pairs += [(f"{name} version", *values) for name, values in _versions(before, after)]
    pairs += [
        (f"option {option.name}", getattr(before.options, option.name), getattr(after.options, option.name))
        for option in dataclasses.fields(before.options)
    ]
    for what, old, new in pairs:
        if old != new:
            yield Difference(what=what.replace("_", " "), before=_shown(old), after=_shown(new))


def _digests(run: BenchRun) -> tuple[str, ...]:
    return tuple(file.sha256[:12] or "unknown" for file in run.files)


def _versions(before: BenchRun, after: BenchRun) -> Iterator[tuple[str, tuple[str, str]]]:
    olds, news = before.machine.versions, after.machine.versions
    for name in dict.fromkeys((*olds, *news)):
        yield name, (olds.get(name, ""), news.get(name, ""))


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(str(item) for item in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None or value == "" else str(value)
