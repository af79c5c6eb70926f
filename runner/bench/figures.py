"""The figures of a benchmark as people read them: values with their spread, shares, rates of memory.

Pure functions. Four digits are shown: more would be noise. It knows no layout.
"""

from __future__ import annotations

from datetime import datetime

from runner.bench.record import BenchBackend, BenchRow, BenchRun
from runner.config import KvType
from runner.fit import kv_type_of
from runner.measures import duration

INVALID = "INVALID"


def figure(value: float, like: float | None = None) -> str:
    """`value` with four digits, or with as many decimals as `like` is shown with: 1234, 142.6, 84.21, 3.142."""
    return f"{value:.{_decimals(value if like is None else like)}f}"


def _decimals(value: float) -> int:
    size = abs(value)
    return 0 if size >= 999.95 else 1 if size >= 99.995 else 2 if size >= 9.9995 else 3


def local_start(run: BenchRun) -> str:
    """When it was started by the clock here: 2026-01-31 13:00. What a file has there that is no time stays as it is."""
    try:
        return f"{datetime.fromisoformat(run.started_at).astimezone():%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return run.started_at[:16].replace("T", " ")


def mean_and_spread(row: BenchRow) -> str:
    """ "142.6 ± 1.4"; without a spread when there is one sample; INVALID when the numbers cannot be believed."""
    if row.invalid is not None:
        return INVALID
    if row.mean is None:
        return ""
    return figure(row.mean) if row.stddev is None else f"{figure(row.mean)} ± {figure(row.stddev, row.mean)}"


def with_unit(row: BenchRow) -> str:
    """ "142.6 ± 1.4 tok/s"."""
    shown = mean_and_spread(row)
    return f"{shown} {row.unit}" if row.mean is not None else shown


def label(row: BenchRow) -> str:
    """The one word that a reader must not miss, or nothing."""
    return INVALID if row.invalid is not None else doubt(row)


def doubt(row: BenchRow) -> str:
    """Why a row is not to be trusted to the last digit, or nothing: "noisy", or "few" samples."""
    return "noisy" if row.is_noisy else "few" if row.is_few else ""


def kv_type(run: BenchRun, backend: BenchBackend) -> KvType:
    """The type of the KV cache that the backend had, which may be another one than was asked for."""
    on_gpu = run.machine.kind in ("cuda", "rocm") and run.options.n_gpu_layers != 0
    return kv_type_of(run.options.kv_type, backend.name, on_gpu=on_gpu)


def kv_types(run: BenchRun) -> str:
    """The type that was asked for, and those of backends that had another one: "f16 (native: f32)"."""
    asked = run.options.kv_type
    found = {one.name: kv_type(run, one) for one in run.backends if one.refused is None}
    others = ", ".join(f"{name}: {held}" for name, held in found.items() if held != asked)
    return f"{asked} ({others})" if others else asked


def percent(share: float | None, decimals: int = 0) -> str:
    return "" if share is None else f"{100 * share:.{decimals}f} %"


def seconds(value: float | None) -> str:
    return "" if value is None else duration(value)
