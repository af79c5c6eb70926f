"""How a model will be loaded: layers on the GPU resolved, the estimate corrected by earlier loads. One way for all.

The engine loads by a plan and a preview shows one, so that what is shown is what would happen. Pure but for what
llama.cpp says of its own build.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runner import __version__
from runner.config import LoadOptions
from runner.events import Notice
from runner.fit.arithmetic import Fit, estimate, with_gpu_layers
from runner.fit.facts import ModelFacts
from runner.fit_history import Correction, FitKey, FitRecord, correction
from runner.types import BackendName, Device, MemoryUse


@dataclass(frozen=True, kw_only=True)
class Plan:
    """options: with the number of GPU layers. learned: what the estimate was corrected by. key: of loads like this."""

    options: LoadOptions
    fit: Fit
    learned: Correction
    key: FitKey
    draft: ModelFacts | None = None


def plan(
    facts: ModelFacts,
    options: LoadOptions,
    machine: Sequence[Device],
    backend: BackendName,
    records: Sequence[FitRecord],
    emit: Callable[[Notice], None],
    *,
    draft: ModelFacts | None = None,
) -> Plan:
    """What loading a model of `facts` on `backend` would do here; emit gets what the user should know."""
    key, learned = _learned(facts, options, machine, backend, records)
    if backend == "llamacpp":
        options = with_gpu_layers(facts, options, machine, emit, learned, draft)
        key, learned = _learned(facts, options, machine, backend, records)
    fit = estimate(facts, options, machine, backend, draft=draft, correction=learned)
    return Plan(options=options, fit=fit, learned=learned, key=key, draft=draft)


def _learned(
    facts: ModelFacts,
    options: LoadOptions,
    machine: Sequence[Device],
    backend: BackendName,
    records: Sequence[FitRecord],
) -> tuple[FitKey, Correction]:
    """The correction for the device that a model with these options goes to."""
    key = FitKey(
        backend=backend,
        device=estimate(facts, options, machine, backend).device.kind,
        architecture=facts.shape.architecture,
        quantization=facts.quantization,
        version=__version__,
    )
    return key, correction(records, key)


def record_of(made: Plan, used: MemoryUse) -> FitRecord:
    """The plan's estimate beside what was used after the load.

    The native backend's KV cache grows with the conversation, so that after a load it says nothing.
    """
    kv_cache_bytes = 0 if made.key.backend == "native" else used.kv_cache_bytes
    actual = MemoryUse(
        weights_bytes=used.weights_bytes, kv_cache_bytes=kv_cache_bytes, workspace_bytes=used.workspace_bytes
    )
    return FitRecord(key=made.key, estimated=made.fit.estimated, actual=actual)
