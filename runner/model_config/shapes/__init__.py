"""config.json to Shape, for every family that is known here, and what can be said of the others.

Independent of what runs a model: a family needs a row or a small file here to be estimated, and much more to be run.
It reads no file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from runner.errors import BadModelFile
from runner.model_config.shape import LayerCache, Shape
from runner.model_config.shapes.decoder import DECODERS, decoder_shape
from runner.model_config.shapes.gemma4 import gemma4_shape
from runner.model_config.shapes.qwen3_5 import qwen3_5_shape
from runner.model_config.shapes.reader import Reader, text_part

_FAMILIES: Final[Mapping[str, Callable[[str, Mapping[str, Any]], Shape]]] = {
    **dict.fromkeys(DECODERS, decoder_shape),
    **dict.fromkeys(("gemma4", "gemma4_text"), gemma4_shape),
    **dict.fromkeys(("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), qwen3_5_shape),
}

KNOWN_FAMILIES: Final = tuple(_FAMILIES)


def config_shape(config: Mapping[str, Any]) -> Shape:
    """The Shape of a config.json's contents; num_parameters is 0 and a note says so for a family not known here.

    Raises BadModelFile for values that make no sense.
    """
    outer, inner = config.get("model_type"), text_part(config).get("model_type")
    # A multimodal model is named after the whole (gemma3), its text model after itself (gemma3_text).
    for model_type in (inner, outer):
        if isinstance(model_type, str) and model_type in _FAMILIES:
            return _FAMILIES[model_type](model_type, config)
    if not isinstance(outer, str) or not outer:
        raise BadModelFile(
            "config.json: model_type is missing.", hint="It must be the config.json of a transformers model."
        )
    return _unfamiliar(outer, config)


def _unfamiliar(model_type: str, config: Mapping[str, Any]) -> Shape:
    """What any decoder's keys say. Every layer is taken to keep all tokens, which is the most it can be."""
    read = Reader(config, {})
    caches = (LayerCache(kind="full", width=_width(read)),) * read.num_layers
    kept = (
        "every layer is taken to keep all tokens."
        if any(cache.width for cache in caches)
        else "what it keeps of the tokens before is not known and not counted."
    )
    return Shape(
        architecture=model_type,
        num_parameters=0,
        num_active_parameters=0,
        context_length=read.whole("max_position_embeddings"),
        hidden_size=read.whole("hidden_size", 2**18),
        vocab_size=read.whole("vocab_size", 2**24),
        caches=caches,
        notes=(
            *read.notes(),
            f"The architecture {model_type} is not known: weights are taken from the files, and {kept}",
        ),
    )


def _width(read: Reader) -> int:
    """Elements of K and V a token. With latent attention (DeepSeek) their heads have sizes of their own."""
    key = read.whole("qk_nope_head_dim") + read.whole("qk_rope_head_dim")
    return read.num_kv_heads * ((key or read.head_dim) + (read.whole("v_head_dim") or read.head_dim))
