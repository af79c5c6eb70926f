"""The multi-token head of a model's own files, read into MtpHead: every tensor by its exact name.

It knows nothing of what the head computes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import nn

from runner.backends.native.architectures import build
from runner.backends.native.blocks import Layer
from runner.backends.native.heads.mtp import MtpHead
from runner.backends.native.heads.mtp_layout import LAYER, MtpLayout, layout_of
from runner.backends.native.loader import put, to_tensor
from runner.backends.native.places import Place, places_of
from runner.errors import BadModelFile, UnsupportedModel
from runner.model_config import ModelConfig
from runner.quant.draft_tensors import open_heads
from runner.quant.safetensors_file import FLOAT_TYPES, Checkpoint
from runner.types import ReadyModel

_HINT = "The model runs without it; --spec suffix needs no head."


def load_mtp(model: ReadyModel, config: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> MtpHead:
    """The first multi-token head in the files of `model`.

    Raises UnsupportedModel where there is none or it is of a kind that is not supported, by name, and BadModelFile for
    malformed files.
    """
    if config.full_heads is not None:
        raise UnsupportedModel(
            "A multi-token head of a model whose layers have different heads is not supported.",
            hint="Leave --spec mtp out, or draft with another model.",
        )
    checkpoint = open_heads(model)
    layout = layout_of(checkpoint.tensors.keys(), config.num_layers)
    with torch.device("meta"):
        head = MtpHead(
            config,
            _layer(config, layout),
            has_own_head="head.weight" in layout.names,
            is_hidden_first=layout.is_hidden_first,
            masks_first=layout.masks_first,
        )
    places = places_of(head)
    _check(head, places, layout, checkpoint)
    for ours, theirs in layout.names.items():
        try:
            tensor = to_tensor(checkpoint.raw(theirs))
        except OSError as error:
            raise BadModelFile(f"Tensor {theirs!r} cannot be read: {error}.", hint="Fetch the model again.") from error
        put(head, places[ours], tensor.to(device=device, dtype=dtype))
    return head


def _layer(config: ModelConfig, layout: MtpLayout) -> Layer:
    """A layer after the model's last, of the same kind: with experts if its tensors have them."""
    experts, index = config.experts, config.num_layers
    if experts is not None and any(name.startswith(f"{LAYER}mlp.experts.") for name in layout.names):
        experts = dataclasses.replace(experts, layers=(*experts.layers, index))
    return build(dataclasses.replace(config, num_layers=index + 1, experts=experts)).layers[index]


def _check(head: nn.Module, places: Mapping[str, Place], layout: MtpLayout, checkpoint: Checkpoint) -> None:
    """Every parameter has its tensor, of its shape and a float type, and no tensor is left over."""
    parameters = dict(head.named_parameters())
    wanted = {name: tuple(parameters[place.parameter][place.part].shape) for name, place in places.items()}
    if missing := sorted(wanted.keys() - layout.names.keys()):
        raise UnsupportedModel(
            f"The checkpoint's multi-token head lacks {missing[0].removeprefix(LAYER)!r}, which the model's own layers "
            "have.",
            hint=_HINT,
        )
    if extra := sorted(layout.names[name] for name in layout.names.keys() - wanted.keys()):
        raise UnsupportedModel(
            f"The checkpoint's multi-token head has {extra[0]!r}, which the model's own layers have not.", hint=_HINT
        )
    for ours, theirs in layout.names.items():
        tensor = checkpoint.tensors[theirs]
        if tensor.shape != wanted[ours]:
            raise UnsupportedModel(
                f"Tensor {theirs!r} of the multi-token head has shape {list(tensor.shape)}; in a layer of the model's "
                f"own kind it has {list(wanted[ours])}.",
                hint=_HINT,
            )
        if tensor.dtype not in FLOAT_TYPES:
            raise UnsupportedModel(
                f"Tensor {theirs!r} of the multi-token head is stored as {tensor.dtype}.",
                hint="Use the model's F32, F16 or BF16 version.",
            )
