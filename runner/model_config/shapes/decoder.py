"""The families that one decoder describes: rotary attention and a gated MLP or experts, told apart by a table.

A row holds what transformers fixes for a model_type: the defaults of its keys, where it has biases and norms, which
layers see a window. It counts; it computes nothing with weights, so it knows more families than any backend runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runner.model_config.shape import LayerCache, Shape
from runner.model_config.shapes.blocks import Layer, Mlp, attention, gated_mlp, routed_experts, totals
from runner.model_config.shapes.reader import Reader


@dataclass(frozen=True, kw_only=True)
class Experts:
    """How a family spells its experts: the keys of their number and of their width; has_bias: router and experts."""

    count: str
    width: str
    has_bias: bool = False


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What transformers fixes for a model_type.

    bias: of the attention: "key" reads attention_bias for q, k, v and o, "qkv-key" for q, k and v alone, "qkv" always
    has it there. qk_norm: a norm on each head of q and k, on whole rows of them, or none. norms: of hidden size, a
    layer. window: which layers see `sliding_window` tokens: "all" of them; "upper", those that use_sliding_window and
    max_window_layers or layer_types say; "pattern", all but each window_every-th, or what layer_types says.
    """

    defaults: Mapping[str, int | None]
    bias: Literal["none", "key", "qkv-key", "qkv"] = "none"
    is_biased: bool = False
    has_mlp_bias: bool = False
    qk_norm: Literal["none", "head", "row"] = "none"
    has_sinks: bool = False
    norms: int = 2
    window: Literal["none", "all", "upper", "pattern"] = "none"
    window_every: int = 2
    experts: Experts | None = None
    is_tied: bool = False
    counts_mtp: bool = False


def _sizes(
    vocab: int,
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    kv: int | None,
    context: int,
    **more: int | None,
) -> dict[str, int | None]:
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "max_position_embeddings": context,
        **more,
    }


_QWEN = _sizes(151936, 4096, 22016, 32, 32, 32, 32768, sliding_window=4096, max_window_layers=28)
_GEMMA = _sizes(262208, 2304, 9216, 26, 8, 4, 131072, head_dim=256, sliding_window=4096)
_QWEN_MOE = _sizes(151936, 2048, 6144, 24, 32, 4, 32768, sliding_window=4096, max_window_layers=28, num_experts=128)
_QWEN_MOE |= {"num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1, "head_dim": None}
_GPT_OSS = _sizes(201088, 2880, 2880, 36, 64, 8, 131072, head_dim=64, sliding_window=128, num_local_experts=128)
_GPT_OSS |= {"num_experts_per_tok": 4}
_MIXTRAL = _sizes(32000, 4096, 14336, 32, 32, 8, 131072, num_local_experts=8, num_experts_per_tok=2)
_LLAMA = _sizes(32000, 4096, 11008, 32, 32, None, 2048)

DECODERS: Mapping[str, Traits] = {
    "llama": Traits(defaults=_LLAMA, bias="key", has_mlp_bias=True),
    "granite": Traits(defaults=_LLAMA, bias="key", has_mlp_bias=True),
    "smollm3": Traits(
        defaults=_sizes(128256, 2048, 11008, 36, 16, 4, 32768), bias="key", has_mlp_bias=True, is_tied=True
    ),
    "olmo2": Traits(defaults=_LLAMA | {"vocab_size": 50304}, bias="key", qk_norm="row"),
    "olmo3": Traits(
        defaults=_LLAMA | {"vocab_size": 50304, "sliding_window": 4096},
        bias="key",
        qk_norm="row",
        window="pattern",
        window_every=4,
    ),
    "mistral": Traits(defaults=_sizes(32000, 4096, 14336, 32, 32, 8, 131072, sliding_window=4096), window="all"),
    "ministral3": Traits(defaults=_sizes(131072, 4096, 14336, 34, 32, 8, 262144, head_dim=128), window="all"),
    "mixtral": Traits(
        defaults=_MIXTRAL, window="all", experts=Experts(count="num_local_experts", width="intermediate_size")
    ),
    "qwen2": Traits(defaults=_QWEN, bias="qkv", window="upper"),
    "qwen3": Traits(defaults=_QWEN | {"head_dim": 128}, bias="key", qk_norm="head", window="upper"),
    "qwen3_moe": Traits(
        defaults=_QWEN_MOE,
        bias="key",
        qk_norm="head",
        window="upper",
        experts=Experts(count="num_experts", width="moe_intermediate_size"),
    ),
    "mimo": Traits(defaults=_QWEN, bias="qkv-key", window="upper", counts_mtp=True),
    "phi3": Traits(defaults=_sizes(32064, 3072, 8192, 32, 32, None, 4096), window="all"),
    "gpt_oss": Traits(
        defaults=_GPT_OSS,
        bias="key",
        is_biased=True,
        has_sinks=True,
        window="pattern",
        experts=Experts(count="num_local_experts", width="intermediate_size", has_bias=True),
    ),
    "gemma2": Traits(
        defaults=_GEMMA | {"vocab_size": 256000, "max_position_embeddings": 8192},
        bias="key",
        norms=4,
        window="pattern",
        is_tied=True,
    ),
    "gemma3_text": Traits(
        defaults=_GEMMA, bias="key", qk_norm="head", norms=4, window="pattern", window_every=6, is_tied=True
    ),
}


def decoder_shape(model_type: str, config: Mapping[str, Any]) -> Shape:
    """The Shape of a config.json of one of DECODERS. Raises BadModelFile for values that make no sense."""
    traits = DECODERS[model_type]
    read = Reader(config, traits.defaults)
    hidden = read.whole("hidden_size", 2**18)
    windows = _windows(read, traits)
    layers = [_layer(read, traits, index, window) for index, window in enumerate(windows)]
    vocab, inferred = read.vocab_size()
    is_tied = read.is_on("tie_word_embeddings", traits.is_tied)
    mtp, mtp_note = _mtp(read, traits, layers)
    weights, active = totals(layers, vocab * hidden * (1 if is_tied else 2) + hidden + mtp)
    return Shape(
        architecture=model_type,
        num_parameters=weights,
        num_active_parameters=active - mtp,
        context_length=read.whole("max_position_embeddings"),
        hidden_size=hidden,
        vocab_size=vocab,
        caches=tuple(layer.cache for layer in layers),
        notes=tuple(note for note in (*read.notes(), inferred, mtp_note) if note),
    )


def _layer(read: Reader, traits: Traits, index: int, window: int) -> Layer:
    hidden, heads, kv_heads, head_dim = (
        read.whole("hidden_size", 2**18),
        read.whole("num_attention_heads"),
        read.num_kv_heads,
        read.head_dim,
    )
    q_size, kv_size = heads * head_dim, kv_heads * head_dim
    weights = attention(hidden, heads, kv_heads, head_dim) + traits.norms * hidden
    has_bias = traits.bias == "qkv" or (traits.bias != "none" and read.is_on("attention_bias", traits.is_biased))
    weights += (q_size + 2 * kv_size if has_bias else 0) + (hidden if has_bias and traits.bias == "key" else 0)
    weights += {"none": 0, "head": 2 * head_dim, "row": q_size + kv_size}[traits.qk_norm]
    weights += heads if traits.has_sinks else 0
    mlp = _mlp(read, traits, index)
    kept = LayerCache(kind="window" if window else "full", width=2 * kv_size, window=window)
    return Layer(weights=weights + mlp.weights, idle=mlp.idle, cache=kept)


def _mlp(read: Reader, traits: Traits, index: int) -> Mlp:
    hidden = read.whole("hidden_size", 2**18)
    keys, count = traits.experts, read.whole(traits.experts.count, 2**16) if traits.experts else 0
    is_dense = index in read.indices("mlp_only_layers") or (index + 1) % max(1, read.whole("decoder_sparse_step"))
    if keys is None or not count or is_dense:
        has_bias = traits.has_mlp_bias and read.is_on("mlp_bias")
        return Mlp(weights=gated_mlp(hidden, read.whole("intermediate_size"), has_bias=has_bias))
    return routed_experts(
        router=count * (hidden + keys.has_bias),
        expert=gated_mlp(hidden, read.whole(keys.width), has_bias=keys.has_bias),
        count=count,
        used=read.whole("num_experts_per_tok"),
    )


def _windows(read: Reader, traits: Traits) -> list[int]:
    """The window of each layer in tokens, 0 where it sees all of them."""
    n_layers, window = read.num_layers, read.whole("sliding_window")
    is_used = window and traits.window != "none" and (traits.window != "upper" or read.is_on("use_sliding_window"))
    if not is_used:
        return [0] * n_layers
    types = None if traits.window == "all" else read.layer_types()
    if types is not None:
        return [window if kind == "sliding_attention" else 0 for kind in types]
    if traits.window == "upper":
        first = read.whole("max_window_layers")
        return [window if index >= first else 0 for index in range(n_layers)]
    if traits.window == "all":
        return [window] * n_layers
    every = read.whole("sliding_window_pattern") or traits.window_every
    return [window if (index + 1) % every else 0 for index in range(n_layers)]


def _mtp(read: Reader, traits: Traits, layers: list[Layer]) -> tuple[int, str]:
    """Weights of the layers that predict further tokens, where the maker's own figure counts them."""
    count = read.whole("num_nextn_predict_layers", 64) if traits.counts_mtp else 0
    if not count or not layers:
        return 0, ""
    hidden = read.whole("hidden_size", 2**18)
    # One more layer each, the projection of [hidden state, embedding] to one of them, and three norms.
    weights = count * (layers[-1].weights + 2 * hidden * hidden + 3 * hidden)
    return weights, f"{count} layer for multi-token prediction is counted." if count == 1 else (
        f"{count} layers for multi-token prediction are counted."
    )
