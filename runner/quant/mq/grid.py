"""Formats with a fixed grid of levels and one 8-bit scale for each small group of weights: mq4, mq6, mq8.

A weight is scale * level. Levels are integers of at most 8 bits, so that a product with int8 activations needs no table
of floats. A grid of 16 levels is longer on one side, and the sign of the scale turns that side to the largest weight of
the group: a tenth less error than the best symmetric grid. It knows nothing of rotations or calibration: gptq.py rounds
with the same functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import torch
from torch import Tensor

from runner.quant.mq.tensor_format import Encoded, Part

GridName = Literal["uniform", "table"]

# Lloyd's iteration over groups of 32 Gaussian weights, scale and sign chosen for each group; the longest is -127.
_TABLE_16: Final = (-127, -99, -78, -61, -47, -34, -21, -9, 2, 13, 24, 36, 49, 64, 82, 105)
_CHUNK: Final = 2**18  # weights searched at a time: their temporaries stay in the cache of a core
_LARGEST_CODE: Final = 127
_OCTAVES: Final = 8
_TINY: Final = 2.0**-149
_LEAST_EXPONENT: Final = -126  # of a normal float32
_LARGEST_EXPONENT: Final = 127 - (_OCTAVES - 1)  # the largest scale is finite


@dataclass(frozen=True, kw_only=True)
class GridFormat:
    """`bits` for each weight, a scale for each `group_size` weights along K.

    grid: "uniform", odd integers (-17 to 13 for 4 bits, -63 to 63 for 6; all from -127 to 127 for 8), or "table", the
    16 levels that suit a Gaussian best. search: the codes that are tried as scale, counted from the smallest that
    reaches every weight.
    """

    name: str
    bits: Literal[4, 6, 8]
    group_size: int
    grid: GridName
    search: tuple[int, int]

    @property
    def unit(self) -> int:
        return self.group_size

    @property
    def levels(self) -> tuple[int, ...]:
        """The integer levels, ascending; the first is the longest."""
        if self.grid == "table":
            return _TABLE_16
        if self.bits == 8:
            return tuple(range(-127, 128))
        return tuple(range(-17, 14, 2)) if self.bits == 4 else tuple(range(-63, 64, 2))

    @property
    def is_signed(self) -> bool:
        """Whether the sign of a scale matters: the grid is longer on one side."""
        return self.levels[0] != -self.levels[-1]

    # --- rounding ----------------------------------------------------------------------------------------------------

    def scale_exponent(self, w: Tensor, headroom: float = 1.0) -> int:
        """The exponent of the smallest scale, for a matrix whose largest weight is `headroom` times that of w."""
        largest = headroom * float(w.abs().max()) / -self.levels[0] if w.numel() else 0.0
        # the largest code is 31/16 * 2^(exponent + 7)
        exponent = math.ceil(math.log2(max(largest, _TINY) * 16 / 31)) - (_OCTAVES - 1)
        return max(_LEAST_EXPONENT, exponent)

    def choose_scales(self, groups: Tensor, exponent: int, importance: Tensor | None = None) -> Tensor:
        """The scale codes [M] uint8 that give `groups` [M, group_size] float32 the least squared error.

        importance: weights of the squared errors, [group_size] or [M, group_size]; none for all alike.
        """
        groups = groups * 2.0**-exponent  # so that squares neither overflow nor vanish
        values = scale_values(0, groups.device)
        positive = values[: _LARGEST_CODE + 1]
        best = torch.full(groups.shape[:1], _LARGEST_CODE, device=groups.device)
        least = torch.full(best.shape, torch.inf, device=groups.device)
        low, high = torch.aminmax(groups, dim=1)
        for first in (0, 128) if self.is_signed else (0,):
            most_negative, most_positive = (-low, high) if first == 0 else (high, -low)
            reach = torch.maximum(most_negative / -self.levels[0], most_positive / self.levels[-1])
            start = torch.bucketize(reach, positive) + first
            for offset in range(*self.search):
                candidate = (start + offset).clamp_(first, first + _LARGEST_CODE)
                scale = values[candidate][:, None]
                error = self.nearest(groups / scale).mul_(scale).sub_(groups).square_()
                total = (error if importance is None else error.mul_(importance)).sum(1)
                better = total < least
                least = torch.where(better, total, least)
                best = torch.where(better, candidate, best)
        return best.to(torch.uint8)

    def nearest(self, x: Tensor) -> Tensor:
        """The level nearest to each element of x, float32."""
        return self.values(self.index(x))

    def values(self, index: Tensor) -> Tensor:
        """The levels [...] float32 of indices [...]."""
        found: Tensor = _level_table(self.levels, index.device)[index.int()]
        return found

    def index(self, x: Tensor) -> Tensor:
        """The index, int32, of the level nearest to each element of x."""
        if self.grid == "table":
            # Levels are integers, so the boundaries between them are multiples of a half: a table finds the interval.
            cell = (x + 128).mul_(2).clamp_(0, 511).int()
            return _cells(self.levels, x.device)[cell]
        low, step = self.levels[0], self.levels[1] - self.levels[0]
        return ((x - low) / step).round_().clamp_(0, len(self.levels) - 1).int()

    # --- a matrix ----------------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> Mapping[str, range]:
        return {"scale_exponent": range(_LEAST_EXPONENT, _LARGEST_EXPONENT + 1)}

    def parts(self, shape: tuple[int, int]) -> Mapping[str, Part]:
        rows, columns = shape
        n_groups, words = columns // self.group_size, self.group_size * self.bits // 32
        return {
            "packed": Part(dtype=torch.int32, shape=(rows, words, n_groups)),
            "scale": Part(dtype=torch.uint8, shape=(rows, n_groups)),
        }

    def encode(self, w: Tensor) -> Encoded:
        exponent = self.scale_exponent(w)
        flat = w.reshape(-1, self.group_size)
        step = max(1, _CHUNK // self.group_size)
        scales, indices = [], []
        for chunk in torch.split(flat, step if flat.device.type == "cpu" else 64 * step):
            codes = self.choose_scales(chunk, exponent)
            scales.append(codes)
            indices.append(self.index(chunk / scale_values(exponent, w.device)[codes.int()][:, None]).byte())
        return self.encoded(torch.cat(indices).view(w.shape), torch.cat(scales).view(w.shape[0], -1), exponent)

    def encoded(self, index: Tensor, scale: Tensor, exponent: int) -> Encoded:
        """From level indices [N, K] uint8 and scale codes [N, K / group_size] uint8."""
        packed = pack(index, self.bits, self.group_size)
        return Encoded(parts={"packed": packed, "scale": scale.contiguous()}, parameters={"scale_exponent": exponent})

    def decode(self, encoded: Encoded, shape: tuple[int, int]) -> Tensor:
        index = unpack(encoded.parts["packed"], self.bits, self.group_size)
        scale = encoded.parts["scale"]
        values = scale_values(encoded.parameters["scale_exponent"], scale.device)[scale.int()]
        return (self.values(index).view(shape[0], -1, self.group_size) * values[:, :, None]).view(shape)


@cache
def scale_values(exponent: int, device: torch.device) -> Tensor:
    """The 256 scales [256] float32: code c is (1 + (c & 15) / 16) * 2^(exponent + (c >> 4 & 7)), negative from 128 on.

    As bits of a float32: ((c & 127) << 19) + (exponent + 127 << 23), and bit 7 as the sign.
    """
    code = torch.arange(_LARGEST_CODE + 1)
    positive = ((code << 19) + (exponent + 127 << 23)).to(torch.int32).view(torch.float32)
    return torch.cat((positive, -positive)).to(device)


@cache
def _level_table(levels: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(levels, dtype=torch.float32, device=device)


@cache
def _cells(levels: tuple[int, ...], device: torch.device) -> Tensor:
    """The index of the level nearest to the middle of each half-wide cell from -128 to 128, [512] int32."""
    middles = torch.arange(512) / 2 - 127.75
    table = torch.tensor(levels, dtype=torch.float32)
    return torch.bucketize(middles, (table[1:] + table[:-1]) / 2, out_int32=True).to(device)


# --- packing ---------------------------------------------------------------------------------------------------------


def pack(index: Tensor, bits: int, group_size: int) -> Tensor:
    """Level indices [N, K] uint8 as int32 words in planes [N, words of a group, K / group_size].

    A row is stored as planes so that neighbouring lanes read neighbouring words. The elements of a group are quads of
    4 neighbours, and byte i of a word is element i of a quad, as a 4-way dot product takes it. 4 bits: the low nibbles
    of word j are quad j, the high ones quad j + group_size / 8. 6 bits: the low 4 bits so, then words with the high 2
    bits of quads 4j to 4j + 3, quad 4j lowest. 8 bits: word j is quad j, as int8.
    """
    quads = index.view(len(index), -1, group_size // 4, 4)
    if bits == 8:
        words = (quads.to(torch.int16) - 127).to(torch.int8)
    else:
        low, half = quads & 15, group_size // 8
        words = low[:, :, :half] | low[:, :, half:] << 4
        if bits == 6:
            high = (quads >> 4).view(*quads.shape[:2], -1, 4, 4)
            joined = high[:, :, :, 0] | high[:, :, :, 1] << 2 | high[:, :, :, 2] << 4 | high[:, :, :, 3] << 6
            words = torch.cat((words, joined), 2)
    return words.contiguous().view(torch.int32).squeeze(-1).transpose(1, 2).contiguous()


def unpack(packed: Tensor, bits: int, group_size: int) -> Tensor:
    """The inverse of `pack`: level indices [N, K] uint8."""
    words = packed.transpose(1, 2).contiguous()
    if bits == 8:
        signed = words.view(torch.int8).to(torch.int16) + 127
        return signed.to(torch.uint8).flatten(1)
    in_bytes = words.view(torch.uint8).view(*words.shape, 4)
    half = group_size // 8
    nibbles = in_bytes[:, :, :half]
    quads = torch.cat((nibbles & 15, nibbles >> 4), 2)
    if bits == 6:
        joined = in_bytes[:, :, half:]
        high = torch.stack([joined >> 2 * place & 3 for place in range(4)], 3).flatten(2, 3)
        quads = quads | high << 4
    return quads.flatten(1)
