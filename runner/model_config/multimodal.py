"""Takes the text model out of the config.json of a multimodal one, as if it stood alone.

What the vision and the audio part compute is nobody's business here: neither images nor sounds ever come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from runner.model_config.families import INERT_KEYS
from runner.model_config.fields import invalid, is_off, strings, unsupported

# The model_type of the whole: what its architecture is called, and the model_types of its text model, the first of
# which it has where none is named.
_WHOLES: Final = {
    "gemma3": ("Gemma3ForConditionalGeneration", ("gemma3_text",)),
    "gemma4": ("Gemma4ForConditionalGeneration", ("gemma4_text",)),
    "mistral3": ("Mistral3ForConditionalGeneration", ("mistral", "ministral3")),
    "qwen3_5": ("Qwen3_5ForConditionalGeneration", ("qwen3_5_text",)),
    "qwen3_5_moe": ("Qwen3_5MoeForConditionalGeneration", ("qwen3_5_moe_text",)),
}
PARTS_OF_WHOLES: Final = frozenset(model_type for _, names in _WHOLES.values() for model_type in names)
"""The model_types that may be the text model of a multimodal one."""
# What the whole says of its text model too, and says last.
_SHARED: Final = ("bos_token_id", "eos_token_id", "tie_word_embeddings", "quantization_config")
# Says it first: transformers writes true for every whole, tied or not, and goes by the weights.
_TIED_BY_TEXT: Final = frozenset({"mistral3"})
_OF_IMAGES: Final = frozenset(
    [
        "vision_config",
        "mm_tokens_per_image",
        "boi_token_index",
        "eoi_token_index",
        "image_token_index",
        "boi_token_id",
        "eoi_token_id",
        "image_token_id",
        "video_token_id",
        "vision_start_token_id",
        "vision_end_token_id",
        "projector_hidden_act",
        "vision_feature_layer",
        "multimodal_projector_bias",
        "spatial_merge_size",
        "vision_soft_tokens_per_image",
    ]
)
_OF_AUDIO: Final = {
    "gemma4": frozenset({"audio_config", "audio_token_id", "boa_token_id", "eoa_token_id", "eoa_token_index"})
}


def text_model_type(model_type: str) -> str:
    """The model_type of a multimodal model's text model, where its config.json names none; any other as it is."""
    _, found = _WHOLES.get(model_type, ("", (model_type,)))
    return found[0]


def text_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text model's config of a multimodal one, else `config` itself.

    Raises UnsupportedModel for a key of the whole that is not known, and BadModelFile where there is no text model.
    """
    found = _WHOLES.get(config["model_type"]) if isinstance(config.get("model_type"), str) else None
    if found is None:
        return config
    architecture, model_types = found
    if config.get("architectures") and architecture not in strings(config, "architectures"):
        raise unsupported("architectures", ", ".join(config["architectures"]))
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise invalid("text_config", text, "It must be an object.")
    known = {"model_type", "architectures", "text_config", *_SHARED, *_OF_IMAGES, *INERT_KEYS}
    known |= _OF_AUDIO.get(config["model_type"], frozenset())
    for key, value in config.items():
        if key not in known and not is_off(value):
            raise unsupported(key, value)
    model_type = text.get("model_type", model_types[0])
    if model_type not in model_types:
        raise unsupported("text_config.model_type", model_type)
    shared = {key: config[key] for key in _SHARED if config.get(key) is not None}
    if config["model_type"] in _TIED_BY_TEXT and text.get("tie_word_embeddings") is not None:
        shared.pop("tie_word_embeddings", None)
    return {**text, **shared, "model_type": model_type}
