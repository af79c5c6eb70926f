"""What a model is: ModelConfig, read from the config.json that Hugging Face models carry.

Responsible for naming every key that changes the mathematics, for the defaults that transformers gives to missing ones,
and for refusing what no backend of ours computes. It reads no file and knows nothing of tensors, devices or backends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runner.errors import BadModelFile, UnsupportedModel

RopeKind = Literal["linear", "llama3", "yarn"]

_OTHER_BACKEND = "A GGUF of it may run with --backend llamacpp."


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the context of pretraining.

    linear: all frequencies divided by `factor`. llama3 (Llama 3.1): low ones divided, high ones kept, a ramp between
    original_max_position_embeddings / low_freq_factor and / high_freq_factor. yarn (arXiv:2309.00071): a ramp over the
    dimensions between beta_fast and beta_slow rotations; attention_factor multiplies cos and sin.
    """

    kind: RopeKind
    factor: float
    original_max_position_embeddings: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A dense decoder of the Llama family: RMSNorm, rotary positions, grouped-query attention, gated SiLU MLP.

    attention_bias: q, k and v projections; attention_output_bias: the o projection. qk_norm: RMSNorm on each head of
    q and k. sliding_window: a token of the layers `sliding_layers` sees that many tokens, itself included; None when
    every layer sees all. eos_token_ids: every id that config.json names, in its order.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    attention_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_window: int | None
    sliding_layers: tuple[int, ...]
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    def window(self, layer: int) -> int | None:
        """Tokens that a token of this layer sees, itself included; None for all."""
        return self.sliding_window if layer in self.sliding_layers else None


def num_parameters(config: ModelConfig) -> int:
    """Weights of the model, exactly; tied embeddings are counted once."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = hidden * (2 * q_size + 2 * kv_size)
    attention += (q_size + 2 * kv_size) if config.attention_bias else 0
    attention += hidden if config.attention_output_bias else 0
    attention += 2 * config.head_dim if config.qk_norm else 0
    mlp = 3 * hidden * intermediate + (2 * intermediate + hidden if config.mlp_bias else 0)
    embeddings = config.vocab_size * hidden * (1 if config.tie_word_embeddings else 2)
    return embeddings + config.num_layers * (attention + mlp + 2 * hidden) + hidden


@dataclass(frozen=True, kw_only=True)
class _Family:
    """What transformers fixes for a model_type.

    defaults: of keys that are missing; None of a head count means "as many as attention heads", of head_dim
    "hidden_size / num_attention_heads". own_keys: what it reads beside the common keys. attention_bias: "key" reads
    the key for q, k, v and o; "qkv" always has it on q, k, v alone; "none" never has it.
    """

    architectures: tuple[str, ...]
    defaults: Mapping[str, int | None]
    own_keys: frozenset[str]
    attention_bias: Literal["key", "qkv", "none"]
    qk_norm: bool = False


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MISTRAL = _LLAMA | {"intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072}
_QWEN = _LLAMA | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "bos_token_id": None,
    "eos_token_id": None,
}
_QWEN_KEYS = _names("attention_bias use_sliding_window sliding_window max_window_layers layer_types")

_FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(
        architectures=("LlamaForCausalLM", "LLaMAForCausalLM"),
        defaults=_LLAMA,
        own_keys=_names("attention_bias mlp_bias"),
        attention_bias="key",
    ),
    "mistral": _Family(
        architectures=("MistralForCausalLM",),
        defaults=_MISTRAL,
        own_keys=_names("sliding_window"),
        attention_bias="none",
    ),
    "qwen2": _Family(
        architectures=("Qwen2ForCausalLM",),
        defaults=_QWEN,
        own_keys=_QWEN_KEYS,
        attention_bias="qkv",
    ),
    "qwen3": _Family(
        architectures=("Qwen3ForCausalLM",),
        defaults=_QWEN | {"head_dim": 128},
        own_keys=_QWEN_KEYS,
        attention_bias="key",
        qk_norm=True,
    ),
}

SUPPORTED_MODEL_TYPES: tuple[str, ...] = tuple(_FAMILIES)

_COMMON_KEYS = _names(
    "model_type architectures vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads head_dim hidden_act max_position_embeddings rms_norm_eps rope_theta rope_scaling "
    "rope_parameters original_max_position_embeddings partial_rotary_factor tie_word_embeddings bos_token_id "
    "eos_token_id quantization_config"
)

# Keys that do not change the logits of a forward pass, each group with its reason.
_INERT_KEYS = _names(
    # Where the file came from, and how it was stored.
    "_name_or_path _commit_hash name_or_path transformers_version torch_dtype dtype tokenizer_class is_llama_config "
    "unsloth_version unsloth_fixed transformers.js_config model_max_length max_sequence_length "
    # Training alone: initial values, dropout, checkpointing.
    "initializer_range attention_dropout hidden_dropout resid_pdrop embd_pdrop gradient_checkpointing "
    # How the sums are split or cached, which kernel computes them, what is returned beside the logits.
    "use_cache pretraining_tp chunk_size_feed_forward return_dict output_attentions output_hidden_states "
    "attn_implementation _attn_implementation _attn_implementation_autoset _flash_attn_2_enabled "
    # Labels of classification heads; a causal model has none.
    "id2label label2id num_labels problem_type task_specific_params "
    # Padding of batches, and defaults of sampling: the tokenizer's and the sampler's business.
    "pad_token_id sep_token_id do_sample temperature top_k top_p typical_p repetition_penalty max_length min_length "
    "max_new_tokens num_beams num_return_sequences length_penalty early_stopping no_repeat_ngram_size"
)

_ROPE_KEYS = _names(
    "rope_type type rope_theta factor low_freq_factor high_freq_factor original_max_position_embeddings "
    "attention_factor beta_fast beta_slow mscale mscale_all_dim partial_rotary_factor truncate"
)


def parse_model_config(config: Mapping[str, Any]) -> ModelConfig:
    """The ModelConfig of a config.json's contents.

    Raises UnsupportedModel, naming the key, for what we do not compute, and BadModelFile for values that make no sense.
    """
    family = _family(config)
    _refuse_unsupported(config, family)

    def whole(key: str, high: int) -> int:
        value = _integer_or_none(config, key, family.defaults[key], 1, high)
        if value is None:
            raise _bad(key, value, "It must be a whole number.")
        return value

    num_heads, num_layers = whole("num_attention_heads", 2**12), whole("num_hidden_layers", 2**12)
    hidden_size, max_positions = whole("hidden_size", 2**18), whole("max_position_embeddings", 2**26)
    window, sliding_layers = _sliding_window(config, num_layers)
    rope_theta, rope_scaling = _rope(config, max_positions)
    has_bias = family.attention_bias == "key" and _flag(config, "attention_bias")
    return ModelConfig(
        model_type=config["model_type"],
        vocab_size=whole("vocab_size", 2**24),
        hidden_size=hidden_size,
        intermediate_size=whole("intermediate_size", 2**20),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(config, family, num_heads),
        head_dim=_head_dim(config, family, hidden_size, num_heads),
        max_position_embeddings=max_positions,
        rms_norm_eps=_number(config, "rms_norm_eps", 1e-6, 0.0, 1.0),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        attention_bias=has_bias or family.attention_bias == "qkv",
        attention_output_bias=has_bias,
        mlp_bias="mlp_bias" in family.own_keys and _flag(config, "mlp_bias"),
        qk_norm=family.qk_norm,
        sliding_window=window,
        sliding_layers=sliding_layers,
        tie_word_embeddings=_flag(config, "tie_word_embeddings"),
        bos_token_id=_integer_or_none(config, "bos_token_id", family.defaults["bos_token_id"], 0, 2**24),
        eos_token_ids=_eos_token_ids(config, family),
    )


def _family(config: Mapping[str, Any]) -> _Family:
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise BadModelFile(
            "config.json: model_type is missing.", hint="It must be the config.json of a transformers model."
        )
    if model_type not in _FAMILIES:
        raise UnsupportedModel(
            f"{model_type}: model type not supported.",
            hint=f"Supported: {', '.join(SUPPORTED_MODEL_TYPES)}. {_OTHER_BACKEND}",
        )
    return _FAMILIES[model_type]


def _refuse_unsupported(config: Mapping[str, Any], family: _Family) -> None:
    """Raise UnsupportedModel for the first key whose value asks for mathematics that we do not have."""
    architectures = config.get("architectures")
    if architectures and not set(_strings(config, "architectures")) & set(family.architectures):
        raise _unsupported("architectures", ", ".join(architectures))
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise _unsupported("hidden_act", config["hidden_act"])
    if config.get("partial_rotary_factor") not in (None, 1):
        raise _unsupported("partial_rotary_factor", config["partial_rotary_factor"])
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, Mapping) else quantization
        raise _unsupported("quantization_config", method)
    known = _COMMON_KEYS | _INERT_KEYS | family.own_keys
    for key, value in config.items():
        if key not in known and not _is_off(value):
            raise _unsupported(key, value)


def _is_off(value: object) -> bool:
    return value is None or value is False or (isinstance(value, (str, list, dict)) and not value)


def _num_kv_heads(config: Mapping[str, Any], family: _Family, num_heads: int) -> int:
    key = "num_key_value_heads"
    value = _integer_or_none(config, key, family.defaults[key], 1, 2**12) or num_heads
    if num_heads % value:
        raise _bad(key, value, f"It must divide num_attention_heads = {num_heads}.")
    return value


def _head_dim(config: Mapping[str, Any], family: _Family, hidden_size: int, num_heads: int) -> int:
    head_dim = _integer_or_none(config, "head_dim", family.defaults["head_dim"], 1, 2**12)
    if head_dim is None:
        if hidden_size % num_heads:
            raise _bad("hidden_size", hidden_size, f"It must be a multiple of num_attention_heads = {num_heads}.")
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        raise _bad("head_dim", head_dim, "It must be even: rotary positions turn pairs.")
    return head_dim


def _sliding_window(config: Mapping[str, Any], num_layers: int) -> tuple[int | None, tuple[int, ...]]:
    """The window, and the layers that have it, by the rules of each model_type in transformers."""
    model_type = config["model_type"]
    if model_type not in ("mistral", "qwen2", "qwen3"):
        return None, ()
    window = _integer_or_none(config, "sliding_window", 4096)
    if model_type == "mistral":
        return window, tuple(range(num_layers)) if window is not None else ()
    if not _flag(config, "use_sliding_window"):
        window = None
    layers = _sliding_layers(config, num_layers, window)
    return (window, layers) if layers else (None, ())


def _sliding_layers(config: Mapping[str, Any], num_layers: int, window: int | None) -> tuple[int, ...]:
    if config.get("layer_types") is None:
        first = _integer_or_none(config, "max_window_layers", 28, 0, 2**12) or 0
        return tuple(range(first, num_layers)) if window is not None else ()
    layer_types = _strings(config, "layer_types")
    if len(layer_types) != num_layers:
        raise _bad("layer_types", f"a list of {len(layer_types)}", f"It must name all {num_layers} layers.")
    for layer_type in layer_types:
        if layer_type not in ("full_attention", "sliding_attention"):
            raise _unsupported("layer_types", layer_type)
    layers = tuple(i for i, layer_type in enumerate(layer_types) if layer_type == "sliding_attention")
    if layers and window is None:
        raise _bad("layer_types", "sliding_attention", "It needs sliding_window, and use_sliding_window = true.")
    return layers


def _rope(config: Mapping[str, Any], max_position_embeddings: int) -> tuple[float, RopeScaling | None]:
    """rope_theta and the scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`."""
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = config.get(name) or {}
    if not isinstance(rope, Mapping):
        raise _bad(name, rope, "It must be an object.")
    for key, value in rope.items():
        if key not in _ROPE_KEYS and not _is_off(value):
            raise _unsupported(f"{name}.{key}", value)
    if rope.get("partial_rotary_factor") not in (None, 1):
        raise _unsupported(f"{name}.partial_rotary_factor", rope["partial_rotary_factor"])
    if rope.get("truncate") not in (None, True):
        raise _unsupported(f"{name}.truncate", rope["truncate"])
    theta = _number(rope if "rope_theta" in rope else config, "rope_theta", 10000.0, 1.0, 1e15)
    kind: Any = rope.get("rope_type", rope.get("type")) or "default"
    if kind == "default":
        return theta, None
    if kind not in ("linear", "llama3", "yarn"):
        raise _unsupported(f"{name}.rope_type", kind)
    # transformers gives the key outside the object priority over the one inside.
    outer = config if config.get("original_max_position_embeddings") is not None else rope
    original = _integer_or_none(outer, "original_max_position_embeddings", None) or max_position_embeddings
    return theta, _rope_scaling(kind, rope, original, max_position_embeddings)


def _rope_scaling(kind: RopeKind, rope: Mapping[str, Any], original: int, max_position_embeddings: int) -> RopeScaling:
    if kind == "yarn" and rope.get("factor") is None:
        factor = max_position_embeddings / original
    else:
        factor = _number(rope, "factor", None, 1e-3, 1e6)
    if kind == "linear":
        return RopeScaling(kind=kind, factor=factor, original_max_position_embeddings=original)
    if kind == "llama3":
        low = _number(rope, "low_freq_factor", None, 1e-6, 1e6)
        high = _number(rope, "high_freq_factor", None, 1e-6, 1e6)
        if high <= low:
            raise _bad("high_freq_factor", high, f"It must be more than low_freq_factor = {low:g}.")
        return RopeScaling(
            kind=kind,
            factor=factor,
            original_max_position_embeddings=original,
            low_freq_factor=low,
            high_freq_factor=high,
        )
    return RopeScaling(
        kind=kind,
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=_attention_factor(rope, factor),
        beta_fast=_number(rope, "beta_fast", 32.0, 0.0, 1e6) or 32.0,
        beta_slow=_number(rope, "beta_slow", 1.0, 0.0, 1e6) or 1.0,
    )


def _attention_factor(rope: Mapping[str, Any], factor: float) -> float:
    """What YaRN multiplies cos and sin by: given, or from mscale and mscale_all_dim, or 0.1 ln(factor) + 1."""
    if rope.get("attention_factor") is not None:
        return _number(rope, "attention_factor", None, 1e-6, 1e6)

    def scale(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    numerator = _number(rope, "mscale", 0.0, 0.0, 1e6)
    denominator = _number(rope, "mscale_all_dim", 0.0, 0.0, 1e6)
    return scale(numerator) / scale(denominator) if numerator and denominator else scale(1.0)


def _eos_token_ids(config: Mapping[str, Any], family: _Family) -> tuple[int, ...]:
    value = config.get("eos_token_id", family.defaults["eos_token_id"])
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= 2**24:
            raise _bad("eos_token_id", value, "It must be a token id, a list of them, or null.")
    return tuple(ids)


def _integer_or_none(
    source: Mapping[str, Any], key: str, default: int | None, low: int = 1, high: int = 2**26
) -> int | None:
    value = source.get(key, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _bad(key, value, f"It must be a whole number from {low} to {high}.")
    return value


def _number(source: Mapping[str, Any], key: str, default: float | None, low: float, high: float) -> float:
    value = source.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise _bad(key, value, f"It must be a number from {low:g} to {high:g}.")
    return float(value)


def _flag(source: Mapping[str, Any], key: str) -> bool:
    value = source.get(key)
    if value is not None and not isinstance(value, bool):
        raise _bad(key, value, "It must be true or false.")
    return bool(value)


def _strings(source: Mapping[str, Any], key: str) -> list[str]:
    value = source.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _bad(key, value, "It must be a list of names.")
    return value


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _bad(key: str, value: object, hint: str) -> BadModelFile:
    return BadModelFile(f"config.json: {key} = {_shown(value)} is not valid.", hint=hint)


def _unsupported(key: str, value: object) -> UnsupportedModel:
    return UnsupportedModel(f"config.json: {key} = {_shown(value)} is not supported.", hint=_OTHER_BACKEND)
