"""Reads from config.json the heads of the layers that see everything, where a family gives them their own (Gemma 4).

A config.json says it in one of two ways: keys for all of these layers, or what each layer has that others have not, as
transformers 5.24 writes it. It knows neither weights nor the heads of sliding layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from runner.model_config.families import Family
from runner.model_config.fields import flag, integer_or_none, invalid, objects_of_layers, unsupported
from runner.model_config.values import HeadSizes

_LAYERS: Final = "per_layer_config"
_DIM, _COUNT = "head_dim", "num_key_value_heads"


def parse_full_heads(
    config: Mapping[str, Any], family: Family, full_layers: Sequence[int], num_heads: int
) -> HeadSizes | None:
    """The heads of `full_layers`; None in families where they are those of all layers.

    Raises UnsupportedModel where layers differ in other ways, and BadModelFile for values that make no sense.
    """
    if not family.has_full_heads:
        return None
    is_shared = flag(config, "attention_k_eq_v")
    layers = objects_of_layers(config, _LAYERS)
    if layers is not None:
        found, dim_key, count_key = _override(layers, full_layers), _DIM, _COUNT
        dim_default = config.get(_DIM, family.defaults[_DIM])
    else:
        # Without shared projections transformers does not read the number of heads.
        found, dim_key, count_key = config, "global_head_dim", "num_global_key_value_heads" if is_shared else _COUNT
        dim_default = family.defaults[dim_key]
    head_dim = integer_or_none(found, dim_key, dim_default, 1, 2**12)
    count = integer_or_none(found, count_key, None, 1, 2**12)
    count = count or integer_or_none(config, _COUNT, family.defaults[_COUNT], 1, 2**12) or num_heads
    if head_dim is None or head_dim % 2:
        raise invalid(dim_key, head_dim, "It must be even: rotary positions turn pairs.")
    if num_heads % count:
        raise invalid(count_key, count, f"It must divide num_attention_heads = {num_heads}.")
    return HeadSizes(num_kv_heads=count, head_dim=head_dim, shares_projection=is_shared)


def _override(layers: Mapping[int, Mapping[str, Any]], full_layers: Sequence[int]) -> Mapping[str, Any]:
    """What all of `full_layers` have, and no other layer."""
    found = layers.get(full_layers[-1], {}) if full_layers else {}
    for layer, one in layers.items():
        if unknown := sorted(set(one) - {_DIM, _COUNT}):
            raise unsupported(f"{_LAYERS}.{layer}.{unknown[0]}", one[unknown[0]])
        if one and layer not in full_layers:
            raise unsupported(f"{_LAYERS}.{layer}", one)
    for layer in full_layers:
        if layers.get(layer, {}) != found:
            raise unsupported(f"{_LAYERS}.{layer}", layers.get(layer))
    return found
