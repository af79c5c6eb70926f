"""Packed weights in fragments to int8 with one step for each row: what the products of prompts multiply by.

A group's levels and its scale become whole multiples of the row's step, the largest scale of the row times the longest
level over 127. What that rounds off is 0.7 % of a weight, where 4 bits lost 7 to 9 before; it leaves a product whose
weights need one factor a row. A program decodes 16 rows of a span of columns, whose words it reads in the order of
memory. The rows come out in the order of their places (fragments.py), with pairs eight of gate and eight of up in turn.
It knows no products.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from runner.kernels.compile import Variant
from runner.kernels.fragments import MAGIC, TILE
from runner.kernels.grids import FORMATS, raised_quads, scale_value, scaled_bytes, table
from runner.kernels.pack import dequantize_ref
from runner.kernels.values import GROUP, OPTIONS, PackedMatrix, cdiv, is_nvidia
from runner.quant.mq.grid import scale_values

_LARGEST = tl.constexpr(127.0)
_ROUNDING = tl.constexpr(MAGIC)  # adding it leaves no bits behind the point, halves rounded to even


def int8_weights_ref(w: PackedMatrix) -> tuple[Tensor, Tensor]:
    """See int8_weights; planes [N, K]: int8, and the rows' steps [N] float32."""
    values, scales = dequantize_ref(w), scale_values(0, w.scale.device)
    steps = scales[(w.scale & 127).amax(1).int()] * w.row_scale * longest_level(w) / 127
    return torch.round(values / steps[:, None]).to(torch.int8), steps


@triton.jit
def _packed_bytes(evens, odds, ratio):
    """Elements 0, 2 and 1, 3 of quads [..., 2], float32, times the ratio, each rounded to an int8 of one int32."""
    by = tl.broadcast_to(ratio[:, :, None], evens.shape)
    a, c = tl.split(tl.fma(evens, by, _ROUNDING).to(tl.int32, bitcast=True) & 255)
    b, d = tl.split(tl.fma(odds, by, _ROUNDING).to(tl.int32, bitcast=True) & 255)
    return (a | (b << 8)) | ((c << 16) | (d << 24))


@triton.jit
def _int8_weights(
    packed, scale, largest, levels, out, first_tile, n_pairs,
    FORMAT: tl.constexpr, LONGEST: tl.constexpr, PAIRS: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """Pairs of groups PAIRS * program_id(0) and on, of tile program_id(1) of those from first_tile on."""
    tile = (first_tile + tl.program_id(1)).to(tl.int64)
    p = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)[:, None]
    i = tl.arange(0, 128)[None, :]  # g, j, r = 2 e + h
    ok = p < n_pairs
    most = tl.load(largest + tile * 16 + i % 2 * 8 + i // 16)
    code = tl.load(scale + (tile * n_pairs + p) * 32 + (i // 16 * 4 + i % 4), mask=ok, other=0)
    word = tl.load(packed + (tile * n_pairs + p) * 128 + i, mask=ok, other=0, eviction_policy="evict_first")
    unit = scale_value(code)
    ratio = tl.div_rn(_LARGEST / LONGEST, scale_value(most))
    low, high, above = raised_quads(word, word, levels, FORMAT, NVIDIA)
    zero = unit * (-32768.0 - above)
    low_evens, low_odds = scaled_bytes(low, unit, zero, NVIDIA)
    high_evens, high_odds = scaled_bytes(high, unit, zero, NVIDIA)
    quads = tl.join(_packed_bytes(low_evens, low_odds, ratio), _packed_bytes(high_evens, high_odds, ratio))
    quads = tl.reshape(quads, (PAIRS, 8, 4, 2, 2, 2))  # p, g, j, e, h, half
    quads = tl.reshape(tl.permute(quads, (4, 1, 0, 3, 5, 2)), (16, PAIRS * 16))
    row = tl.program_id(1) * 16 + tl.arange(0, 16)[:, None]
    at = tl.program_id(0) * (PAIRS * 16) + tl.arange(0, PAIRS * 16)[None, :]
    tl.store(out + row.to(tl.int64) * (n_pairs * 16) + at, quads, mask=at < n_pairs * 16)


def int8_weights(w: PackedMatrix, out: Tensor, *, first_tile: int) -> None:
    """The places of tiles first_tile, first_tile + 1, ... of a matrix in fragments into out [16 T, K] int8, contiguous:
    row_steps times these are the weights, but for rounding.
    """
    n_tiles, n_pairs = len(out) // TILE, w.packed.shape[1]
    assert w.largest is not None, "the matrix is in fragments"
    assert w.format in FORMATS_AS_INT8
    assert out.shape == (n_tiles * TILE, 2 * GROUP * n_pairs)
    assert out.dtype == torch.int8
    assert out.is_contiguous()
    assert 0 <= first_tile <= len(w.packed) - n_tiles
    _int8_weights[(cdiv(n_pairs, _PAIRS), n_tiles)](
        w.packed, w.scale, w.largest, table(out.device), out.view(torch.int32), first_tile, n_pairs,
        FORMAT=w.format, LONGEST=longest_level(w), PAIRS=_PAIRS, NVIDIA=is_nvidia(out), num_warps=_WARPS, **OPTIONS,
    )  # fmt: skip


def longest_level(w: PackedMatrix) -> int:
    return -FORMATS[w.format].levels[0]


# Of mq6 the rounding would be a third of what its levels have lost.
FORMATS_AS_INT8: Final = ("mq4", "mq4-uniform")
# H200, mq4: [28672, 4096] 51 us and [4096, 14336] 27; (8, 4) 53 and 28, (16, 8) 55 and 29.
_PAIRS, _WARPS = 4, 2


def variants() -> Iterator[Variant]:
    for form in FORMATS_AS_INT8:
        yield Variant(
            name=f"int8_weights {form}",
            kernel=_int8_weights,
            signature={
                "packed": "*i32", "scale": "*u8", "largest": "*u8", "levels": "*i32", "out": "*i32",
                "first_tile": "i32", "n_pairs": "i32:16",
            },
            constants={"FORMAT": form, "LONGEST": -FORMATS[form].levels[0], "PAIRS": _PAIRS, "NVIDIA": False},
            num_warps=_WARPS,
            is_decode=False,
            only_target="sm_90",
            nvidia_constants={"NVIDIA": True},
        )  # fmt: skip
