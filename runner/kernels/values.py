"""What the kernels take and give besides plain tensors, and the options that every launch has.

It knows layouts and no arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

GROUP: Final = 32  # weights or activations that share a scale
MOST_ROWS: Final = 16  # rows up to which a product reads packed weights once, with one order of summation for all
# Products and sums are fused where a kernel says so (tl.fma), never where a compiler chooses to.
OPTIONS: Final = {"enable_fp_fusion": False}


@dataclass(frozen=True, kw_only=True)
class PackedMatrix:
    """A matrix [N, K] of weights in a grid format (quant/mq/grid.py), K a multiple of 32, on the device.

    format: "mq4", "mq4-uniform", "mq6" or "mq8". packed: int32 [N, words of a group, K / 32], as grid.pack makes it.
    scale: uint8 [N, K / 32], codes. row_scale: float32 [N], 2^scale_exponent, so that matrices of different exponents
    can be one. rotation: the block size that its input must be rotated in (quant/mq/rotation.py), 1 for none.

    weight[n, k] = level(packed) * scale(code with exponent 0) * row_scale[n].
    """

    format: str
    packed: Tensor
    scale: Tensor
    row_scale: Tensor
    rotation: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.packed.shape[0], GROUP * self.packed.shape[2]

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.scale.nbytes + self.row_scale.nbytes


Matrix = Tensor | PackedMatrix
"""Weights [N, K]: dense, contiguous, or packed."""


@dataclass(frozen=True, kw_only=True)
class Int8Rows:
    """M rows of K activations as int8 with a float32 scale for each 32: x[m, 32 g + e] = level * scale[m, g].

    words: int32 [M, 8, K / 32]; byte i of word [m, q, g] is the level of element 32 g + 4 q + i, from -127 to 127.
    scale: float32 [M, K / 32].
    """

    words: Tensor
    scale: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.words.shape[0], GROUP * self.words.shape[2]


@dataclass(frozen=True, kw_only=True)
class Squares:
    """Sums of squares of M rows of `size` elements, in parts [M, P] float32 whose sum over P is the row's.

    An RMSNorm is one factor a row, 1 / sqrt(sum / size + eps): who reads the row applies it, so no kernel waits
    for a whole row (CODA's partial reductions).
    """

    parts: Tensor
    size: int
    eps: float


def rstd_ref(squares: Squares) -> Tensor:
    """1 / rms [M] float32 of each row."""
    result: Tensor = (squares.parts.sum(1) / squares.size + squares.eps).rsqrt()
    return result


def is_nvidia(tensor: Tensor) -> bool:
    """Whether a kernel on this tensor may use what only NVIDIA's GPUs have."""
    return tensor.is_cuda and torch.version.hip is None
