"""Reads from config.json what Gemma 4's small models have: an input of its own for each layer, and last layers that
keep no keys and values but see those of a layer before them. It knows no weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from runner.model_config.families import Family
from runner.model_config.fields import flag, integer_or_none, invalid
from runner.model_config.values import LayerInputs, SharedCaches

_SIZE, _VOCAB, _SHARED, _WIDE = (
    "hidden_size_per_layer_input",
    "vocab_size_per_layer_input",
    "num_kv_shared_layers",
    "use_double_wide_mlp",
)
_LARGEST_SIZE: Final = 2**16


def parse_layer_inputs(config: Mapping[str, Any], family: Family, vocab_size: int) -> LayerInputs | None:
    """None where layers have none, and in families that never have. Raises BadModelFile."""
    if _SIZE not in family.own_keys:
        return None
    size = integer_or_none(config, _SIZE, family.defaults[_SIZE], 0, _LARGEST_SIZE)
    if not size:
        return None
    rows = integer_or_none(config, _VOCAB, family.defaults[_VOCAB], 1, 2**24)
    if rows is None or rows < vocab_size:
        raise invalid(_VOCAB, rows, f"Each of the vocab_size = {vocab_size} tokens has a row of these inputs.")
    return LayerInputs(size=size, vocab_size=rows)


def parse_shared_caches(
    config: Mapping[str, Any], family: Family, num_layers: int, sliding_layers: Sequence[int]
) -> SharedCaches | None:
    """None where every layer keeps its own. Raises BadModelFile where there is none to see that of."""
    if _SHARED not in family.own_keys:
        return None
    count = integer_or_none(config, _SHARED, 0, 0, num_layers) or 0
    is_wide = flag(config, _WIDE)
    if not count:
        return None
    first = num_layers - count
    for is_sliding in (True, False):
        of_kind = [layer for layer in range(num_layers) if (layer in sliding_layers) == is_sliding]
        if of_kind and of_kind[0] >= first:
            kind = "a window" if is_sliding else "no window"
            hint = f"Of the layers with {kind}, each would see the keys of an earlier one, and none of them keeps any."
            raise invalid(_SHARED, count, hint)
    return SharedCaches(first=first, has_wide_mlps=is_wide)
