"""Reads the rotary embedding from config.json: `rope_parameters`, or `rope_theta` and `rope_scaling` before it.

The frequencies themselves are computed by whoever runs the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from runner.model_config.families import ROPE_KEYS
from runner.model_config.fields import integer_or_none, invalid, is_off, number, unsupported
from runner.model_config.values import RopeKind, RopeScaling


def parse_rope(config: Mapping[str, Any], max_position_embeddings: int) -> tuple[float, RopeScaling | None]:
    """rope_theta and the scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`."""
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = config.get(name) or {}
    if not isinstance(rope, Mapping):
        raise invalid(name, rope, "It must be an object.")
    for key, value in rope.items():
        if key not in ROPE_KEYS and not is_off(value):
            raise unsupported(f"{name}.{key}", value)
    if rope.get("partial_rotary_factor") not in (None, 1):
        raise unsupported(f"{name}.partial_rotary_factor", rope["partial_rotary_factor"])
    if rope.get("truncate") not in (None, True):
        raise unsupported(f"{name}.truncate", rope["truncate"])
    theta = number(rope if "rope_theta" in rope else config, "rope_theta", 10000.0, 1.0, 1e15)
    kind: Any = rope.get("rope_type", rope.get("type")) or "default"
    if kind == "default":
        return theta, None
    if kind not in ("linear", "llama3", "yarn"):
        raise unsupported(f"{name}.rope_type", kind)
    # transformers gives the key outside the object priority over the one inside.
    outer = config if config.get("original_max_position_embeddings") is not None else rope
    original = integer_or_none(outer, "original_max_position_embeddings", None) or max_position_embeddings
    return theta, _rope_scaling(kind, rope, original, max_position_embeddings)


def _rope_scaling(kind: RopeKind, rope: Mapping[str, Any], original: int, max_position_embeddings: int) -> RopeScaling:
    if kind == "yarn" and rope.get("factor") is None:
        factor = max_position_embeddings / original
    else:
        factor = number(rope, "factor", None, 1e-3, 1e6)
    if kind == "linear":
        return RopeScaling(kind=kind, factor=factor, original_max_position_embeddings=original)
    if kind == "llama3":
        low = number(rope, "low_freq_factor", None, 1e-6, 1e6)
        high = number(rope, "high_freq_factor", None, 1e-6, 1e6)
        if high <= low:
            raise invalid("high_freq_factor", high, f"It must be more than low_freq_factor = {low:g}.")
        return RopeScaling(
            kind=kind,
            factor=factor,
            original_max_position_embeddings=original,
            low_freq_factor=low,
            high_freq_factor=high,
        )
    return RopeScaling(
        kind=kind,
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=_attention_factor(rope, factor),
        beta_fast=number(rope, "beta_fast", 32.0, 0.0, 1e6) or 32.0,
        beta_slow=number(rope, "beta_slow", 1.0, 0.0, 1e6) or 1.0,
    )


def _attention_factor(rope: Mapping[str, Any], factor: float) -> float:
    """What YaRN multiplies cos and sin by: given, or from mscale and mscale_all_dim, or 0.1 ln(factor) + 1."""
    if rope.get("attention_factor") is not None:
        return number(rope, "attention_factor", None, 1e-6, 1e6)

    def scale(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    numerator = number(rope, "mscale", 0.0, 0.0, 1e6)
    denominator = number(rope, "mscale_all_dim", 0.0, 0.0, 1e6)
    return scale(numerator) / scale(denominator) if numerator and denominator else scale(1.0)
