"""What earlier loads were estimated to take and really took, and how the next estimate is corrected by that.

One file of JSON lines in the state directory, kept short. The correction is a pure function of the records; it knows
nothing of models or devices beyond the names that it compares.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runner.paths import open_private
from runner.types import MemoryUse
from runner.wire import from_plain, to_plain

log = logging.getLogger(__name__)

MAX_RECORDS: Final = 200
MAX_FILE_BYTES: Final = 2**20
LAST: Final = 5  # records that a correction is the median of
LIMITS: Final = (0.5, 2.0)  # a ratio beyond them says that something else was measured
_PARTS: Final = ("weights_bytes", "kv_cache_bytes", "workspace_bytes")


@dataclass(frozen=True, kw_only=True)
class FitKey:
    """What loads are alike in. quantization counts for weights alone: backends may hold one format in another.

    version: runner's, since another one may estimate otherwise: what its estimates lacked is no news of this one's, and
    a model that they make seem too large is never loaded to show it.
    """

    backend: str
    device: str
    architecture: str
    quantization: str
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class FitRecord:
    """One load. estimated: before any correction. A part of 0 bytes was not estimated or not measured."""

    key: FitKey
    estimated: MemoryUse
    actual: MemoryUse


@dataclass(frozen=True, kw_only=True)
class Correction:
    """Factors for the parts of an estimate, from `n_loads` earlier loads."""

    weights_bytes: float = 1.0
    kv_cache_bytes: float = 1.0
    workspace_bytes: float = 1.0
    n_loads: int = 0

    def apply(self, estimated: MemoryUse) -> MemoryUse:
        return MemoryUse(
            weights_bytes=round(estimated.weights_bytes * self.weights_bytes),
            kv_cache_bytes=round(estimated.kv_cache_bytes * self.kv_cache_bytes),
            workspace_bytes=round(estimated.workspace_bytes * self.workspace_bytes),
        )


NO_CORRECTION: Final = Correction()


def correction(records: Sequence[FitRecord], key: FitKey) -> Correction:
    """The factors for loads like `key`: the median of actual / estimated over the last few, within LIMITS."""
    like = [record for record in records if _is_like(record.key, key)]
    factors = {part: _factor(_of_part(like, part, key), part) for part in _PARTS}
    return Correction(**factors, n_loads=min(LAST, len(like)))


def _is_like(a: FitKey, b: FitKey) -> bool:
    return (a.backend, a.device, a.architecture, a.version) == (b.backend, b.device, b.architecture, b.version)


def _of_part(records: Sequence[FitRecord], part: str, key: FitKey) -> list[FitRecord]:
    return [
        record
        for record in records
        if (part != "weights_bytes" or record.key.quantization == key.quantization)
        and getattr(record.estimated, part) > 0
        and getattr(record.actual, part) > 0
    ]


def _factor(records: Sequence[FitRecord], part: str) -> float:
    ratios = [getattr(record.actual, part) / getattr(record.estimated, part) for record in records[-LAST:]]
    return min(max(statistics.median(ratios), LIMITS[0]), LIMITS[1]) if ratios else 1.0


def read_history(path: Path) -> tuple[FitRecord, ...]:
    """The records in `path`, oldest first. Lines that are damaged or of another version are passed over."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return ()
        lines = path.read_bytes().decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    records = []
    for line in lines:
        with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            record = from_plain(FitRecord, json.loads(line))
            if _is_sound(record):
                records.append(record)
    return tuple(records[-MAX_RECORDS:])


def _is_sound(record: FitRecord) -> bool:
    key, sizes = record.key, [getattr(use, part) for use in (record.estimated, record.actual) for part in _PARTS]
    names = (key.backend, key.device, key.architecture, key.quantization, key.version)
    return all(type(size) is int and 0 <= size < 2**63 for size in sizes) and all(type(name) is str for name in names)


def record_load(path: Path, record: FitRecord) -> None:
    """Add a record, in place of the oldest when there are many. Where no file can be written, nothing is kept.

    The file is replaced as a whole, so that a reader never sees half of it; of two programs that add at the same
    moment one record may be lost.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    kept = (*read_history(path), record)[-MAX_RECORDS:]
    try:
        with os.fdopen(open_private(partial), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(to_plain(one)) + "\n" for one in kept)
        partial.replace(path)
    except OSError as error:
        log.warning("what the load took is not kept: %s", error)
        with suppress(OSError):
            partial.unlink(missing_ok=True)
