"""The figures of speculation in words and cells: gain, acceptance, where the time went, what drafts and why.

Pure: a row comes in, text goes out. It knows no layout.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from runner.bench.figures import figure, percent
from runner.bench.record import BenchRow
from runner.bench.speculated import Speculated, histogram, stddev
from runner.speculative.record import SpeculationRecord

_NOTHING: Final = "-"


def gain_cell(row: BenchRow) -> str:
    """ "2.31 ± 0.04x", the median as measured; "" for a row without speculation."""
    gain, spread = row.gain, stddev(row.gains)
    if gain is None:
        return ""
    return f"{gain:.2f}x" if spread is None else f"{gain:.2f} ± {spread:.2f}x"


def plain_cell(row: BenchRow) -> str:
    """The rate without speculation: "142.6 ± 1.4"."""
    plain = row.speculation.plain if row.speculation else ()
    return mean_with_spread(plain)


def mean_with_spread(values: Sequence[float]) -> str:
    """ "142.6 ± 1.4", the mean alone for one value, "" for none."""
    if not values:
        return ""
    mean, spread = statistics.fmean(values), stddev(values)
    return figure(mean) if spread is None else f"{figure(mean)} ± {figure(spread, mean)}"


def acceptance_cell(row: BenchRow) -> str:
    """The share of the drafted tokens that stood; a dash where none was drafted."""
    if row.speculation is None:
        return ""
    return percent(row.speculation.record.acceptance_rate) or _NOTHING


def length_cell(row: BenchRow) -> str:
    """AL: tokens that a round with a draft emitted on average; a dash where there was no such round."""
    if row.speculation is None:
        return ""
    found = row.speculation.record.acceptance_length
    return _NOTHING if found is None else f"{found:.2f}"


def drafter_cell(row: BenchRow) -> str:
    """What drafts and whether: "suffix on"."""
    if row.speculation is None:
        return ""
    record = row.speculation.record
    return f"{record.drafter} {record.state}"


def remarks_of(row: BenchRow) -> list[str]:
    """Sentences on a row for people: how long drafts stood, where, what they took, and why they rest, if they do."""
    if row.speculation is None:
        return []
    record = row.speculation.record
    if not record.rounds:
        return [f"nothing was drafted; {_why(record)}"]
    positions = " ".join(f"{100 * share:.0f}" for share in record.conditional_acceptance)
    lengths = ", ".join(f"{length}: {count}" for length, count in histogram(record).items())
    return [
        f"rounds by acceptance length {lengths}",
        f"accepted by position, of those reached, in percent: {positions}",
        f"{_time_split(row.speculation)}; {_why(record)}",
    ]


def _time_split(found: Speculated) -> str:
    record = found.record
    total = record.draft_s + record.verify_s + record.sample_s
    if total <= 0:
        return "time of rounds with a draft: not known"
    parts = (("draft", record.draft_s), ("verify", record.verify_s), ("sample", record.sample_s))
    return "time of rounds with a draft: " + ", ".join(f"{name} {percent(value / total)}" for name, value in parts)


def _why(record: SpeculationRecord) -> str:
    reason = f": {record.reason.rstrip('.')}" if record.reason else ""
    return f"{record.drafter} was {record.state} at the end{reason}"
