"""Reads the gated delta net from config.json: which layers have one in place of attention, and how large it is.

Its defaults are in families.py; the mathematics is computed by whoever runs the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from runner.model_config.families import Family
from runner.model_config.fields import integer_or_none, invalid, strings, unsupported
from runner.model_config.values import DeltaConfig

_DELTA, _ATTENTION = "linear_attention", "full_attention"  # what layer_types calls them
_MOST_TAPS: Final = 13  # one more than a GPU keeps states of a sequence (kernels/delta_rule.py)


def parse_delta(config: Mapping[str, Any], family: Family, num_layers: int) -> DeltaConfig | None:
    """The delta nets of a config.json's contents; None for a model, or a family, without them.

    Raises UnsupportedModel for other types of layers and for long convolutions, BadModelFile for values that make no
    sense.
    """
    layers = _layers(config, family, num_layers) if family.has_delta else ()
    if not layers:
        return None

    def whole(key: str, high: int) -> int:
        value = integer_or_none(config, key, family.defaults[key], 1, high)
        if value is None:
            raise invalid(key, value, "It must be a whole number.")
        return value

    key_heads, value_heads = whole("linear_num_key_heads", 2**12), whole("linear_num_value_heads", 2**12)
    if value_heads % key_heads:
        hint = f"It must be a multiple of linear_num_key_heads = {key_heads}."
        raise invalid("linear_num_value_heads", value_heads, hint)
    taps = whole("linear_conv_kernel_dim", 2**12)
    if taps > _MOST_TAPS:
        raise unsupported("linear_conv_kernel_dim", taps)
    return DeltaConfig(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=whole("linear_key_head_dim", 2**12),
        value_dim=whole("linear_value_head_dim", 2**12),
        taps=taps,
        layers=layers,
    )


def _layers(config: Mapping[str, Any], family: Family, num_layers: int) -> tuple[int, ...]:
    """Those that layer_types names, or all but each full_attention_interval-th."""
    if config.get("layer_types") is None:
        key = "full_attention_interval"
        every = integer_or_none(config, key, family.defaults[key], 1, 2**12) or 1
        return tuple(layer for layer in range(num_layers) if (layer + 1) % every)
    types = strings(config, "layer_types")
    if len(types) != num_layers:
        raise invalid("layer_types", f"a list of {len(types)}", f"It must name all {num_layers} layers.")
    for kind in types:
        if kind not in (_DELTA, _ATTENTION):
            raise unsupported("layer_types", kind)
    return tuple(layer for layer, kind in enumerate(types) if kind == _DELTA)
