"""Which tensors of a checkpoint are its text model's own, by the names that they have where that stands alone, and
that most families give them.

It knows names alone; which models are multimodal is model_config's to say, and what a head that drafts is called
draft_tensors.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from runner.errors import BadModelFile
from runner.model_config import PARTS_OF_WHOLES
from runner.quant.draft_tensors import head_names

T = TypeVar("T")

# What a family calls otherwise than most do: the parts of its names, and what they are here.
_SPELLINGS: Final = {
    "mixtral": {"block_sparse_moe": "mlp", "w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"},
}

# What goes before the text model's names, in two ways that occur, and what takes its place.
_PREFIXES: Final = (("language_model.", ""), ("model.language_model.", "model."))
_OF_IMAGES: Final = ("vision_tower.", "multi_modal_projector.", "visual.")
_OF_MORE: Final = {"gemma4_text": ("embed_vision.", "audio_tower.", "embed_audio.")}


def of_text_model(tensors: Mapping[str, T], model_type: str) -> dict[str, T]:
    """`tensors` without those of the vision and the audio part, renamed, and without those of a head that drafts.

    model_type: the text model's. Raises BadModelFile when two have one name then.
    """
    named = tensors
    if model_type in PARTS_OF_WHOLES:
        others = (*_OF_IMAGES, *_OF_MORE.get(model_type, ()))
        of_text = {name: one for name, one in tensors.items() if not name.removeprefix("model.").startswith(others)}
        named = _renamed(of_text, _alone)
    elif spelling := _SPELLINGS.get(model_type):
        named = _renamed(tensors, lambda name: ".".join(spelling.get(part, part) for part in name.split(".")))
    heads = head_names(named.keys())
    return {name: tensor for name, tensor in named.items() if name not in heads}


def _renamed(tensors: Mapping[str, T], rename: Callable[[str], str]) -> dict[str, T]:
    found: dict[str, T] = {}
    for name, tensor in tensors.items():
        own_name = rename(name)
        if own_name in found:
            raise BadModelFile(f"Tensor {own_name!r} is there twice, once as {name!r}.", hint="Fetch the model again.")
        found[own_name] = tensor
    return found


def _alone(name: str) -> str:
    for old, new in _PREFIXES:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
