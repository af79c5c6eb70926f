"""What speculation did to a row of a benchmark: rates without it, the counts of its rounds, and what follows of them.

Names are those of specdec_bench where the thing is the same. It knows neither how anything is measured nor how it is
shown.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from runner.speculative.record import SpeculationRecord

_FIGURES: Final = (
    "gain",
    "gain_stddev",
    "plain_mean",
    "plain_stddev",
    "acceptance_rate",
    "acceptance_length",
    "acceptance_length_histogram",
    "conditional_acceptance_rate",
)


@dataclass(frozen=True, kw_only=True)
class Speculated:
    """plain: tok/s without speculation, one for each sample of the row, taken beside it. record: counts of them all."""

    plain: tuple[float, ...]
    record: SpeculationRecord

    def __post_init__(self) -> None:
        if not all(math.isfinite(rate) and rate > 0 for rate in self.plain):
            raise ValueError("rates without speculation are no measurements")
        if len(self.record.accepted_at) != len(self.record.reached_at):
            raise ValueError("what was accepted is of other positions than what was reached")

    def gains(self, samples: Sequence[float]) -> tuple[float, ...]:
        return tuple(sample / plain for sample, plain in zip(samples, self.plain, strict=True))

    def gain(self, samples: Sequence[float]) -> float | None:
        """The median of `gains`: one repetition that another program disturbed does not make it."""
        gains = self.gains(samples)
        return statistics.median(gains) if gains else None

    def figures(self, samples: Sequence[float]) -> dict[str, Any]:
        """What follows, for those who read JSON; None where there is nothing to say it of."""
        gains, record = self.gains(samples), self.record
        values = (
            self.gain(samples),
            stddev(gains),
            statistics.fmean(self.plain) if self.plain else None,
            stddev(self.plain),
            record.acceptance_rate,
            record.acceptance_length,
            histogram(record),
            list(record.conditional_acceptance),
        )
        return dict(zip(_FIGURES, values, strict=True))


def without_figures(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A `Speculated` as JSON, without what follows from it."""
    return {key: value for key, value in plain.items() if key not in _FIGURES}


def histogram(record: SpeculationRecord) -> dict[str, int]:
    """Rounds by their acceptance length: the tokens that they emitted, the target's own one included."""
    return {str(n_accepted + 1): count for n_accepted, count in enumerate(record.lengths) if count}


def stddev(values: Sequence[float]) -> float | None:
    """Of the sample (n - 1); None for fewer than two."""
    return statistics.stdev(values) if len(values) > 1 else None


def variation(values: Sequence[float]) -> float | None:
    """The coefficient of variation: the standard deviation over the mean."""
    spread = stddev(values)
    return None if spread is None else spread / statistics.fmean(values)


def together(records: Sequence[SpeculationRecord]) -> SpeculationRecord:
    """The counts of several answers of one drafter, which is now as the last one says."""
    last = records[-1]

    def added(name: str) -> tuple[int, ...]:
        return tuple(map(sum, zip_longest(*(getattr(one, name) for one in records), fillvalue=0)))

    def seconds(name: str) -> float:
        return math.fsum(getattr(one, name) for one in records)

    return SpeculationRecord(
        drafter=last.drafter,
        state=last.state,
        reason=last.reason,
        draft_length=last.draft_length,
        rounds=sum(one.rounds for one in records),
        drafted_at=added("drafted_at"),
        reached_at=added("reached_at"),
        accepted_at=added("accepted_at"),
        lengths=added("lengths"),
        draft_s=seconds("draft_s"),
        verify_s=seconds("verify_s"),
        sample_s=seconds("sample_s"),
        plain_s=seconds("plain_s"),
        spent_s=seconds("spent_s"),
        drafter_bytes=max(one.drafter_bytes for one in records),
        file_tokens=last.file_tokens,
    )
