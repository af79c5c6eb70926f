"""Which tensors of a checkpoint are its text model's own, by the names that they have where that stands alone.

It knows names alone; which models are multimodal is model_config's to say, and what a head that drafts is called
draft_tensors.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from runner.errors import BadModelFile
from runner.model_config import PARTS_OF_WHOLES
from runner.quant.draft_tensors import head_names

T = TypeVar("T")

# What goes before the text model's names, in two ways that occur, and what takes its place.
_PREFIXES: Final = (("language_model.", ""), ("model.language_model.", "model."))
_OF_IMAGES: Final = ("vision_tower.", "multi_modal_projector.", "visual.")
_OF_MORE: Final = {"gemma4_text": ("embed_vision.", "audio_tower.", "embed_audio.")}


def of_text_model(tensors: Mapping[str, T], model_type: str) -> dict[str, T]:
    """`tensors` without those of the vision and the audio part, renamed, and without those of a head that drafts.

    model_type: the text model's. Raises BadModelFile when two have one name then.
    """
    named = _named_alone(tensors, model_type) if model_type in PARTS_OF_WHOLES else tensors
    heads = head_names(named.keys())
    return {name: tensor for name, tensor in named.items() if name not in heads}


def _named_alone(tensors: Mapping[str, T], model_type: str) -> dict[str, T]:
    others = (*_OF_IMAGES, *_OF_MORE.get(model_type, ()))
    found: dict[str, T] = {}
    for name, tensor in tensors.items():
        if name.removeprefix("model.").startswith(others):
            continue
        text_name = _renamed(name)
        if text_name in found:
            raise BadModelFile(f"Tensor {text_name!r} is there twice, once as {name!r}.", hint="Fetch the model again.")
        found[text_name] = tensor
    return found


def _renamed(name: str) -> str:
    for old, new in _PREFIXES:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
