"""What the kernels take and give besides plain tensors, and the options that every launch has.

It knows layouts and no arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Final, Literal, TypeVar

import torch
from torch import Tensor

GROUP: Final = 32  # weights or activations that share a scale
MOST_ROWS: Final = 16  # rows up to which a product reads packed weights once, with one order of summation for all
# Rows up to which products with packed weights read these as they are, 16 rows at a time; from there on decoding the
# weights first is faster. Where gemm_int8.takes_int8 says so, MOST_ROWS are the most.
FEW_ROWS: Final = 64
MULTIPROCESSORS: Final = 132  # of an H100 and an H200: how work is cut follows from it on every GPU, as bits do
# Products and sums are fused where a kernel says so (tl.fma), never where a compiler chooses to.
OPTIONS: Final = {"enable_fp_fusion": False}


Layout = Literal["planes", "fragments"]
"""How a device keeps packed weights: planes as quant/mq/grid.py has them, or in the order of tensor cores."""


@dataclass(frozen=True, kw_only=True)
class PackedMatrix:
    """A matrix [N, K] of weights in a grid format (quant/mq/grid.py), K a multiple of 32, on the device.

    format: "mq4", "mq4-uniform", "mq6" or "mq8". row_scale: float32 [N], 2^scale_exponent, so that matrices of
    different exponents can be one. rotation: the block size that its input must be rotated in (quant/mq/rotation.py),
    1 for none.
    layout "planes": packed int32 [N, words of a group, K / 32], as grid.pack makes it, and scale uint8 [N, K / 32].
    layout "fragments": as fragments.py says, high and largest too, with rows in pairs (n, n + pair) if pair is not 0.

    weight[n, k] = level(packed) * scale(code with exponent 0) * row_scale[n].
    """

    format: str
    packed: Tensor
    scale: Tensor
    row_scale: Tensor
    rotation: int
    layout: Layout = "planes"
    pair: int = 0
    high: Tensor | None = None
    largest: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        n_groups = self.packed.shape[2] if self.layout == "planes" else 2 * self.packed.shape[1]
        return self.row_scale.shape[0], GROUP * n_groups

    @property
    def nbytes(self) -> int:
        high = 0 if self.high is None else self.high.nbytes
        return self.packed.nbytes + self.scale.nbytes + self.row_scale.nbytes + high


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

    def values(self) -> Tensor:
        """x [M, K] float32."""
        levels = self.words.transpose(1, 2).contiguous().view(torch.int8).unflatten(2, (GROUP,))
        values: Tensor = (levels.float() * self.scale[:, :, None]).flatten(1)
        return values


@dataclass(frozen=True, kw_only=True)
class Int8Fragments:
    """M rows of K activations in the order in which tensor cores take them, as int8 with a float32 scale for each 64.

    They come in B = ceil(M / C) blocks of C rows, row C b + n being n of block b: C is 8 or M rounded up to a power of
    two, or 1 for rows that are multiplied each by itself.
    words: int32 [B, K / 64, C, 4, 4]; byte i of word [b, p, n, t, 2 e + half] is the level of element
    32 (2 p + e) + 16 half + 4 t + i. notes: float32 [B, K / 64, C, 4], what a product needs beside the levels: [..., 0]
    the scale of these 64; [..., 1 + e] what group e's sum of products is begun too high by, which is subtracted as the
    sum becomes a float: 1.5 * 2^23, whose bits it begins with, and zero * (the sum of the group's levels); [..., 3]
    nothing. zero: how far the levels of the weights lie below what their bits say (fragment_products.ZEROS). What
    belongs to rows from M on is undefined.
    """

    words: Tensor
    notes: Tensor
    num_rows: int
    zero: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_rows, 2 * GROUP * self.words.shape[1]


@dataclass(frozen=True, kw_only=True)
class Int8Blocks:
    """M rows of K activations as int8 with a float32 scale for each block of 256.

    levels: int8 [R, 256 B], from -127 to 127, with B = ceil(K / 256): place 64 w + 32 e + 16 half + 4 j + i of block b
    is the level of element 256 b + 64 j + 32 e + 16 half + 4 w + i (in_block_order), 0 from K on. So a lane that has
    the four words of a group of weights, one after the other, meets their x (int8_weights.py). scale: float32 [B, R].
    R: M, filled up to whole tiles of those who multiply; what belongs to rows from M on is undefined.
    """

    levels: Tensor
    scale: Tensor
    num_rows: int
    num_columns: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_rows, self.num_columns

    def values(self) -> Tensor:
        """x [M, K] float32."""
        blocks = in_block_order(self.levels[: self.num_rows]).float().unflatten(1, (-1, 256))
        values: Tensor = blocks * self.scale.T[: self.num_rows, :, None]
        return values.flatten(1)[:, : self.num_columns]


def in_block_order(x: Tensor) -> Tensor:
    """Columns of [M, 256 B] in the order of Int8Blocks, or from it: it is its own inverse."""
    ordered: Tensor = x.unflatten(1, (-1, 4, 2, 2, 4, 4)).transpose(2, 5).flatten(1)
    return ordered


ROWS_OF_BLOCKS: Final = 128
"""R of Int8Blocks is a multiple of this."""


_Value = TypeVar("_Value", PackedMatrix, Int8Fragments, Int8Rows, Int8Blocks)


def moved(value: _Value, device: torch.device) -> _Value:
    """The same with its tensors on `device`."""
    tensors: dict[str, Any] = {
        field.name: part.to(device) for field in fields(value) if isinstance(part := getattr(value, field.name), Tensor)
    }
    return replace(value, **tensors)


@dataclass(frozen=True, kw_only=True)
class Squares:
    """Sums of squares of M rows of `size` elements, in parts [M, P] float32 whose sum over P is the row's.

    An RMSNorm is one factor a row, 1 / sqrt(sum / size + eps): who reads the row applies it, so no kernel waits
    for a whole row (CODA's partial reductions).
    """

    parts: Tensor
    size: int
    eps: float


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A product [M, N] that is still to be put together: values.sum(1) / rms + bias, rounded to `dtype`.

    values: [M, P, N] float32. squares: of the rows that were multiplied, None for no norm. bias: [N], or None.
    """

    values: Tensor
    squares: Squares | None
    bias: Tensor | None
    dtype: torch.dtype


def rstd_ref(squares: Squares) -> Tensor:
    """1 / rms [M] float32 of each row."""
    result: Tensor = (squares.parts.sum(1) / squares.size + squares.eps).rsqrt()
    return result


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up. Triton's own, which kernels may call too, takes 2 us of the host."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The least power of two that is no less than n >= 1; see cdiv."""
    return 1 << (n - 1).bit_length()


def is_nvidia(tensor: Tensor) -> bool:
    """Whether a kernel on this tensor may use what only NVIDIA's GPUs have."""
    return tensor.is_cuda and torch.version.hip is None


def has_pdl(tensor: Tensor) -> bool:
    """Whether a kernel on this tensor can begin before the one before it has ended (programmatic dependent launch)."""
    return is_nvidia(tensor) and capability(tensor) >= (9, 0)


def is_hopper(tensor: Tensor) -> bool:
    return is_nvidia(tensor) and capability(tensor)[0] == 9


def pdl_option(pdl: bool) -> dict[str, bool]:
    """What a launch of a kernel that may begin early says besides its arguments."""
    return {"launch_pdl": True} if pdl else {}


def register_option(most: int | None) -> dict[str, int]:
    """What a launch on NVIDIA says so that ptxas gives a thread so many registers, and spills none; None: nothing."""
    return {} if most is None else {"maxnreg": most}


def capability(tensor: Tensor) -> tuple[int, int]:
    """The compute capability of the NVIDIA GPU that a tensor is on."""
    return _capability(tensor.device)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    found: tuple[int, int] = torch.cuda.get_device_capability(device)
    return found
