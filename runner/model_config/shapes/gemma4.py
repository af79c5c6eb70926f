"""Gemma 4: windowed and full layers with heads of their own, shared KV, inputs by layer, experts beside an MLP.

As Gemma4TextConfig and Gemma4TextModel of transformers have it; it counts and computes nothing with weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from runner.model_config.shape import LayerCache, Shape
from runner.model_config.shapes.blocks import Layer, Mlp, gated_mlp, routed_experts, totals
from runner.model_config.shapes.reader import Reader

_DEFAULTS: Final[Mapping[str, int | None]] = {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "max_position_embeddings": 131072,
    "sliding_window": 512,
    "vocab_size_per_layer_input": 262144,
    "hidden_size_per_layer_input": 256,
}
_FULL_EVERY: Final = 6


def gemma4_shape(_model_type: str, config: Mapping[str, Any]) -> Shape:
    """The Shape of a Gemma 4 config.json. Raises BadModelFile for values that make no sense."""
    read = Reader(config, _DEFAULTS)
    hidden, n_layers = read.whole("hidden_size", 2**18), read.num_layers
    types = read.layer_types() or [
        "sliding_attention" if (index + 1) % _FULL_EVERY else "full_attention" for index in range(n_layers)
    ]
    first_shared = n_layers - read.whole("num_kv_shared_layers")
    layers = [
        _layer(read, index, is_full=kind == "full_attention" or index == n_layers - 1, is_shared=index >= first_shared)
        for index, kind in enumerate(types)
    ]
    vocab, inferred = read.vocab_size()
    rest = vocab * hidden * (1 if read.is_on("tie_word_embeddings", True) else 2) + hidden
    own = read.whole("hidden_size_per_layer_input")
    table = read.whole("vocab_size_per_layer_input") * n_layers * own  # a token reads one row of it
    if own:
        rest += table + hidden * n_layers * own + own
    weights, active = totals(layers, rest)
    return Shape(
        architecture="gemma4",
        num_parameters=weights,
        num_active_parameters=active - table,
        context_length=read.whole("max_position_embeddings"),
        hidden_size=hidden,
        vocab_size=vocab,
        caches=tuple(layer.cache for layer in layers),
        notes=tuple(note for note in (*read.notes(), inferred) if note),
    )


def _layer(read: Reader, index: int, *, is_full: bool, is_shared: bool) -> Layer:
    hidden, heads = read.whole("hidden_size", 2**18), read.whole("num_attention_heads")
    is_key_value = is_full and read.is_on("attention_k_eq_v")  # values are the keys: there is no v matrix
    head_dim, kv_heads = read.whole("head_dim"), read.num_kv_heads
    own_keys = read.of_layer("per_layer_config", index)
    if own_keys is not None:  # as transformers 5.24 writes it
        head_dim, kv_heads = own_keys.whole("head_dim") or head_dim, own_keys.whole("num_key_value_heads") or kv_heads
    elif is_full:
        head_dim = read.whole("global_head_dim")
        kv_heads = (read.whole("num_global_key_value_heads") if is_key_value else 0) or kv_heads
    n_matrices = 0 if is_shared else 1 if is_key_value else 2
    weights = 2 * hidden * heads * head_dim + head_dim + 4 * hidden
    weights += n_matrices * hidden * kv_heads * head_dim + (0 if is_shared else head_dim)
    if read.is_on("attention_bias"):
        weights += heads * head_dim + hidden + n_matrices * kv_heads * head_dim
    if own := read.whole("hidden_size_per_layer_input"):
        weights += 2 * hidden * own + hidden
    width, window = 2 * kv_heads * head_dim, 0 if is_full else read.whole("sliding_window")
    if is_shared:
        kept = LayerCache(kind="shared", window=window)
    else:
        kept = LayerCache(kind="full" if is_full else "window", width=width, window=window)
    mlp = _mlp(read, is_shared=is_shared)
    return Layer(weights=weights + mlp.weights, idle=mlp.idle, cache=kept)


def _mlp(read: Reader, *, is_shared: bool) -> Mlp:
    hidden = read.whole("hidden_size", 2**18)
    is_double = is_shared and read.is_on("use_double_wide_mlp")
    dense = gated_mlp(hidden, read.whole("intermediate_size") * (2 if is_double else 1))
    count = read.whole("num_experts", 2**16) if read.is_on("enable_moe_block") else 0
    if not count:
        return Mlp(weights=dense)
    return routed_experts(
        router=count * hidden + hidden + count + 3 * hidden,  # the matrix, its two scales, three more norms
        expert=gated_mlp(hidden, read.whole("moe_intermediate_size")),
        count=count,
        used=read.whole("top_k_experts"),
        shared=dense,
    )
