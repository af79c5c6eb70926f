"""Reads the rotary embeddings from config.json: `rope_parameters`, or `rope_theta` and `rope_scaling` before it.

The frequencies themselves are computed by whoever runs the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, cast, get_args

from runner.model_config.families import GROWTH_KEYS, ROPE_KEYS, Family
from runner.model_config.fields import flag, integer_or_none, invalid, is_off, number, numbers, unsupported
from runner.model_config.values import QueryGrowth, Rope, RopeKind, RopeName, RopeScaling

_KINDS: Final = get_args(RopeKind)
_LEAST_THETA: Final = 1.001  # YaRN divides by its logarithm
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"  # the layer types that rope_parameters are keyed by


def parse_ropes(
    config: Mapping[str, Any], family: Family, head_dim: int, full_head_dim: int, max_position_embeddings: int
) -> dict[RopeName, Rope]:
    """The rotary embedding of the model, and that of its sliding layers where the family gives them their own.

    head_dim: of the sliding layers' heads; full_head_dim: of those of the others, which may be the same.
    Raises UnsupportedModel, naming the key, for what we do not compute, and BadModelFile for values that make no sense.
    """
    full, sliding = (_Reader(config, family, dim, max_position_embeddings) for dim in (full_head_dim, head_dim))
    if family.local_rope_theta is not None:
        return _two(full, sliding, config, family)
    name, found = _found(config, family)
    return {"global": full.rope(name, found, "rope_theta", family.rope_theta)}


def parse_query_growth(config: Mapping[str, Any], family: Family, max_position_embeddings: int) -> QueryGrowth | None:
    """How queries grow with their position. Raises BadModelFile for values that make no sense."""
    if not family.has_query_growth:
        return None
    _, rope = _found(config, family)
    beta = number(rope, "llama_4_scaling_beta", 0.0, 0.0, 1e3)
    return QueryGrowth(beta=beta, span=_original(config, family, rope, max_position_embeddings)) if beta else None


def parse_unrotated(config: Mapping[str, Any], family: Family, num_layers: int) -> tuple[int, ...]:
    """The layers that are not rotated. Raises BadModelFile for values that make no sense."""
    if family.unrotated_every is None:
        return ()
    key = "no_rope_layers"
    listed = config.get(key)
    if listed is None:
        every = integer_or_none(config, "no_rope_layer_interval", None, 1, 2**12) or family.unrotated_every
        return tuple(range(every - 1, num_layers, every))
    if not isinstance(listed, list) or len(listed) < num_layers or any(item not in (0, 1) for item in listed):
        raise invalid(key, listed, f"It must have 1, or 0 for no rotation, for each of {num_layers} layers.")
    return tuple(layer for layer in range(num_layers) if not listed[layer])


def _two(full: _Reader, sliding: _Reader, config: Mapping[str, Any], family: Family) -> dict[RopeName, Rope]:
    """The embeddings that rope_parameters has by type of layer; rope_scaling is that of the layers that see all."""
    parts = _object("rope_parameters", config.get("rope_parameters") or {})
    for key, value in parts.items():
        if key not in (_GLOBAL, _LOCAL) and not is_off(value):
            raise unsupported(f"rope_parameters.{key}", value)
    name, local_name = f"rope_parameters.{_GLOBAL}", f"rope_parameters.{_LOCAL}"
    everywhere = _object(name, parts.get(_GLOBAL) or family.rope or {})
    if config.get("rope_scaling"):
        if family.rope is not None:  # Gemma 4 never had that key, and transformers passes it over
            raise unsupported("rope_scaling", config["rope_scaling"])
        name, everywhere = "rope_scaling", {**everywhere, **_object("rope_scaling", config["rope_scaling"])}
    theta, local_theta = family.rope_theta, family.local_rope_theta
    local = sliding.rope(local_name, _object(local_name, parts.get(_LOCAL) or {}), "rope_local_base_freq", local_theta)
    if local.scaling is not None:
        raise unsupported(f"{local_name}.rope_type", local.scaling.kind)
    return {"global": full.rope(name, everywhere, "rope_theta", theta), "local": local}


def _found(config: Mapping[str, Any], family: Family) -> tuple[str, Mapping[str, Any]]:
    """What a config calls its one rotary embedding, and the object, or the family's."""
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    return name, _object(name, config.get(name) or family.rope or {})


def _original(config: Mapping[str, Any], family: Family, rope: Mapping[str, Any], max_positions: int) -> int:
    """The context of pretraining: transformers gives the key outside of the object priority over the one inside."""
    key = "original_max_position_embeddings"
    outer = integer_or_none(config, key, family.original_context)
    return outer or integer_or_none(rope, key, None) or max_positions


def _object(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise invalid(name, value, "It must be an object.")
    return value


class _Reader:
    """What is common to the rotary embeddings of one config.json for heads of one size."""

    def __init__(self, config: Mapping[str, Any], family: Family, head_dim: int, max_position_embeddings: int) -> None:
        self._config, self._family = config, family
        self._head_dim, self._max_positions = head_dim, max_position_embeddings
        self._known = ROPE_KEYS | family.rope_keys | (GROWTH_KEYS if family.has_query_growth else frozenset())

    def rope(self, name: str, rope: Mapping[str, Any], outer_theta: str, default_theta: float | None) -> Rope:
        """The embedding of the object `rope`, which the config calls `name`.

        outer_theta: the key of its base outside of the object, where older configs have it.
        """
        for key, value in rope.items():
            if key not in self._known and not is_off(value):
                raise unsupported(f"{name}.{key}", value)
        if "rope_theta" in rope:
            theta = number(rope, "rope_theta", default_theta, _LEAST_THETA, 1e15)
        else:
            theta = number(self._config, outer_theta, default_theta, _LEAST_THETA, 1e15)
        kind = self._kind(name, rope)
        dim = self._head_dim if kind == "proportional" else self._dim(name, rope)
        if kind is None:
            return Rope(theta=theta, scaling=None, dim=dim)
        original = _original(self._config, self._family, rope, self._max_positions)
        return Rope(theta=theta, scaling=_scaling(kind, rope, original, self._max_positions, dim), dim=dim)

    def _kind(self, name: str, rope: Mapping[str, Any]) -> RopeKind | None:
        found: Any = rope.get("rope_type", rope.get("type")) or "default"
        if found == "default":
            return None
        kind = self._family.rope_names.get(found, found) if isinstance(found, str) else found
        if kind not in _KINDS or (kind == "proportional" and not self._family.has_proportional_rope):
            raise unsupported(f"{name}.rope_type", found)
        return cast(RopeKind, kind)

    def _dim(self, name: str, rope: Mapping[str, Any]) -> int:
        """The elements of a head that are turned."""
        key, default = "partial_rotary_factor", self._family.partial_rotary
        source, shown = (rope, f"{name}.{key}") if rope.get(key) is not None else (self._config, key)
        if default is None:
            if source.get(key) not in (None, 1):
                raise unsupported(shown, source[key])
            return self._head_dim
        share = number(source, key, default, 0.0, 1.0)
        dim = int(self._head_dim * share)
        if dim < 2 or dim % 2:
            raise invalid(shown, share, f"It must turn an even number of a head's {self._head_dim} elements.")
        return dim


def _scaling(kind: RopeKind, rope: Mapping[str, Any], original: int, max_positions: int, dim: int) -> RopeScaling:
    if kind in ("yarn", "longrope") and rope.get("factor") is None:
        factor = max_positions / original
    else:
        factor = number(rope, "factor", 1.0 if kind == "proportional" else None, 1e-3, 1e6)
    if kind in ("linear", "proportional"):
        share = 1.0 if kind == "linear" else number(rope, "partial_rotary_factor", 1.0, 0.0, 1.0)
        return RopeScaling(kind=kind, factor=factor, original_max_position_embeddings=original, share=share)
    if kind == "llama3":
        return _llama3(rope, factor, original)
    if kind == "longrope":
        return _longrope(rope, factor, original, dim)
    return RopeScaling(
        kind=kind,
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=_yarn_attention_factor(rope, factor),
        beta_fast=_turns(rope, "beta_fast", 32.0),
        beta_slow=_turns(rope, "beta_slow", 1.0),
        truncate=rope.get("truncate") is None or flag(rope, "truncate"),
    )


def _turns(rope: Mapping[str, Any], key: str, default: float) -> float:
    """One of YaRN's bounds; 0 means the default too, as in transformers."""
    return number(rope, key, None, 1e-6, 1e6) if rope.get(key) else default


def _llama3(rope: Mapping[str, Any], factor: float, original: int) -> RopeScaling:
    low = number(rope, "low_freq_factor", None, 1e-6, 1e6)
    high = number(rope, "high_freq_factor", None, 1e-6, 1e6)
    if high <= low:
        raise invalid("high_freq_factor", high, f"It must be more than low_freq_factor = {low:g}.")
    return RopeScaling(
        kind="llama3",
        factor=factor,
        original_max_position_embeddings=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _longrope(rope: Mapping[str, Any], factor: float, original: int, dim: int) -> RopeScaling:
    """With the attention factor that is given, or sqrt(1 + ln(factor) / ln(original context))."""
    if original < 2:
        raise invalid("original_max_position_embeddings", original, "It must be more than 1.")
    scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    if rope.get("attention_factor") is not None:
        scale = number(rope, "attention_factor", None, 1e-6, 1e6)
    return RopeScaling(
        kind="longrope",
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=scale,
        short_factors=numbers(rope, "short_factor", dim // 2, 1e-6, 1e6),
        long_factors=numbers(rope, "long_factor", dim // 2, 1e-6, 1e6),
    )


def _yarn_attention_factor(rope: Mapping[str, Any], factor: float) -> float:
    """What YaRN multiplies cos and sin by: given, or from mscale and mscale_all_dim, or 0.1 ln(factor) + 1."""
    if rope.get("attention_factor") is not None:
        return number(rope, "attention_factor", None, 1e-6, 1e6)

    def scale(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    numerator = number(rope, "mscale", 0.0, 0.0, 1e6)
    denominator = number(rope, "mscale_all_dim", 0.0, 0.0, 1e6)
    return scale(numerator) / scale(denominator) if numerator and denominator else scale(1.0)
