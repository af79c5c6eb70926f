"""Fills a model with its weights: built on the meta device, then one tensor at a time by its exact name (places.py).

Peak memory is the model and one tensor. Missing, extra and misshapen tensors are refused before the first is
read. It knows nothing of files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from runner.backends.native.architectures import build
from runner.backends.native.blocks import Decoder
from runner.backends.native.places import Place, places_of
from runner.errors import BadModelFile, UnsupportedModel, loading_cancelled
from runner.model_config import ModelConfig
from runner.quant.weights import OUTPUT, Weights, check_count
from runner.types import CancelToken

_TIED: Final = (
    "If its embeddings are the output matrix too, set tie_word_embeddings to true in config.json (in text_config, if "
    "there is one); else fetch the model again."
)


def load_model(
    config: ModelConfig,
    weights: Weights,
    *,
    dtype: torch.dtype,
    device: torch.device,
    on_progress: Callable[[float], None],
    cancel: CancelToken,
) -> Decoder:
    """The model of `config` with all of `weights` on `device`.

    on_progress gets the fraction of the parameters that are in place. Raises BadModelFile for weights that are not the
    model's, RunnerError when cancelled, torch.OutOfMemoryError.
    """
    model = unfilled(config, weights)
    places = places_of(model)
    sizes = {name: math.prod(shape) for name, shape in weights.shapes.items()}
    done, total = 0, sum(sizes.values())
    for name, size in sizes.items():
        if cancel.is_cancelled:
            raise loading_cancelled()
        put(model, places[name], to_tensor(_read(weights, name)).to(device=device, dtype=dtype))
        done += size
        on_progress(done / total)
    return model


def unfilled(config: ModelConfig, weights: Weights) -> Decoder:
    """The model of `config` on the meta device, whose parameters and `weights` have the same names and shapes.

    Raises BadModelFile or UnsupportedModel where they have not.
    """
    check_count(weights, config)
    with torch.device("meta"):
        model = build(config)
    _check_names(model, places_of(model), weights)
    return model


def to_tensor(values: NDArray[Any]) -> Tensor:
    """A tensor of float values; uint16 is the bits of bfloat16. It never shares memory with a mapped file."""
    owned = values if values.flags.owndata and values.flags.writeable else np.array(values)
    tensor = torch.from_numpy(owned)
    return tensor.view(torch.bfloat16) if owned.dtype == np.uint16 else tensor


def _read(weights: Weights, name: str) -> NDArray[Any]:
    try:
        return weights.read(name)
    except OSError as error:
        raise BadModelFile(f"Tensor {name!r} cannot be read: {error}.", hint="Fetch the model again.") from error


def _check_names(model: Decoder, places: Mapping[str, Place], weights: Weights) -> None:
    """Every parameter, or part of one, has its tensor, of its shape, and no tensor is left over."""
    parameters = dict(model.named_parameters())
    wanted = {name: tuple(parameters[place.parameter][place.part].shape) for name, place in places.items()}
    if missing := sorted(wanted.keys() - weights.shapes.keys()):
        raise BadModelFile(
            f"{weights.where} lacks {_some(missing)}.",
            hint=_TIED
            if missing == [OUTPUT]
            else "Fetch the model again; if it is complete, its config.json does not belong to it.",
        )
    if extra := sorted(weights.shapes.keys() - wanted.keys()):
        raise UnsupportedModel(
            f"{weights.where} has tensors that a {model.config.model_type} model does not: {_some(extra)}.",
            hint="It is a variant that is not supported; a GGUF of it may run with --backend llamacpp.",
        )
    for name, shape in wanted.items():
        if weights.shapes[name] != shape:
            raise BadModelFile(
                f"Tensor {name!r} of {weights.where} has shape {list(weights.shapes[name])}, not {list(shape)}.",
                hint="config.json and the weights do not belong together.",
            )


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def put(model: nn.Module, place: Place, tensor: Tensor) -> None:
    """Make `tensor` the parameter, or a part of it: the first part makes room for all of them."""
    path, _, leaf = place.parameter.rpartition(".")
    module = model.get_submodule(path)
    if not place.part:
        setattr(module, leaf, nn.Parameter(tensor, requires_grad=False))
        return
    parameter = module.get_parameter(leaf)
    if parameter.is_meta:
        parameter = nn.Parameter(tensor.new_empty(parameter.shape), requires_grad=False)
        setattr(module, leaf, parameter)
    parameter[place.part] = tensor
