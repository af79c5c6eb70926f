"""config.json to ModelConfig, by the rules of transformers for each model_type; what we do not compute is refused.

Rotary embeddings are rope.py's, windows windows.py's, heads of layers heads.py's, what layers get and share
layer_inputs.py's, delta nets delta.py's and experts experts.py's; the tables are in families.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from runner.errors import BadModelFile, UnsupportedModel
from runner.model_config.delta import parse_delta
from runner.model_config.experts import parse_experts
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
from runner.model_config.heads import parse_full_heads
from runner.model_config.layer_inputs import parse_layer_inputs, parse_shared_caches
from runner.model_config.multimodal import text_model
from runner.model_config.rope import parse_query_growth, parse_ropes, parse_unrotated
from runner.model_config.values import Activation, ModelConfig
from runner.model_config.windows import parse_window

# What transformers calls them: the first in hidden_act, and in Gemma's hidden_activation.
_ACTIVATIONS: Final[Mapping[Activation, tuple[str, ...]]] = {
    "silu": ("silu", "swish"),
    "gelu_tanh": ("gelu_pytorch_tanh",),
}

_UNCOMPRESSED: Final = (
    "These weights are compressed: use the model's BF16 version, which may be a repository of its own."
)


def parse_model_config(config: Mapping[str, Any]) -> ModelConfig:
    """The ModelConfig of a config.json's contents; of a multimodal model, that of its text model.

    Raises UnsupportedModel, naming the key, for what we do not compute, and BadModelFile for values that make no sense.
    """
    config = text_model(config)
    family = _family(config)
    _refuse_unsupported(config, family)

    def whole(key: str, high: int) -> int:
        value = integer_or_none(config, key, family.defaults[key], 1, high)
        if value is None:
            raise invalid(key, value, "It must be a whole number.")
        return value

    num_heads, num_layers = whole("num_attention_heads", 2**12), whole("num_hidden_layers", 2**12)
    vocab_size = whole("vocab_size", 2**24)
    hidden_size, max_positions = whole("hidden_size", 2**18), whole("max_position_embeddings", 2**26)
    head_dim = _head_dim(config, family, hidden_size, num_heads)
    window, sliding_layers = parse_window(config, family, num_layers)
    full_layers = [layer for layer in range(num_layers) if layer not in sliding_layers]
    full_heads = parse_full_heads(config, family, full_layers, num_heads)
    full_head_dim = head_dim if full_heads is None else full_heads.head_dim
    ropes = parse_ropes(config, family, head_dim, full_head_dim, max_positions)
    # Divided by what Granite multiplies branches by, the stream takes them as they are, and norms, which divide by its
    # size, give the same with an eps that is divided by the square.
    branch_factor = _multiplier(config, family, "residual_multiplier")
    embedding_factor = hidden_size**0.5 if family.scales_embeddings else 1.0
    embedding_factor *= _multiplier(config, family, "embedding_multiplier")
    is_biased = family.is_biased if config.get("attention_bias") is None else flag(config, "attention_bias")
    has_bias = family.attention_bias == "key" and is_biased
    return ModelConfig(
        model_type=config["model_type"],
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=whole("intermediate_size", 2**20),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(config, family, num_heads),
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        rms_norm_eps=number(config, "rms_norm_eps", family.rms_norm_eps, 0.0, 1.0) / branch_factor**2,
        rope_theta=ropes["global"].theta,
        rope_scaling=ropes["global"].scaling,
        attention_bias=has_bias or family.attention_bias == "qkv",
        attention_output_bias=has_bias,
        mlp_bias="mlp_bias" in family.own_keys and flag(config, "mlp_bias"),
        qk_norm=family.qk_norm,
        sliding_window=window,
        sliding_layers=sliding_layers,
        tie_word_embeddings=_is_tied(config, family),
        bos_token_id=integer_or_none(config, "bos_token_id", family.defaults["bos_token_id"], 0, 2**24),
        eos_token_ids=_eos_token_ids(config, family),
        experts=parse_experts(config, family, num_layers),
        has_sinks=family.has_sinks,
        rotary_dim=None if ropes["global"].dim == full_head_dim else ropes["global"].dim,
        local_rope_theta=ropes["local"].theta if "local" in ropes else None,
        unrotated_layers=parse_unrotated(config, family, num_layers),
        attention_scale=_attention_scale(config, family, head_dim),
        score_cap=_cap(config, family, "attn_logit_softcapping", family.score_cap),
        query_growth=parse_query_growth(config, family, max_positions),
        activation=family.activation,
        norms=family.norms,
        norm_offset=family.norm_offset,
        is_joined=family.is_joined,
        is_gated=family.is_gated,
        delta=parse_delta(config, family, num_layers),
        embedding_factor=embedding_factor / branch_factor,
        rounds_embedding_factor=family.scales_embeddings,
        logit_factor=1 / _multiplier(config, family, "logits_scaling"),
        logit_cap=_cap(config, family, "final_logit_softcapping", family.logit_cap),
        full_heads=full_heads,
        has_value_norm=family.has_value_norm,
        has_layer_scalars=family.has_layer_scalars,
        layer_inputs=parse_layer_inputs(config, family, vocab_size),
        shared_caches=parse_shared_caches(config, family, num_layers, sliding_layers),
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
    for key in ("hidden_act", "hidden_activation"):
        if key in config and config[key] not in _ACTIVATIONS[family.activation]:
            raise unsupported(key, config[key])
    for key, value in family.fixed.items():
        allowed = value if isinstance(value, tuple) else (value,)
        found = config.get(key, family.defaults.get(key, allowed[0]))
        if found not in allowed and not (value is False and is_off(found)):
            raise unsupported(key, found)
    _refuse_compression(config, family)
    known = COMMON_KEYS | INERT_KEYS | family.own_keys
    for key, value in config.items():
        if (key not in known or (key == "auto_map" and not _is_own_code(value, family))) and not is_off(value):
            raise unsupported(key, value)


def _refuse_compression(config: Mapping[str, Any], family: Family) -> None:
    key, hint = "quantization_config", f"{_UNCOMPRESSED} {OTHER_BACKEND}"
    found = config.get(key)
    if not found:
        return
    if not isinstance(found, Mapping):
        raise unsupported(key, found, hint)
    if found.get("quant_method") not in family.quant_methods:
        raise unsupported(key, found.get("quant_method", "unknown"), hint)
    if found.get("weight_block_size") is not None:  # a matrix of FP8 has one scale
        raise unsupported(f"{key}.weight_block_size", found["weight_block_size"], hint)


def _is_own_code(auto_map: object, family: Family) -> bool:
    """Whether an auto_map names, for the model, the class that transformers has itself by now."""
    name = auto_map.get("AutoModelForCausalLM") if isinstance(auto_map, Mapping) else None
    return isinstance(name, str) and name.rpartition(".")[2] in family.architectures


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


def _is_tied(config: Mapping[str, Any], family: Family) -> bool:
    key = "tie_word_embeddings"
    return family.is_tied if config.get(key) is None else flag(config, key)


def _multiplier(config: Mapping[str, Any], family: Family, key: str) -> float:
    """One of Granite's factors, which other families do not have."""
    return number(config, key, 1.0, 1e-6, 1e6) if key in family.own_keys else 1.0


def _attention_scale(config: Mapping[str, Any], family: Family, head_dim: int) -> float | None:
    """Granite's attention_multiplier, Gemma's 1 / sqrt(query_pre_attn_scalar), by default 256, or the family's."""
    if "attention_multiplier" in family.own_keys:
        scale = _multiplier(config, family, "attention_multiplier")
    elif "query_pre_attn_scalar" in family.own_keys:
        scale = number(config, "query_pre_attn_scalar", 256.0, 1e-6, 1e9) ** -0.5
    else:
        return family.attention_scale
    return None if scale == head_dim**-0.5 else scale


def _cap(config: Mapping[str, Any], family: Family, key: str, default: float | None) -> float | None:
    """What logits or scores stay below; null says that they have no cap."""
    if key not in family.own_keys or config.get(key, default) is None:
        return None
    return number(config, key, default, 1e-3, 1e9)


def _eos_token_ids(config: Mapping[str, Any], family: Family) -> tuple[int, ...]:
    value = config.get("eos_token_id", family.defaults["eos_token_id"])
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= 2**24:
            raise invalid("eos_token_id", value, "It must be a token id, a list of them, or null.")
    return tuple(ids)
