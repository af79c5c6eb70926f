"""How an architecture's tensors are named, shaped and ordered in a checkpoint and in a GGUF: rules as data.

A rule names one tensor, or one tensor in every layer. Matching a checkpoint against the rules finds every missing and
every extra tensor by name. This file knows nothing of files, types or quantization.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from runner.errors import BadModelFile, UnsupportedModel
from runner.model_config import HeadSizes, ModelConfig

OfAttention = Literal["query_rows", "queries", "keys", "qkv", "head", "heads"]
OfDelta = Literal["channels", "one", "taps", "values", "value_heads", "value_head"]  # of a gated delta net
OfInputs = Literal["layer_input", "layer_inputs", "layer_vocab"]  # inputs of one layer, of all, rows of their table
Size = Literal["vocab", "hidden", "intermediate", "gate_up", "number"] | OfAttention | OfDelta | OfInputs
Condition = Callable[[ModelConfig], bool]
Values = NDArray[np.float32]


def always(_config: ModelConfig) -> bool:
    return True


def untied(config: ModelConfig) -> bool:
    return not config.tie_word_embeddings


def attention_bias(config: ModelConfig) -> bool:
    return config.attention_bias


def attention_output_bias(config: ModelConfig) -> bool:
    return config.attention_output_bias


def mlp_bias(config: ModelConfig) -> bool:
    return config.mlp_bias


def has_sinks(config: ModelConfig) -> bool:
    return config.has_sinks


def has_layer_scalars(config: ModelConfig) -> bool:
    return config.has_layer_scalars


def has_layer_inputs(config: ModelConfig) -> bool:
    return config.layer_inputs is not None


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a GGUF has in place of a checkpoint's values, as a function of them, and the way back."""

    to_gguf: Callable[[Values], Values]
    to_checkpoint: Callable[[Values], Values]


@dataclass(frozen=True, kw_only=True)
class TensorRule:
    """One tensor: its name in the checkpoint, its name in the GGUF, its shape, and when it is there.

    "{layer}" in a name makes it one tensor a layer: linear_attn's are in the layers that have a delta net, self_attn's
    in the others, but no v_proj where values share the projection of keys, and nothing that makes keys and values where
    a layer sees those of another. shape: the checkpoint's; a GGUF has it
    without "one". rotary: the rows are heads of a rotary embedding, whose order depends on the GGUF architecture.
    value_heads: what ends with the value heads of a delta net, which a GGUF has in another order (tiled_order).
    changed: a GGUF has the weights of a norm with norm_offset added ("norm"), and decays, negative, in place of their
    logarithms ("decay"). keeps_f32: small and sensitive (norms, biases, convolutions), never quantized.
    """

    source: str
    target: str
    shape: tuple[Size, ...]
    when: Condition = always
    rotary: bool = False
    value_heads: Literal["none", "rows", "columns"] = "none"
    changed: Literal["never", "norm", "decay"] = "never"

    @property
    def keeps_f32(self) -> bool:
        return len(self.shape) != 2

    @property
    def is_per_layer(self) -> bool:
        return "{layer}" in self.source

    def is_in(self, layer: int, config: ModelConfig) -> bool:
        """Whether that layer has it, which has attention or a delta net."""
        has_delta = config.has_delta(layer)
        if ".v_proj." in self.source and config.heads(layer).shares_projection:
            return False
        if config.shares_cache(layer) and _MAKES_KEYS.search(self.source):
            return False
        return (".self_attn." if has_delta else ".linear_attn.") not in self.source


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A family of models: which tensors it has, and which GGUF architecture computes the same mathematics.

    model_type: as in config.json. gguf_name: llama.cpp's name of the graph. interleaved_rotary: that graph turns
    neighbouring elements of a head as pairs, while checkpoints pair element i with i + head_dim / 2. has_llama3_rope:
    it takes the divisors of Llama 3.1's rope scaling, a tensor. has_beta_slow: it takes YaRN's beta_slow, which is 1
    else. unrotated_every: it does not turn each such layer's; None where it turns all. has_delta_nets: in all layers
    but each n-th, which has attention.
    """

    model_type: str
    gguf_name: str
    interleaved_rotary: bool
    has_llama3_rope: bool = False
    has_beta_slow: bool = True
    unrotated_every: int | None = None
    has_delta_nets: bool = False
    rules: tuple[TensorRule, ...]


@dataclass(frozen=True, kw_only=True)
class PlannedTensor:
    """One tensor to convert: where it comes from, what it is called, its shape, and how it differs in a GGUF.

    gguf_shape: there. row_order, column_order: which of the checkpoint's each of the GGUF's is; None for the same.
    """

    source: str
    target: str
    shape: tuple[int, ...]
    gguf_shape: tuple[int, ...]
    keeps_f32: bool
    row_order: NDArray[np.intp] | None
    column_order: NDArray[np.intp] | None
    change: Change | None


# Buffers that old checkpoints carry and that follow from the configuration.
_DERIVED_SUFFIXES: Final = (".rotary_emb.inv_freq", ".attn.masked_bias")
_MAKES_KEYS: Final = re.compile(r"\.self_attn\.(?:k_proj|v_proj|k_norm)\.")
_LAYER: Final = re.compile(r"model\.layers\.(\d{1,8})\.")


def plan(
    architecture: Architecture, config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[PlannedTensor, ...]:
    """Every tensor that the model needs, in file order, each found in `shapes` (name -> shape of the checkpoint).

    Raises BadModelFile for a missing tensor or one of the wrong shape, UnsupportedModel for one that no rule names.
    """
    planned = tensors_of(architecture, config)
    if missing := [tensor.source for tensor in planned if tensor.source not in shapes]:
        raise BadModelFile(
            f"The checkpoint lacks {_some(missing)}.",
            hint="Fetch the model again; if it is complete, its config.json does not belong to it.",
        )
    for tensor in planned:
        if shapes[tensor.source] != tensor.shape:
            raise BadModelFile(
                f"Tensor {tensor.source!r} has shape {list(shapes[tensor.source])}, not {list(tensor.shape)}.",
                hint="config.json and the weights do not belong together.",
            )
    known = {tensor.source for tensor in planned}
    extra = [name for name in shapes if name not in known and not may_be_left_out(name, config)]
    if extra:
        raise UnsupportedModel(
            f"The checkpoint has tensors that a {config.model_type} model does not: {_some(sorted(extra))}.",
            hint="It is a variant of the architecture that this version does not convert; look for a ready GGUF.",
        )
    return planned


def tensors_of(architecture: Architecture, config: ModelConfig) -> tuple[PlannedTensor, ...]:
    """Every tensor that a model of this configuration has, in the order of a GGUF."""
    kinds = {(config.heads(layer), config.mlp_size(layer)) for layer in range(config.num_layers)}
    sizes_of = {kind: _sizes(config, *kind) for kind in kinds}

    def planned(rule: TensorRule, layer: int | None) -> PlannedTensor:
        sizes = sizes_of[config.heads(layer or 0), config.mlp_size(layer or 0)]
        return PlannedTensor(
            source=rule.source.format(layer=layer),
            target=rule.target.format(layer=layer),
            shape=tuple(sizes[size] for size in rule.shape),
            gguf_shape=tuple(sizes[size] for size in rule.shape if size != "one"),
            keeps_f32=rule.keeps_f32,
            row_order=_row_order(rule, architecture, config, sizes),
            column_order=_value_heads(rule.shape[-1], config, sizes) if rule.value_heads == "columns" else None,
            change=_change(rule, config),
        )

    rules = [rule for rule in architecture.rules if rule.when(config)]
    whole = [planned(rule, None) for rule in rules if not rule.is_per_layer]
    of_layers = [rule for rule in rules if rule.is_per_layer]
    layers = [
        planned(rule, layer) for layer in range(config.num_layers) for rule in of_layers if rule.is_in(layer, config)
    ]
    return (*whole, *layers)


def _sizes(config: ModelConfig, heads: HeadSizes, intermediate: int) -> dict[Size, int]:
    """Of the tensors outside of layers, and of those in a layer with such heads and such an MLP."""
    queries, keys = config.num_heads * heads.head_dim, heads.keys_size
    found: dict[Size, int] = {
        "vocab": config.vocab_size,
        "hidden": config.hidden_size,
        "intermediate": intermediate,
        "gate_up": 2 * intermediate,
        "qkv": queries + 2 * keys,
        "query_rows": 2 * queries if config.is_gated else queries,
        "queries": queries,
        "keys": keys,
        "head": heads.head_dim,
        "heads": config.num_heads,
        "number": 1,
    }
    if (inputs := config.layer_inputs) is not None:
        found |= {
            "layer_input": inputs.size,
            "layer_inputs": config.num_layers * inputs.size,
            "layer_vocab": inputs.vocab_size,
        }
    if (delta := config.delta) is not None:
        found |= {
            "channels": delta.channels,
            "one": 1,
            "taps": delta.taps,
            "values": delta.values_size,
            "value_heads": delta.value_heads,
            "value_head": delta.value_dim,
        }
    return found


def _row_order(
    rule: TensorRule, architecture: Architecture, config: ModelConfig, sizes: Mapping[Size, int]
) -> NDArray[np.intp] | None:
    if rule.value_heads == "rows":
        return _value_heads(rule.shape[0], config, sizes)
    if rule.rotary and architecture.interleaved_rotary:
        return interleaved_order(sizes[rule.shape[0]] // sizes["head"], sizes["head"])
    return None


def _value_heads(size: Size, config: ModelConfig, sizes: Mapping[Size, int]) -> NDArray[np.intp] | None:
    """The order of a dimension that ends with the value heads, of an element each or of value_dim."""
    delta = config.delta
    if delta is None or delta.value_heads == delta.key_heads:
        return None
    head_size = 1 if size == "value_heads" else delta.value_dim
    before = sizes[size] - delta.value_heads * head_size
    tiled = tiled_order(delta.key_heads, delta.value_heads, head_size)
    return np.concatenate([np.arange(before, dtype=np.intp), before + tiled])


def _change(rule: TensorRule, config: ModelConfig) -> Change | None:
    offset = np.float32(config.norm_offset)
    if rule.changed == "norm" and offset:
        return Change(to_gguf=lambda gain: gain + offset, to_checkpoint=lambda gain: gain - offset)
    if rule.changed == "decay":
        return Change(to_gguf=lambda log: -np.exp(log), to_checkpoint=lambda decay: np.log(-decay))
    return None


def may_be_left_out(name: str, config: ModelConfig) -> bool:
    """Whether tensor `name` may be left out: a rotary table, the copy of tied embeddings, or what would make keys and
    values of a layer that sees those of another, which Gemma 4's small models are published with."""
    if name.endswith(_DERIVED_SUFFIXES) or (config.tie_word_embeddings and name == "lm_head.weight"):
        return True
    layer = _LAYER.match(name) if _MAKES_KEYS.search(name) else None
    return layer is not None and config.shares_cache(int(layer[1]))


def interleaved_order(num_heads: int, head_dim: int) -> NDArray[np.intp]:
    """Row indices that bring a projection's heads from halves (i, i + D/2) to neighbouring pairs (2i, 2i + 1)."""
    rows = np.arange(num_heads * head_dim, dtype=np.intp).reshape(num_heads, 2, head_dim // 2)
    return rows.swapaxes(1, 2).reshape(-1)


def tiled_order(key_heads: int, value_heads: int, head_size: int) -> NDArray[np.intp]:
    """Indices that bring value heads from the order of checkpoints, all of the first key head first, to llama.cpp's:
    the first of every key head, then the second of every one."""
    elements = np.arange(value_heads * head_size, dtype=np.intp)
    return elements.reshape(key_heads, -1, head_size).swapaxes(0, 1).reshape(-1)


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
