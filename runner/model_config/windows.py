"""Reads the sliding window from config.json: how many tokens, and which layers see no more than them.

The rules of each family are in families.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.model_config.families import Family
from runner.model_config.fields import flag, integer_or_none, invalid, strings, unsupported


def parse_window(config: Mapping[str, Any], family: Family, num_layers: int) -> tuple[int | None, tuple[int, ...]]:
    """The window, and the layers that have it; None and no layer where all see everything.

    Raises UnsupportedModel for other types of layers, and BadModelFile for values that make no sense.
    """
    if family.window == "none":
        return None, ()
    window = integer_or_none(config, "sliding_window", family.sliding_window)
    if "use_sliding_window" in family.own_keys and not flag(config, "use_sliding_window"):
        window = None
    layers = _layers(config, family, num_layers, window)
    if family.ends_full:
        layers = tuple(layer for layer in layers if layer != num_layers - 1)
    return (window, layers) if layers else (None, ())


def _layers(config: Mapping[str, Any], family: Family, num_layers: int, window: int | None) -> tuple[int, ...]:
    if "layer_types" in family.own_keys and config.get("layer_types") is not None:
        return _named(config, num_layers, window)
    if window is None:
        return ()
    if family.window == "all":
        return tuple(range(num_layers))
    if family.window == "upper":
        return tuple(range(integer_or_none(config, "max_window_layers", 28, 0, 2**12) or 0, num_layers))
    every = integer_or_none(config, "sliding_window_pattern", family.window_every, 1, 2**12) or family.window_every
    return tuple(layer for layer in range(num_layers) if (layer + 1) % every)


def _named(config: Mapping[str, Any], num_layers: int, window: int | None) -> tuple[int, ...]:
    """The layers that layer_types calls sliding."""
    layer_types = strings(config, "layer_types")
    if len(layer_types) != num_layers:
        raise invalid("layer_types", f"a list of {len(layer_types)}", f"It must name all {num_layers} layers.")
    for layer_type in layer_types:
        if layer_type not in ("full_attention", "sliding_attention"):
            raise unsupported("layer_types", layer_type)
    layers = tuple(i for i, layer_type in enumerate(layer_types) if layer_type == "sliding_attention")
    if layers and window is None:
        raise invalid("layer_types", "sliding_attention", "It needs sliding_window, and use_sliding_window = true.")
    return layers
