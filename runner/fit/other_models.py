"""What could be run instead of a model: its other quantizations, and smaller models of the registry.

Sizes are the hub's where a listing is at hand, else the registry's, else from the bits that a quantization usually
takes. It knows no device: what of this fits is remedies.py's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from runner.model_files import gguf_groups
from runner.registry import ModelSpec, Registry

# Bits a weight of llama.cpp's quantizations of Llama 3.1 8B, from the table in llama.cpp's tools/quantize/README.md;
# the embeddings, which are kept wider, make it more for smaller models.
USUAL_BPW: Final[Mapping[str, float]] = {
    "Q2_K": 3.16,
    "Q3_K_S": 3.64,
    "Q3_K_M": 4.0,
    "IQ4_XS": 4.46,
    "Q4_0": 4.66,
    "Q4_K_S": 4.67,
    "Q4_K_M": 4.89,
    "MXFP4": 4.6,
    "Q5_0": 5.6,
    "Q5_K_S": 5.57,
    "Q5_K_M": 5.7,
    "Q6_K": 6.56,
    "Q8_0": 8.5,
    "F16": 16.0,
    "BF16": 16.0,
    "F32": 32.0,
}


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """Something else that could be run. name: what to call it. is_same: another quantization of the same model."""

    name: str
    size_bytes: int
    is_same: bool
    is_exact: bool


def alternatives(
    spec: ModelSpec, registry: Registry, listed: Mapping[str, int] | None = None
) -> tuple[Alternative, ...]:
    """The other quantizations of `spec`, then the registry's other models, those of its family first.

    listed: sizes of the files in the repository that it comes from, where they are at hand.
    """
    same = _listed(spec, listed or {}) or tuple(_quants(spec))
    return (*same, *_models(spec, registry.specs))


def _listed(spec: ModelSpec, listed: Mapping[str, int]) -> tuple[Alternative, ...]:
    short = spec.name.partition(":")[0]

    def name(quant: str) -> str:
        """By the registry's name for what it offers there, else by repository."""
        return f"{short if spec.origin != 'registry' or quant in spec.quants else spec.gguf}:{quant}"

    return tuple(
        Alternative(
            name=name(group.quant),
            size_bytes=sum(listed[part] for part in group.names),
            is_same=True,
            is_exact=True,
        )
        for group in gguf_groups(listed)
        if group.quant and group.quant != spec.chosen_quant.upper()
    )


def _quants(spec: ModelSpec) -> Iterator[Alternative]:
    for quant in spec.quants:
        if quant != spec.chosen_quant and (size := size_of(spec, quant)):
            yield Alternative(name=f"{spec.name}:{quant}", size_bytes=size, is_same=True, is_exact=quant in spec.sizes)


def _models(spec: ModelSpec, others: Iterable[ModelSpec]) -> Iterator[Alternative]:
    for other in sorted(others, key=lambda other: other.family != spec.family):
        size = size_of(other, other.chosen_quant)
        if other.name != spec.name.partition(":")[0] and size:
            yield Alternative(
                name=other.name, size_bytes=size, is_same=False, is_exact=other.chosen_quant in other.sizes
            )


def size_of(spec: ModelSpec, quant: str) -> int:
    """Bytes of a quantization, or 0 when nothing tells."""
    return spec.sizes.get(quant) or round(spec.parameters * USUAL_BPW.get(quant.removeprefix("UD-"), 0.0) / 8)
