"""config.json to ModelConfig, by the rules of transformers for each model_type; what we do not compute is refused.

The rotary embedding is rope.py's; the tables are in families.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.errors import BadModelFile, UnsupportedModel
from runner.model_config.families import COMMON_KEYS, FAMILIES, INERT_KEYS, SUPPORTED_MODEL_TYPES, Family
from runner.model_config.fields import (
    OTHER_BACKEND,
    flag,
    integer_or_none,
    invalid,
    is_off,
    number,
    strings,
    unsupported,
)
from runner.model_config.rope import parse_rope
from runner.model_config.values import ModelConfig


def parse_model_config(config: Mapping[str, Any]) -> ModelConfig:
    """The ModelConfig of a config.json's contents.

    Raises UnsupportedModel, naming the key, for what we do not compute, and BadModelFile for values that make no sense.
    """
    family = _family(config)
    _refuse_unsupported(config, family)

    def whole(key: str, high: int) -> int:
        value = integer_or_none(config, key, family.defaults[key], 1, high)
        if value is None:
            raise invalid(key, value, "It must be a whole number.")
        return value

    num_heads, num_layers = whole("num_attention_heads", 2**12), whole("num_hidden_layers", 2**12)
    hidden_size, max_positions = whole("hidden_size", 2**18), whole("max_position_embeddings", 2**26)
    window, sliding_layers = _sliding_window(config, num_layers)
    rope_theta, rope_scaling = parse_rope(config, max_positions)
    has_bias = family.attention_bias == "key" and flag(config, "attention_bias")
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
        rms_norm_eps=number(config, "rms_norm_eps", 1e-6, 0.0, 1.0),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        attention_bias=has_bias or family.attention_bias == "qkv",
        attention_output_bias=has_bias,
        mlp_bias="mlp_bias" in family.own_keys and flag(config, "mlp_bias"),
        qk_norm=family.qk_norm,
        sliding_window=window,
        sliding_layers=sliding_layers,
        tie_word_embeddings=flag(config, "tie_word_embeddings"),
        bos_token_id=integer_or_none(config, "bos_token_id", family.defaults["bos_token_id"], 0, 2**24),
        eos_token_ids=_eos_token_ids(config, family),
    )


def _family(config: Mapping[str, Any]) -> Family:
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise BadModelFile(
            "config.json: model_type is missing.", hint="It must be the config.json of a transformers model."
        )
    if model_type not in FAMILIES:
        raise UnsupportedModel(
            f"{model_type}: model type not supported.",
            hint=f"Supported: {', '.join(SUPPORTED_MODEL_TYPES)}. {OTHER_BACKEND}",
        )
    return FAMILIES[model_type]


def _refuse_unsupported(config: Mapping[str, Any], family: Family) -> None:
    """Raise UnsupportedModel for the first key whose value asks for mathematics that we do not have."""
    architectures = config.get("architectures")
    if architectures and not set(strings(config, "architectures")) & set(family.architectures):
        raise unsupported("architectures", ", ".join(architectures))
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise unsupported("hidden_act", config["hidden_act"])
    if config.get("partial_rotary_factor") not in (None, 1):
        raise unsupported("partial_rotary_factor", config["partial_rotary_factor"])
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, Mapping) else quantization
        raise unsupported("quantization_config", method)
    known = COMMON_KEYS | INERT_KEYS | family.own_keys
    for key, value in config.items():
        if key not in known and not is_off(value):
            raise unsupported(key, value)


def _num_kv_heads(config: Mapping[str, Any], family: Family, num_heads: int) -> int:
    key = "num_key_value_heads"
    value = integer_or_none(config, key, family.defaults[key], 1, 2**12) or num_heads
    if num_heads % value:
        raise invalid(key, value, f"It must divide num_attention_heads = {num_heads}.")
    return value


def _head_dim(config: Mapping[str, Any], family: Family, hidden_size: int, num_heads: int) -> int:
    head_dim = integer_or_none(config, "head_dim", family.defaults["head_dim"], 1, 2**12)
    if head_dim is None:
        if hidden_size % num_heads:
            raise invalid("hidden_size", hidden_size, f"It must be a multiple of num_attention_heads = {num_heads}.")
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        raise invalid("head_dim", head_dim, "It must be even: rotary positions turn pairs.")
    return head_dim


def _sliding_window(config: Mapping[str, Any], num_layers: int) -> tuple[int | None, tuple[int, ...]]:
    """The window, and the layers that have it, by the rules of each model_type in transformers."""
    model_type = config["model_type"]
    if model_type not in ("mistral", "qwen2", "qwen3"):
        return None, ()
    window = integer_or_none(config, "sliding_window", 4096)
    if model_type == "mistral":
        return window, tuple(range(num_layers)) if window is not None else ()
    if not flag(config, "use_sliding_window"):
        window = None
    layers = _sliding_layers(config, num_layers, window)
    return (window, layers) if layers else (None, ())


def _sliding_layers(config: Mapping[str, Any], num_layers: int, window: int | None) -> tuple[int, ...]:
    if config.get("layer_types") is None:
        first = integer_or_none(config, "max_window_layers", 28, 0, 2**12) or 0
        return tuple(range(first, num_layers)) if window is not None else ()
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


def _eos_token_ids(config: Mapping[str, Any], family: Family) -> tuple[int, ...]:
    value = config.get("eos_token_id", family.defaults["eos_token_id"])
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= 2**24:
            raise invalid("eos_token_id", value, "It must be a token id, a list of them, or null.")
    return tuple(ids)
