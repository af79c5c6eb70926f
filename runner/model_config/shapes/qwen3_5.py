"""Qwen3.5, dense and with experts: gated delta net in most layers, gated attention in every fourth.

As Qwen3_5TextModel and Qwen3_5MoeTextModel of transformers have it; it counts and computes nothing with weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from runner.model_config.shape import LayerCache, Shape
from runner.model_config.shapes.blocks import Layer, Mlp, gated_mlp, routed_experts, totals
from runner.model_config.shapes.reader import Reader

_DENSE: Final[Mapping[str, int | None]] = {
    "vocab_size": 248320,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "full_attention_interval": 4,
}
_MOE: Final[Mapping[str, int | None]] = {
    **_DENSE,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 8,
    "num_experts": 256,
}


def qwen3_5_shape(model_type: str, config: Mapping[str, Any]) -> Shape:
    """The Shape of a Qwen3.5 config.json. Raises BadModelFile for values that make no sense."""
    has_experts = "moe" in model_type.split("_")
    read = Reader(config, _MOE if has_experts else _DENSE)
    hidden, every = read.whole("hidden_size", 2**18), max(1, read.whole("full_attention_interval"))
    types = read.layer_types() or [
        "linear_attention" if (index + 1) % every else "full_attention" for index in range(read.num_layers)
    ]
    mlp = _experts(read) if has_experts else Mlp(weights=gated_mlp(hidden, read.whole("intermediate_size")))
    layers = [_layer(read, mlp, is_linear=kind == "linear_attention") for kind in types]
    vocab, inferred = read.vocab_size()
    is_tied = read.is_on("tie_word_embeddings")
    weights, active = totals(layers, vocab * hidden * (1 if is_tied else 2) + hidden)
    mtp = "The layer for multi-token prediction is not counted." if read.whole("mtp_num_hidden_layers") else ""
    return Shape(
        architecture=model_type,
        num_parameters=weights,
        num_active_parameters=active,
        context_length=read.whole("max_position_embeddings"),
        hidden_size=hidden,
        vocab_size=vocab,
        caches=tuple(layer.cache for layer in layers),
        notes=tuple(note for note in (*read.notes(), inferred, mtp) if note),
    )


def _experts(read: Reader) -> Mlp:
    hidden, count = read.whole("hidden_size", 2**18), read.whole("num_experts", 2**16)
    return routed_experts(
        router=count * hidden,
        expert=gated_mlp(hidden, read.whole("moe_intermediate_size")),
        count=count,
        used=read.whole("num_experts_per_tok"),
        shared=gated_mlp(hidden, read.whole("shared_expert_intermediate_size")) + hidden,  # and its gate
    )


def _layer(read: Reader, mlp: Mlp, *, is_linear: bool) -> Layer:
    weights, kept = _linear_attention(read) if is_linear else _attention(read)
    return Layer(weights=weights + mlp.weights + 2 * read.whole("hidden_size", 2**18), idle=mlp.idle, cache=kept)


def _attention(read: Reader) -> tuple[int, LayerCache]:
    """q is twice as wide as usual: one half gates the output."""
    hidden, head_dim, kv_heads = read.whole("hidden_size", 2**18), read.head_dim, read.num_kv_heads
    q_size, kv_size = read.whole("num_attention_heads") * head_dim, kv_heads * head_dim
    weights = hidden * (3 * q_size + 2 * kv_size) + 2 * head_dim
    weights += 2 * q_size + 2 * kv_size + hidden if read.is_on("attention_bias") else 0
    return weights, LayerCache(kind="full", width=2 * kv_size)


def _linear_attention(read: Reader) -> tuple[int, LayerCache]:
    """q, k, v and z, two gates a head, a short convolution; the state is a matrix a head and the convolution's past."""
    hidden, kernel = read.whole("hidden_size", 2**18), read.whole("linear_conv_kernel_dim")
    n_values, key_dim = read.whole("linear_num_value_heads"), read.whole("linear_key_head_dim")
    value_dim = read.whole("linear_value_head_dim")
    keys, values = read.whole("linear_num_key_heads") * key_dim, n_values * value_dim
    convolved = 2 * keys + values
    weights = hidden * (convolved + values + 2 * n_values) + values * hidden
    weights += convolved * kernel + 2 * n_values + value_dim
    past = max(0, kernel - 1) * convolved
    return weights, LayerCache(kind="state", state_size=n_values * key_dim * value_dim, past_size=past)
