"""What an EAGLE-3 head is: Eagle3Config, from the config.json that public checkpoints carry, and back.

Two layouts occur: a Llama config with keys of its own (SafeAILab, SpecForge, Model Optimizer), and that of the
`speculators` library, where the decoder layer has an object of its own. It reads no file and knows no tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from runner.errors import UnsupportedModel
from runner.model_config import ModelConfig, parse_model_config
from runner.model_config.fields import flag, integer_or_none, invalid, is_off, strings


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_HINT: Final = "Supported are EAGLE-3 heads of one decoder layer with the shape of a Llama or Qwen layer."
_MOST_CAPTURED: Final = 16
_LAYER_IDS: Final = "eagle_aux_hidden_state_layer_ids"
_FLAGS: Final = ("norm_output", "fc_norm", "norm_before_residual", "norm_before_fc")
_OWN_KEYS: Final = _names(
    f"{' '.join(_FLAGS)} {_LAYER_IDS} architectures draft_vocab_size target_hidden_size num_aux_hidden_states "
    "eagle_config use_aux_norm target_model_type"
)
# What the speculators library keeps beside transformer_layer_config; none of it changes what the head computes.
_SPECULATORS_KEYS: Final = _names(
    "speculators_model_type speculators_version speculators_config transformer_layer_config auto_map "
    "has_no_defaults_at_init embed_requires_grad enable_sp_ulysses transformers_version torch_dtype dtype "
    "tie_word_embeddings model_type"
)
_ARCHITECTURES: Final = _names(
    "LlamaForCausalLM LlamaForCausalLMEagle3 Eagle3LlamaForCausalLM Eagle3Speculator Eagle3DraftModel "
    "Qwen3ForCausalLM Qwen3ForCausalLMEagle3 Eagle3Qwen3ForCausalLM"
)


@dataclass(frozen=True, kw_only=True)
class Eagle3Config:
    """An EAGLE-3 head (arXiv:2503.01840).

    layer: the shape of its decoder layer; its vocab_size is the target's. draft_vocab_size: of its output.
    target_hidden_size: of each captured state. capture_layers: after how many of the target's layers the residual
    stream is captured, one number a state; () where the checkpoint leaves it to the default (`captured`).
    num_captured: how many states.

    norm_output, fc_norm: the two changes of "Attention Drift" (arXiv:2605.09992): the state that is fed back is the
    normed one; and each captured state has an RMSNorm of its own before they are joined. norm_before_fc: one RMSNorm
    over the joined ones. norm_before_residual: the layer's residual is the normed state.
    """

    layer: ModelConfig
    draft_vocab_size: int
    target_hidden_size: int
    capture_layers: tuple[int, ...] = ()
    num_captured: int = 3
    norm_output: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False

    @property
    def hidden_size(self) -> int:
        return self.layer.hidden_size

    def captured(self, num_layers: int) -> tuple[int, ...]:
        """The layers to capture of a target with so many. Raises UnsupportedModel where it has too few."""
        layers = self.capture_layers or (2, num_layers // 2, num_layers - 3)
        if len(layers) != self.num_captured or not all(0 <= layer <= num_layers for layer in layers):
            raise UnsupportedModel(
                f"The EAGLE-3 head reads the hidden states after the layers {', '.join(map(str, layers))}, and the "
                f"model has {num_layers} layers.",
                hint="Use the head that was trained for this model.",
            )
        return layers


def eagle3_for(
    target: ModelConfig,
    *,
    draft_vocab_size: int,
    norm_output: bool,
    fc_norm: bool,
    capture_layers: tuple[int, ...] | None = None,
) -> Eagle3Config:
    """A head to train for `target`: a layer of the target's shape, without rotary scaling."""
    layers = default_capture(target.num_layers) if capture_layers is None else capture_layers
    layer = {
        "model_type": "llama",
        "vocab_size": target.vocab_size,
        "hidden_size": target.hidden_size,
        "intermediate_size": target.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": target.num_heads,
        "num_key_value_heads": target.num_kv_heads,
        "head_dim": target.head_dim,
        "max_position_embeddings": target.max_position_embeddings,
        "rms_norm_eps": target.rms_norm_eps,
        "rope_theta": target.rope_theta,
        "bos_token_id": target.bos_token_id,
        "eos_token_id": list(target.eos_token_ids),
    }
    return Eagle3Config(
        layer=parse_model_config(layer),
        draft_vocab_size=draft_vocab_size,
        target_hidden_size=target.hidden_size,
        capture_layers=layers,
        num_captured=len(layers),
        norm_output=norm_output,
        fc_norm=fc_norm,
    )


def default_capture(num_layers: int) -> tuple[int, ...]:
    """Low, middle and high, as EAGLE-3 takes them; spread over the few layers of a small model."""
    low, middle, high = 2, num_layers // 2, num_layers - 3
    return (low, middle, high) if low < middle < high else (1, num_layers // 2, num_layers - 1)


def parse_eagle3_config(config: Mapping[str, Any]) -> Eagle3Config:
    """The Eagle3Config of a config.json's contents.

    Raises UnsupportedModel, naming the key, for what is no EAGLE-3 head or computes something else, and BadModelFile
    for values that make no sense.
    """
    _refuse_other_architectures(config)
    layer = _layer_config(config)
    layers = _capture_layers(config)
    count = integer_or_none(config, "num_aux_hidden_states", None, 1, _MOST_CAPTURED) or len(layers) or 3
    if layers and count != len(layers):
        raise invalid("num_aux_hidden_states", count, f"{_LAYER_IDS} names {len(layers)}.")
    if layer.num_layers != 1:
        raise _unsupported("num_hidden_layers", layer.num_layers)
    if layer.tie_word_embeddings and "transformer_layer_config" not in config:
        raise _unsupported("tie_word_embeddings", True)
    vocab_size = integer_or_none(config, "draft_vocab_size", layer.vocab_size, 1, layer.vocab_size)
    target_size = integer_or_none(config, "target_hidden_size", layer.hidden_size, 1, 2**18)
    return Eagle3Config(
        layer=layer,
        draft_vocab_size=layer.vocab_size if vocab_size is None else vocab_size,
        target_hidden_size=layer.hidden_size if target_size is None else target_size,
        capture_layers=layers,
        num_captured=count,
        norm_output=flag(config, "norm_output"),
        fc_norm=flag(config, "fc_norm") or flag(config, "use_aux_norm"),
        norm_before_fc=flag(config, "norm_before_fc"),
        norm_before_residual=flag(config, "norm_before_residual"),
    )


def eagle3_json(config: Eagle3Config) -> dict[str, Any]:
    """What config.json says of a head. Raises UnsupportedModel for a scaled rotary embedding: none is written.

    The layers are there in both ways: vLLM counts the layers before a state, SGLang names the last of them.
    """
    layer = config.layer
    if layer.rope_scaling is not None:
        raise UnsupportedModel(f"A head with {layer.rope_scaling.kind} rotary scaling cannot be written.", hint=_HINT)
    values: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": layer.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "hidden_size": layer.hidden_size,
        "target_hidden_size": config.target_hidden_size,
        "intermediate_size": layer.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": layer.num_heads,
        "num_key_value_heads": layer.num_kv_heads,
        "head_dim": layer.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": layer.max_position_embeddings,
        "rms_norm_eps": layer.rms_norm_eps,
        "rope_theta": layer.rope_theta,
        "attention_bias": layer.attention_bias,
        "tie_word_embeddings": False,
        "bos_token_id": layer.bos_token_id,
        "eos_token_id": list(layer.eos_token_ids),
        "num_aux_hidden_states": config.num_captured,
        **{name: getattr(config, name) for name in _FLAGS},
    }
    if config.capture_layers:
        values[_LAYER_IDS] = list(config.capture_layers)
        values["eagle_config"] = {_LAYER_IDS: [layer - 1 for layer in config.capture_layers]}
    return values


def _refuse_other_architectures(config: Mapping[str, Any]) -> None:
    kind = config.get("speculators_model_type")
    if kind not in (None, "eagle3"):
        raise _unsupported("speculators_model_type", kind)
    names = strings(config, "architectures") if config.get("architectures") else []
    if other := [name for name in names if name not in _ARCHITECTURES]:
        raise _unsupported("architectures", other[0])


def _layer_config(config: Mapping[str, Any]) -> ModelConfig:
    """The decoder layer's own part of the config, read as a model of one layer."""
    layer = config.get("transformer_layer_config")
    if layer is not None:
        for key, value in config.items():
            if key not in _OWN_KEYS | _SPECULATORS_KEYS and not is_off(value):
                raise _unsupported(key, value)
        if not isinstance(layer, Mapping):
            raise invalid("transformer_layer_config", layer, "It must be an object.")
        own = {**layer, "num_hidden_layers": layer.get("num_hidden_layers", 1)}
    else:
        own = {key: value for key, value in config.items() if key not in _OWN_KEYS}
    own.pop("architectures", None)
    if own.get("model_type") not in ("llama", "qwen2", "qwen3"):
        raise _unsupported("model_type", own.get("model_type"))
    if not own.get("use_sliding_window") and not own.get("sliding_window"):
        # Copied from a Qwen target; they mean nothing without a window.
        for key in ("max_window_layers", "layer_types"):
            own.pop(key, None)
    return parse_model_config(own)


def _capture_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
    """After how many layers states are captured: that is what the key means where it stands on its own (vLLM); in
    eagle_config it names the last of them (SGLang, Model Optimizer)."""
    inner = config.get("eagle_config") or {}
    if not isinstance(inner, Mapping):
        raise invalid("eagle_config", inner, "It must be an object.")
    if inner.get("use_aux_hidden_state") is False:
        raise _unsupported("eagle_config.use_aux_hidden_state", False)
    said, more = (config.get(_LAYER_IDS), 0) if config.get(_LAYER_IDS) else (inner.get(_LAYER_IDS), 1)
    if not said:
        return ()
    if not isinstance(said, list) or not all(type(layer) is int and -1 <= layer < 2**12 for layer in said):
        raise invalid(_LAYER_IDS, said, "It must be a list of layers.")
    return tuple(layer + more for layer in said)


def _unsupported(key: str, value: object) -> UnsupportedModel:
    return UnsupportedModel(f"config.json of the head: {key} = {value} is not supported.", hint=_HINT)
