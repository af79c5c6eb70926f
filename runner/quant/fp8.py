"""FP8 checkpoints with one scale a matrix, as Mistral AI publishes Ministral 3 and Devstral 2.

Beside a matrix of E4M3 there is the number that its values are multiplied by, `<its name>_scale_inv`, and the one that
activations are divided by where they are rounded too, `activation_scale`, which nobody here does. It knows nothing of
torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from runner.errors import BadModelFile, UnsupportedModel
from runner.quant.safetensors_file import FLOAT_TYPES, Checkpoint, StoredTensor

FP8: Final = "F8_E4M3"


@dataclass(frozen=True)
class Fp8Matrices:
    """scales: by the name of a matrix, its scale's. set_aside: the tensors that are no weights of the model's."""

    scales: Mapping[str, str]
    set_aside: frozenset[str]


def matrices_of(tensors: Mapping[str, StoredTensor]) -> Fp8Matrices:
    """The FP8 matrices of a checkpoint. Raises UnsupportedModel for one whose scale is missing or not one number."""
    scales = {name: f"{name}_scale_inv" for name, tensor in tensors.items() if tensor.dtype == FP8}
    for name, scale in scales.items():
        found = tensors.get(scale)
        if found is None or found.shape not in ((), (1,), (1, 1)) or found.dtype not in FLOAT_TYPES:
            raise UnsupportedModel(
                f"Tensor {name!r} is stored as {FP8} without one number {scale!r} beside it.",
                hint="Use the model's BF16 version, or a GGUF of it with --backend llamacpp.",
            )
    of_activations = {f"{name.removesuffix('weight')}activation_scale" for name in scales}
    return Fp8Matrices(scales, frozenset(tensors.keys() & (of_activations | set(scales.values()))))


def decode(codes: NDArray[np.uint8], scale: float) -> NDArray[np.float32]:
    """The values of E4M3 codes times the scale."""
    return np.take(_values() * np.float32(scale), codes)


def scale_of(checkpoint: Checkpoint, name: str) -> float:
    """The scale of that name. Raises BadModelFile for one that makes no sense, OSError."""
    value = float(checkpoint.f32(name).reshape(()))
    if not 0 < value < np.inf:
        raise BadModelFile(f"Tensor {name!r} is {value}.", hint="The checkpoint is damaged: fetch the model again.")
    return value


@cache
def _values() -> NDArray[np.float32]:
    """By code: a sign, four bits of exponent, three of mantissa; there is no infinity, and all ones are NaN."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    values = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    values[codes & 127 == 127] = np.nan
    return np.where(codes < 128, values, -values).astype(np.float32)
