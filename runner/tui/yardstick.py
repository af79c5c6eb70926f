"""What a loaded model is held against: what it was expected to take, and how fast this machine's memory was measured.

It reads headers of model files and the histories of loads and benchmarks, so it belongs in a thread. It measures
nothing and guesses nothing: where something is not known, there is a reason instead.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from runner.bench.bytes_read import NOTHING_CACHED, CacheRead, cache_read, state_bytes, stored_weights, weights_read
from runner.bench.record import BenchRun
from runner.bench.store import read_history as read_benchmarks
from runner.config import LoadOptions
from runner.errors import RunnerError
from runner.events import Loaded
from runner.fit import Fit, plan, read_facts
from runner.fit_history import FitRecord, read_history
from runner.machine import devices
from runner.paths import Paths
from runner.prepare import ready
from runner.registry import Registry
from runner.types import CancelToken, Device, ReadyModel

_log = logging.getLogger(__name__)

RUN_BENCH: Final = "run bench (F3) to know"


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """What one decoded token reads, and how fast memory can be read.

    token_bytes: of weights; cache: of the KV cache. bandwidth_bytes_s: as the newest benchmark on this device
    measured it. unknown: why a share cannot be told; "" when it can.
    """

    token_bytes: int = 0
    cache: CacheRead = NOTHING_CACHED
    bandwidth_bytes_s: float = 0.0
    unknown: str = ""

    def share(self, tok_s: float, context_tokens: int) -> float | None:
        """Bytes that decoding at `tok_s` reads a second, of those that memory gives: runner.bench's definition."""
        if self.unknown or not self.bandwidth_bytes_s:
            return None
        return (self.token_bytes + self.cache.at(context_tokens)) * tok_s / self.bandwidth_bytes_s


@dataclass(frozen=True, kw_only=True)
class LoadFacts:
    """fit: the estimate that the load was made by, None when it cannot be told."""

    fit: Fit | None
    yardstick: Yardstick


def load_facts(paths: Paths, model: str, loaded: Loaded, options: LoadOptions) -> LoadFacts:
    """What is to be known of a model that has just been loaded with `options`. Never raises; call it in a thread."""
    try:
        files = ready(Registry.load_for(paths).resolve(model), offline=True, on_event=_ignore, cancel=CancelToken())
        return LoadFacts(
            fit=_estimate(paths, files, loaded, options), yardstick=_yardstick(paths, files, loaded, options)
        )
    except (RunnerError, OSError, ValueError) as error:
        _log.info("nothing to compare %s with: %s", model, error)
        return LoadFacts(fit=None, yardstick=Yardstick(unknown=f"how much a token reads is not known: {error}"))


def _ignore(_event: object) -> None:
    """Progress of looking for files that are there."""


def _estimate(paths: Paths, files: ReadyModel, loaded: Loaded, options: LoadOptions) -> Fit | None:
    if files.format == "script":
        return None
    records = without_this_load(read_history(paths.fit_history), loaded)
    # The layers are known by now; finding them out again would import llama.cpp into this process.
    options = replace(options, n_gpu_layers=loaded.info.n_gpu_layers)
    return plan(read_facts(files), options, devices(), loaded.info.backend, records, _ignore).fit


def without_this_load(records: Sequence[FitRecord], loaded: Loaded) -> Sequence[FitRecord]:
    """The records as they were before the load, which has added its own: an estimate must not know the answer."""
    if not records:
        return records
    last = records[-1]
    is_this = last.key.backend == loaded.info.backend and last.actual.weights_bytes == loaded.memory.weights_bytes
    return records[:-1] if is_this else records


def _yardstick(paths: Paths, files: ReadyModel, loaded: Loaded, options: LoadOptions) -> Yardstick:
    info = loaded.info
    device = _device_of(loaded, devices())
    if device is None:
        return Yardstick(unknown="the model is in two memories")
    if files.format == "script":
        return Yardstick(unknown="a script reads no weights")
    stick = Yardstick(
        token_bytes=weights_read(stored_weights(files), info.backend, loaded.memory) + state_bytes(files),
        cache=cache_read(files, options, info),
    )
    return _by_benchmarks(stick, paths, device)


def measured_since(stick: Yardstick, paths: Paths, loaded: Loaded) -> Yardstick:
    """The yardstick of a model that is still loaded, by the benchmarks that are kept by now. Call it in a thread."""
    device = _device_of(loaded, devices())
    if device is None or not stick.token_bytes:
        return stick
    try:
        return _by_benchmarks(stick, paths, device)
    except RunnerError as error:
        _log.info("the benchmarks are not looked at again: %s", error)
        return stick


def _by_benchmarks(stick: Yardstick, paths: Paths, device: Device) -> Yardstick:
    bandwidth = measured_bandwidth(read_benchmarks(paths.bench_history).runs, device)
    return replace(stick, bandwidth_bytes_s=bandwidth or 0.0, unknown="" if bandwidth else RUN_BENCH)


def _device_of(loaded: Loaded, machine: Sequence[Device]) -> Device | None:
    """The one device that holds all of the model, or None when two do; see runner.bench.run, which asks the same."""
    info, gpus = loaded.info, [device for device in machine if device.kind != "cpu"]
    if not info.n_gpu_layers or not gpus:
        return machine[-1]
    if info.n_gpu_layers < info.num_layers:
        return None
    return next((gpu for gpu in gpus if gpu.name == info.device), gpus[0])


def measured_bandwidth(runs: Sequence[BenchRun], device: Device) -> float | None:
    """Bytes a second that `device` gave in the newest benchmark of it; None when there is none."""
    machines = (run.machine for run in reversed(runs))
    like = (one for one in machines if (one.kind, one.device) == (device.kind, device.name))
    return next((one.bandwidth.bytes_s for one in like if one.bandwidth is not None), None)
