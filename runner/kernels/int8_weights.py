"""Packed weights in fragments to int8 with one step for each row: what the products of prompts multiply by.

A group's levels and its scale become whole multiples of the row's step, the largest scale of the row times the longest
level over 127. What that rounds off is 0.7 % of a weight, where 4 bits lost 7 to 9 before; it leaves a product whose
weights need one factor a row. What levels are multiplied by is float16, two of which one instruction multiplies.
`ratios`, `int8_quads` and `int8_bytes` are for any kernel that has words in the order of fragments; the kernel here
decodes 16 rows of a span of columns, whose words it reads in the order of memory. The rows come out in the order of
their places (fragments.py), with pairs eight of gate and eight of up in turn. It knows no products.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from runner.kernels.compile import Variant
from runner.kernels.fragment_products import half_tables_of_lanes
from runner.kernels.fragments import MAGIC, TILE
from runner.kernels.grids import (
    FORMATS,
    RAISED,
    half_tables,
    raised_quads,
    scale_value,
    table,
    to_raised,
    to_raised_by_halves,
)
from runner.kernels.pack import dequantize_ref
from runner.kernels.values import GROUP, OPTIONS, PackedMatrix, cdiv, is_nvidia
from runner.quant.mq.grid import scale_values

_LARGEST = tl.constexpr(127.0)
_ROUNDING = tl.constexpr(MAGIC)  # adding it leaves no bits behind the point, halves rounded to even


def int8_weights_ref(w: PackedMatrix) -> tuple[Tensor, Tensor]:
    """See int8_weights; planes [N, K]: int8, and the rows' steps [N] float32."""
    scales = scale_values(0, w.scale.device).float()
    row_ratio = (127 / longest_level(w) / scales[(w.scale & 127).amax(1).int()]).half().float()
    ratio = (scales[w.scale.int()] * row_ratio[:, None]).half().float()
    levels = (dequantize_ref(w) / w.row_scale[:, None]).unflatten(1, (-1, GROUP)) / scales[w.scale.int()][:, :, None]
    steps = scales[(w.scale & 127).amax(1).int()] * w.row_scale * longest_level(w) / 127
    return torch.round(levels.round() * ratio[:, :, None]).flatten(1).to(torch.int8), steps


# --- in a kernel -----------------------------------------------------------------------------------------------------


@triton.jit
def row_ratio(largest, LONGEST: tl.constexpr):
    """What the scales of a row are multiplied by, float16, if this is the code of the largest one."""
    return tl.div_rn(_LARGEST / LONGEST, scale_value(largest)).to(tl.float16)


def _ratios() -> str:
    """PTX: the scales whose codes the bytes of $4 are, as float16 times the factor in a half of $5, each twice, in $0
    to $3; of the second and the fourth it is the upper half.

    Two codes at a time. A code's exponent and its four bits are put where a float16 has them, by products, since the
    pipe of shifts is the one that is full; adding 15 to the exponent takes no carry.
    """
    lines = ["{ .reg .b32 c, t;"]
    for i, pair in ((0, 0x4140), (2, 0x4342)):
        lines.append(f"prmt.b32 c, $4, 0, {pair:#x}; and.b32 t, c, 0x007f007f; and.b32 c, c, 0x00800080;")
        lines.append("mad.lo.u32 t, t, 64, 0x3c003c00; mad.lo.u32 t, c, 256, t; mul.rn.f16x2 t, t, $5;")
        lines.append(f"prmt.b32 ${i}, t, t, 0x1010; prmt.b32 ${i + 1}, t, t, 0x3232;")
    return " ".join(lines) + " }"


def _rounded(form: str, word: str, ratio: str, *tables: str) -> str:
    """PTX: the levels of a word times the ratio, rounded to int8: four of the low quad in $0, of the high one in $1.

    A byte is the lower half of the float16 1024 plus itself, and what is rounded is that of 1536 plus the product.
    tables: of mq4, half_tables.
    """
    less = 0xE400 + RAISED[form]  # -(1024 + what the levels are raised by)
    lines = [f"{{ .reg .b32 u, v, p, q, m, k; mov.b32 m, {less * 0x10001:#x}; mov.b32 k, 0x66006600;"]
    lines.append(to_raised_by_halves(word, "u", "v", *tables) if tables else to_raised(form, word, "u", "v"))
    for out, quad in (("$0", "u"), ("$1", "v")):
        for half, bytes_of in (("p", 0x4140), ("q", 0x4342)):
            lines.append(f"prmt.b32 {half}, {quad}, 0x64646464, {bytes_of:#x}; add.rn.f16x2 {half}, {half}, m;")
            lines.append(f"fma.rn.f16x2 {half}, {half}, {ratio}, k;")
        lines.append(f"prmt.b32 {out}, p, q, 0x6420;")
    return " ".join(lines) + " }"


_RATIOS = tl.constexpr(_ratios())
_QUADS = tl.constexpr(_rounded("mq4", "$2", "$3", "$4", "$5", "$6"))
_QUADS_UNIFORM = tl.constexpr(_rounded("mq4-uniform", "$2", "$3"))
_BYTES = tl.constexpr(_rounded("mq4", "$2", "$6", "$10", "$14", "$18"))
_BYTES_UNIFORM = tl.constexpr(_rounded("mq4-uniform", "$2", "$6"))
_BYTES_REGISTERS = tl.constexpr(",".join(["=r"] * 2 + ["r"] * 20))
_BYTES_REGISTERS_UNIFORM = tl.constexpr(",".join(["=r"] * 2 + ["r"] * 8))


@triton.jit
def _of_lanes(v):
    """What the lanes of [S, 128] have, four elements each: [S, 32] of each."""
    even, odd = tl.split(tl.reshape(v, (v.shape[0], 32, 2, 2)))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    return a, b, c, d


@triton.jit
def codes_of_lanes(codes):
    """Codes uint8 [S, 128] as int32 [S, 32], four of a lane in one: as bytes, a loop would take them apart."""
    a, b, c, d = _of_lanes(codes.to(tl.int32))
    return a | b << 8 | c << 16 | d << 24


@triton.jit
def ratios(codes, by, NVIDIA: tl.constexpr):
    """What int8_quads wants of the groups of words [S, 128].

    codes: codes_of_lanes. by: row_ratio of their rows, float16 [S, 128]. On NVIDIA int32, two float16; elsewhere
    float32.
    """
    first, second, _, _ = _of_lanes(by)  # the third and the fourth are the same
    if NVIDIA:
        both = first.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        both |= second.to(tl.int16, bitcast=True).to(tl.int32) << 16
        a, b, c, d = tl.inline_asm_elementwise(
            _RATIOS,
            "=r,=r,=r,=r,r,r",
            [codes, both],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
    else:
        a, b = _scaled(codes & 255, first), _scaled(codes >> 8 & 255, second)
        c, d = _scaled(codes >> 16 & 255, first), _scaled(codes >> 24 & 255, second)
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (codes.shape[0], 128))


@triton.jit
def _scaled(code, by):
    return (scale_value(code) * by.to(tl.float32)).to(tl.float16).to(tl.float32)


@triton.jit
def int8_quads(words, ratio, levels, tables, FORMAT: tl.constexpr, NVIDIA: tl.constexpr):
    """The low and the high quads of words in the order of fragments.py times their ratios, as int8 in int32s.
    tables: half_tables_of_lanes."""
    if NVIDIA:
        if FORMAT == "mq4":
            return tl.inline_asm_elementwise(
                _QUADS,
                "=r,=r,r,r,r,r,r",
                [words, ratio, tables[0], tables[1], tables[2]],
                dtype=(tl.int32, tl.int32),
                is_pure=True,
                pack=1,
            )
        return tl.inline_asm_elementwise(
            _QUADS_UNIFORM, "=r,=r,r,r", [words, ratio], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )
    else:
        low, high, above = raised_quads(words, words, levels, FORMAT, False)
        return _rounded_quad(low, ratio, above), _rounded_quad(high, ratio, above)


@triton.jit
def _rounded_quad(quad, ratio, above):
    a = tl.fma((quad & 255).to(tl.float32) - above, ratio, _ROUNDING).to(tl.int32, bitcast=True) & 255
    b = tl.fma((quad >> 8 & 255).to(tl.float32) - above, ratio, _ROUNDING).to(tl.int32, bitcast=True) & 255
    c = tl.fma((quad >> 16 & 255).to(tl.float32) - above, ratio, _ROUNDING).to(tl.int32, bitcast=True) & 255
    d = tl.fma((quad >> 24 & 255).to(tl.float32) - above, ratio, _ROUNDING).to(tl.int32, bitcast=True)
    return a | (b << 8) | (c << 16) | (d << 24)


@triton.jit
def int8_bytes(words, ratio, levels, tables, FORMAT: tl.constexpr, NVIDIA: tl.constexpr):
    """The same as int8 [..., 2, 2], the last two dimensions being the bytes of a quad, which are one register."""
    if NVIDIA:
        words, ratio = _four_times(words), _four_times(ratio)
        if FORMAT == "mq4":
            left, right, minus = _four_times(tables[0]), _four_times(tables[1]), _four_times(tables[2])
            return tl.inline_asm_elementwise(
                _BYTES,
                _BYTES_REGISTERS,
                [words, ratio, left, right, minus],
                dtype=(tl.int8, tl.int8),
                is_pure=True,
                pack=4,
            )
        return tl.inline_asm_elementwise(
            _BYTES_UNIFORM, _BYTES_REGISTERS_UNIFORM, [words, ratio], dtype=(tl.int8, tl.int8), is_pure=True, pack=4
        )
    else:
        low, high = int8_quads(words, ratio, levels, tables, FORMAT, False)
        return _bytes_of(low), _bytes_of(high)


@triton.jit
def _four_times(v):
    twice = tl.join(v, v)
    return tl.join(twice, twice)


@triton.jit
def _bytes_of(quad):
    evens = tl.join(quad.to(tl.int8), (quad >> 16).to(tl.int8))
    return tl.join(evens, tl.join((quad >> 8).to(tl.int8), (quad >> 24).to(tl.int8)))


# --- the kernel ------------------------------------------------------------------------------------------------------


@triton.jit
def _int8_weights(
    packed, scale, largest, levels, halves, out, first_tile, n_pairs,
    FORMAT: tl.constexpr, LONGEST: tl.constexpr, PAIRS: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """Pairs of groups PAIRS * program_id(0) and on, of tile program_id(1) of those from first_tile on."""
    tile = (first_tile + tl.program_id(1)).to(tl.int64)
    p = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)[:, None]
    i = tl.arange(0, 128)[None, :]  # g, j, r = 2 e + h
    ok = p < n_pairs
    by = row_ratio(tl.load(largest + tile * 16 + i % 2 * 8 + i // 16 + 0 * p), LONGEST)
    code = tl.load(scale + (tile * n_pairs + p) * 32 + (i // 16 * 4 + i % 4), mask=ok, other=0)
    word = tl.load(packed + (tile * n_pairs + p) * 128 + i, mask=ok, other=0, eviction_policy="evict_first")
    tables = half_tables_of_lanes(halves, PAIRS, FORMAT, NVIDIA)
    low, high = int8_quads(word, ratios(codes_of_lanes(code), by, NVIDIA), levels, tables, FORMAT, NVIDIA)
    quads = tl.reshape(tl.join(low, high), (PAIRS, 8, 4, 2, 2, 2))  # p, g, j, e, h, half
    quads = tl.reshape(tl.permute(quads, (4, 1, 0, 3, 5, 2)), (16, PAIRS * 16))
    row = tl.program_id(1) * 16 + tl.arange(0, 16)[:, None]
    at = tl.program_id(0) * (PAIRS * 16) + tl.arange(0, PAIRS * 16)[None, :]
    tl.store(out + row.to(tl.int64) * (n_pairs * 16) + at, quads, mask=at < n_pairs * 16)


def int8_weights(w: PackedMatrix, out: Tensor, *, first_tile: int) -> None:
    """The places of tiles first_tile, first_tile + 1, ... of a matrix in fragments into out [16 T, K] int8, contiguous:
    the rows' steps times these are the weights, but for rounding.
    """
    n_tiles, n_pairs = len(out) // TILE, w.packed.shape[1]
    assert w.largest is not None, "the matrix is in fragments"
    assert w.format in FORMATS_AS_INT8
    assert out.shape == (n_tiles * TILE, 2 * GROUP * n_pairs)
    assert out.dtype == torch.int8
    assert out.is_contiguous()
    assert 0 <= first_tile <= len(w.packed) - n_tiles
    _int8_weights[(cdiv(n_pairs, _PAIRS), n_tiles)](
        w.packed, w.scale, w.largest, table(out.device), half_tables(out.device), out.view(torch.int32),
        first_tile, n_pairs,
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
                "packed": "*i32", "scale": "*u8", "largest": "*u8", "levels": "*i32", "halves": "*i32", "out": "*i32",
                "first_tile": "i32", "n_pairs": "i32:16",
            },
            constants={"FORMAT": form, "LONGEST": -FORMATS[form].levels[0], "PAIRS": _PAIRS, "NVIDIA": False},
            num_warps=_WARPS,
            is_decode=False,
            only_target="sm_90",
            nvidia_constants={"NVIDIA": True},
        )  # fmt: skip
