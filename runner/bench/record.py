"""What a run of `runner bench` is: frozen values, the statistics that follow from them, and their JSON.

It knows neither how anything is measured nor how it is shown. A row that is invalid has a reason and no numbers.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from runner.bench.speculated import Speculated, variation, without_figures
from runner.config import KvType, Speculation
from runner.types import BackendName, MemoryUse, WeightsFormat
from runner.wire import from_plain, to_plain

SCHEMA = "runner.bench/2"
_READABLE = ("runner.bench/1", SCHEMA)  # the first one knew no speculation
NOISY_CV = 0.05
LEAST_REPETITIONS: Final = 3
"""Samples from which on a row tells how much they vary."""
NOT_REACHED: Final = "it was not reached"
"""Why a backend of an interrupted run has no rows."""

Unit = Literal["tok/s", "ms"]
Genre = Literal["code", "prose", "instruct", "maths"]


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One test of one backend.

    test: "pp512", "tg128", "tg128 @ d4096", "ttft", "code128" or "code128 @ t0.7". samples: in the order in which they
    were taken, in `unit`; of a genre such as code they are those with speculation, and `speculation` has the rest.
    segments: how many of them each of the backend's processes gave, in the same order (ABBA gives two each).
    cold: what the first process's warm-up took, in `unit`; it is no sample.
    n_prompt, n_gen, n_depth: as llama-bench counts them. bytes_per_token: weights and KV cache that one decoded token
    reads, on average over the test; bandwidth_share: that times tok/s, of the bandwidth measured on this device.
    Both are None where there is no decoding, or no measurement to compare with.
    note: what is to be known of the row. invalid: why its numbers cannot be believed; it has none then.
    """

    model: str
    backend: BackendName
    test: str
    unit: Unit
    samples: tuple[float, ...] = ()
    segments: tuple[int, ...] = ()
    cold: float | None = None
    n_prompt: int = 0
    n_gen: int = 0
    n_depth: int = 0
    bytes_per_token: int | None = None
    bandwidth_share: float | None = None
    note: str = ""
    invalid: str | None = None
    speculation: Speculated | None = None

    def __post_init__(self) -> None:
        numbers = (self.cold, self.bandwidth_share, self.speculation)
        if self.invalid is not None and (self.samples or any(one is not None for one in numbers)):
            raise ValueError(f"{self.test} of {self.backend} is invalid and has numbers")
        if self.speculation is not None and len(self.speculation.plain) != len(self.samples):
            raise ValueError(f"{self.test} of {self.backend} has samples with nothing to compare them with")
        if not all(math.isfinite(value) and value > 0 for value in self.samples):
            raise ValueError(f"{self.test} of {self.backend} has samples that are no measurements")
        if sum(self.segments) != len(self.samples) or any(count < 0 for count in self.segments):
            raise ValueError(f"{self.test} of {self.backend} has samples that belong to no process")

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.samples) if self.samples else None

    @property
    def stddev(self) -> float | None:
        """Of the sample (n - 1); None for fewer than two."""
        return statistics.stdev(self.samples) if len(self.samples) > 1 else None

    @property
    def median(self) -> float | None:
        return statistics.median(self.samples) if self.samples else None

    @property
    def min(self) -> float | None:
        return min(self.samples, default=None)

    @property
    def max(self) -> float | None:
        return max(self.samples, default=None)

    @property
    def cv(self) -> float | None:
        """The coefficient of variation: stddev over mean."""
        return variation(self.samples)

    @property
    def noise(self) -> float:
        """The largest coefficient of variation of its samples and, with speculation, of what they are compared with."""
        plain = () if self.speculation is None else self.speculation.plain
        return max(variation(values) or 0.0 for values in (self.samples, plain, self.gains))

    @property
    def is_noisy(self) -> bool:
        return self.noise > NOISY_CV

    @property
    def is_few(self) -> bool:
        """Whether there are too few samples to tell what the next one would be."""
        return 0 < len(self.samples) < LEAST_REPETITIONS

    @property
    def is_higher_better(self) -> bool:
        return self.unit == "tok/s"

    @property
    def gain(self) -> float | None:
        """The median of `gains`, None without speculation."""
        return None if self.speculation is None else self.speculation.gain(self.samples)

    @property
    def gains(self) -> tuple[float, ...]:
        """How many times as fast as plain decoding each sample is, as measured beside it; () without speculation."""
        return () if self.speculation is None else self.speculation.gains(self.samples)


@dataclass(frozen=True, kw_only=True)
class BenchBackend:
    """One backend's part of a run. refused: why it did not run (it has no rows then), or None.

    version: of the package and the library, such as "0.3.34". memory: by part, at its peak. process_peak_bytes: the
    most main memory that its process held. load_s: until it was loaded, of its first process, and load_stages what that
    went into, in seconds; first_token_s: from the start of that process to the first text of the first answer.
    draft_max: tokens of its drafts at most, which may be fewer than were asked for; None where nothing drafted.
    note: what its user should know of how it ran.
    """

    name: BackendName
    version: str = ""
    device: str = ""
    refused: str | None = None
    quantization: str = ""
    memory: MemoryUse | None = None
    process_peak_bytes: int | None = None
    load_s: float | None = None
    load_stages: dict[str, float] = field(default_factory=dict)
    first_token_s: float | None = None
    draft_max: int | None = None
    note: str = ""
    rows: tuple[BenchRow, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OtherProcess:
    """Another process that holds memory of the GPU. bytes: None where the driver does not say."""

    pid: int
    name: str
    bytes: int | None


@dataclass(frozen=True, kw_only=True)
class MachineState:
    """What the machine was doing at one moment; None, or nothing, where nobody says.

    throttled: the driver's reasons for lower clocks, such as "power cap", "heat". load_average: over one minute.
    """

    clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttled: tuple[str, ...] = ()
    others: tuple[OtherProcess, ...] = ()
    load_average: float | None = None


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """How fast memory was read, in bytes a second; method: how that was measured."""

    bytes_s: float
    method: str


@dataclass(frozen=True, kw_only=True)
class BenchMachine:
    """Where a run was made. device: the GPU, or the processor where there is none. memory_bytes: the device's.

    before, after: the state around the measurements. versions: of "runner", "python", "torch", "triton",
    "llama-cpp-python", and "commit" where runner is a checkout; what is not installed is missing.
    """

    device: str
    kind: Literal["cpu", "cuda", "rocm", "metal"]
    memory_bytes: int
    driver: str
    cpu: str
    physical_cores: int
    usable_cores: int
    ram_bytes: int
    os: str
    before: MachineState
    after: MachineState
    bandwidth: Bandwidth | None
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What a run was asked to measure, every default filled in. Two runs with equal options measured the same.

    n_prompt, n_gen: sizes of the prefill and decode tests; depths: tokens in the KV cache before decoding, and
    prefill_depths before a prefill. backends: those asked for, "auto" being every one that can run.
    budget_s: seconds that were there for measuring, after which nothing is repeated; None where the number of
    repetitions was asked for. is_random: the model's weights are, so that its text was not judged.
    genres, temperatures: with speculation on and off; () where prefill and decode were measured, which know none.
    speculation, draft, draft_max, draft_file: what drafted, as asked for.
    """

    n_prompt: tuple[int, ...]
    n_gen: tuple[int, ...]
    depths: tuple[int, ...]
    prefill_depths: tuple[int, ...]
    repetitions: int
    backends: tuple[str, ...]
    kv_type: KvType
    ctx_size: int | None = None
    n_gpu_layers: int | str = "auto"
    n_threads: int | None = None
    batch_size: int | None = None
    budget_s: float | None = None
    is_random: bool = False
    genres: tuple[Genre, ...] = ()
    temperatures: tuple[float, ...] = ()
    speculation: Speculation = "off"
    draft: str | None = None
    draft_max: int | None = None
    draft_file: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """A file of the model. sha256: of its content, "" where that was not found. how: where the hash comes from."""

    path: str
    size_bytes: int
    sha256: str
    how: str


@dataclass(frozen=True, kw_only=True)
class SkippedTest:
    """A test that was not made, and why."""

    test: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class BenchComparison:
    """Whether two backends wrote the same: `n_same` of the first `n_ids` greedy tokens after the same prompt, from the
    start to the first that differs. note: what that means."""

    backend: BackendName
    against: BackendName
    n_same: int
    n_ids: int
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class BenchRun:
    """One run of `runner bench`.

    id: sorts by time, such as "20260131-120000-4f2a". started_at: ISO 8601 in UTC. model: its name as resolved.
    prompts_md5: of all token ids that were given to the model. notes: what was changed or seen on the way, for people.
    is_partial: it was interrupted, and has what was measured until then.
    """

    id: str
    started_at: str
    duration_s: float
    model: str
    format: WeightsFormat
    architecture: str
    quantization: str
    num_parameters: int
    size_bytes: int
    files: tuple[ModelFile, ...]
    prompts_md5: str
    options: BenchOptions
    machine: BenchMachine
    backends: tuple[BenchBackend, ...]
    skipped: tuple[SkippedTest, ...] = ()
    comparison: tuple[BenchComparison, ...] = ()
    notes: tuple[str, ...] = field(default=())
    is_partial: bool = False

    @property
    def rows(self) -> tuple[BenchRow, ...]:
        """Every row, backend after backend."""
        return tuple(row for backend in self.backends for row in backend.rows)

    @property
    def is_invalid(self) -> bool:
        return any(row.invalid is not None for row in self.rows)


def run_to_json(run: BenchRun) -> dict[str, Any]:
    """The run as a JSON object, "schema" first; the statistics of each row are added, for those who read it."""
    plain = to_plain(run)
    for backend, plain_backend in zip(run.backends, plain["backends"], strict=True):
        for row, plain_row in zip(backend.rows, plain_backend["rows"], strict=True):
            plain_row.update({name: getattr(row, name) for name in _STATISTICS})
            if row.speculation is not None:
                plain_row["speculation"].update(row.speculation.figures(row.samples))
    return {"schema": SCHEMA, **plain}


def run_from_json(plain: Mapping[str, Any]) -> BenchRun:
    """The run that `run_to_json` wrote, or an earlier version. Raises ValueError when it is damaged or unknown."""
    if not isinstance(plain, Mapping) or plain.get("schema") not in _READABLE:
        raise ValueError(f"it is no {SCHEMA}")
    try:
        backends = [
            {**backend, "rows": [_without_statistics(row) for row in backend["rows"]]} for backend in plain["backends"]
        ]
        fields = {key: value for key, value in plain.items() if key != "schema"}
        return from_plain(BenchRun, {**fields, "backends": backends})
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"it is damaged: {error}") from error


def without_numbers(row: BenchRow, reason: str) -> BenchRow:
    """The row as invalid, for that reason."""
    return dataclasses.replace(
        row, samples=(), segments=(), cold=None, bandwidth_share=None, speculation=None, invalid=reason
    )


_STATISTICS = ("mean", "stddev", "median", "min", "max", "cv", "is_noisy")


def _without_statistics(row: Mapping[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in row.items() if key not in _STATISTICS}
    if plain.get("speculation") is not None:
        plain["speculation"] = without_figures(plain["speculation"])
    return plain
