"""How to have a model in four bits of the native backend: told where llama.cpp runs it beside a GPU for our kernels.

It knows the registry and what is made here; it asks no hub, and reads no weights.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from runner.backends.native.architectures import ARCHITECTURES
from runner.backends.native.preference import gpu_for_kernels
from runner.model_config import text_model_type
from runner.registry import ModelSpec, Registry

_PACKED_BYTES: Final = 0.7  # of a weight in mq4, at most: Gemma 4's small models are half tables, in mq6


def in_own_bits(spec: ModelSpec, registry: Registry, num_parameters: int) -> str:
    """The commands, or "": for a model that the registry does not know, and without such a GPU or room there."""
    known = registry.known_repo(spec.repo) if spec.repo else None
    if known is None or not known.repo or not _is_run(known):
        return ""
    gpu = gpu_for_kernels()
    if gpu is None or num_parameters * _PACKED_BYTES > gpu.free_bytes:
        return ""
    name = f"{PurePosixPath(known.repo).name}-mq4"
    if any(one.name == name for one in registry.made()):
        return f"{name}, made here, is decoded by kernels for this GPU: runner chat {name}"
    made = f"runner pull {known.name}:safetensors, then runner quantize {known.name}"
    return f"in four bits of the native backend, by kernels for this GPU: {made}"


def _is_run(known: ModelSpec) -> bool:
    """Whether the native backend knows the architecture, as far as the registry tells."""
    return text_model_type(known.architecture) in ARCHITECTURES
