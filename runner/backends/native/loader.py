"""Fills a model with its weights: built on the meta device, then one tensor at a time by its exact name.

Peak memory is the model and one tensor. Which tensors there must be was checked when the weights were opened
(checkpoint.py); that the modules want the same ones is checked here, before the first is read.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from runner.backends.base import LoadProgress
from runner.backends.native.architectures import build
from runner.backends.native.blocks import Decoder
from runner.backends.native.checkpoint import Weights
from runner.errors import BadModelFile, RunnerError
from runner.model_config import ModelConfig
from runner.types import CancelToken


def load_model(
    config: ModelConfig,
    weights: Weights,
    *,
    dtype: torch.dtype,
    device: torch.device,
    on_progress: LoadProgress,
    cancel: CancelToken,
) -> Decoder:
    """The model of `config` with all of `weights` on `device`.

    on_progress gets the fraction of the parameters that are in place. Raises BadModelFile for weights that are not the
    model's, RunnerError when cancelled, torch.OutOfMemoryError.
    """
    with torch.device("meta"):
        model = build(config)
    _check_names(model, weights)
    sizes = {name: math.prod(shape) for name, shape in weights.shapes.items()}
    done, total = 0, sum(sizes.values())
    for name, size in sizes.items():
        if cancel.is_cancelled:
            raise RunnerError("Loading was cancelled.")
        _assign(model, name, to_tensor(_read(weights, name)).to(device=device, dtype=dtype))
        done += size
        on_progress(done / total)
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


def _check_names(model: Decoder, weights: Weights) -> None:
    wanted = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    wrong = sorted(
        name for name in wanted.keys() | weights.shapes.keys() if wanted.get(name) != weights.shapes.get(name)
    )
    if wrong:
        raise BadModelFile(
            f"Tensor {wrong[0]!r} has shape {weights.shapes.get(wrong[0])}, not {wanted.get(wrong[0])}.",
            hint="config.json and the weights do not belong together.",
        )


def _assign(model: Decoder, name: str, tensor: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(path), leaf, nn.Parameter(tensor, requires_grad=False))
