"""Reads whole numbers, flags and layer types from the part of a config.json that describes the text model.

It knows the defaults that it is given and where multimodal models keep their text model; it knows no family.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from runner.model_config.fields import flag, integer_or_none, invalid, objects_of_layers, strings

MAX_LAYERS: Final = 2**12
# GPT-2 and those after it have other names for the same numbers; transformers 5 writes num_local_experts for all.
_OTHER_NAMES: Final = {
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_experts": "num_local_experts",
}
_TOWERS: Final = {"vision_config": "vision", "audio_config": "audio"}


class Reader:
    """The text model's keys of `config`, with `defaults` for those that are missing. Raises BadModelFile."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, int | None]) -> None:
        self._outer = config
        self._inner = text_part(config)
        self._defaults = defaults

    def whole_or_none(self, key: str, high: int = 2**26) -> int | None:
        other = _OTHER_NAMES.get(key, key)
        name = key if key in self._inner or other not in self._inner else other
        return integer_or_none(self._inner, name, self._defaults.get(key), 0, high)

    def whole(self, key: str, high: int = 2**26) -> int:
        """The number, its default, or 0 when there is neither."""
        return self.whole_or_none(key, high) or 0

    @property
    def num_layers(self) -> int:
        return self.whole("num_hidden_layers", MAX_LAYERS)

    @property
    def num_kv_heads(self) -> int:
        return self.whole("num_key_value_heads") or self.whole("num_attention_heads")

    @property
    def head_dim(self) -> int:
        return self.whole("head_dim") or self.whole("hidden_size") // max(1, self.whole("num_attention_heads"))

    def is_on(self, key: str, default: bool = False) -> bool:
        """A flag; for those that multimodal models have outside of their text model too, the inner one wins."""
        for source in (self._inner, self._outer):
            if source.get(key) is not None:
                return flag(source, key)
        return default

    def layer_types(self) -> list[str] | None:
        """The list of layer types, one a layer, or None when there is none."""
        if self._inner.get("layer_types") is None:
            return None
        types = strings(self._inner, "layer_types")
        if len(types) != self.num_layers:
            raise invalid("layer_types", f"a list of {len(types)}", f"It must name all {self.num_layers} layers.")
        return types

    def of_layer(self, key: str, index: int) -> Reader | None:
        """What objects_of_layers says of one; None where there are none."""
        found = objects_of_layers(self._inner, key)
        return None if found is None else Reader(found.get(index, {}), {})

    def indices(self, key: str) -> frozenset[int]:
        """A list of layer numbers."""
        value = self._inner.get(key) or []
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise invalid(key, value, "It must be a list of layer numbers.")
        return frozenset(value)

    def vocab_size(self) -> tuple[int, str]:
        """The vocabulary, and a note when it had to be inferred.

        A file that leaves it out means the family's default, unless its own token ids contradict that: then it is the
        least multiple of 64 that holds them, as vocabularies are padded.
        """
        said = self.whole("vocab_size", 2**24)
        if self._inner.get("vocab_size") is not None:
            return said, ""
        ids = [self._inner.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")]
        largest = max((token for token in ids if type(token) is int and token < 2**24), default=0)
        if largest < said:
            return said, ""
        return (largest + 64) // 64 * 64, "config.json has no vocab_size; it was inferred from the token ids."

    def notes(self) -> tuple[str, ...]:
        """What the file describes besides the text model, which alone is counted."""
        towers = [name for key, name in _TOWERS.items() if isinstance(self._outer.get(key), Mapping)]
        return (f"Only the text model is counted, not the {' and '.join(towers)} part.",) if towers else ()


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the text model: `text_config` of a multimodal model, else all of it."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config
