"""Packed weights in fragments to int8 with one step for each row: what the products of prompts multiply by.

A group's levels and its scale become whole multiples of the row's step, the largest scale of the row times the longest
level over 127. What that rounds off is 0.7 % of a weight, where 4 bits lost 7 to 9 before; it leaves a product whose
weights need one factor a row. What levels are multiplied by is float16, two of which one instruction multiplies.

A lane has all of four groups: so it multiplies the 16 levels of mq4 by a group's scale once, and looks the group's 32
weights up in what comes of it. `loaded_block`, `decoders`, `int8_quads` and `int8_bytes` are for any kernel that has
words in the order of fragments; the kernel here writes whole blocks. Rows come out in the order of their places
(fragments.py), with pairs eight of gate and eight of up in turn, and columns in the order of Int8Blocks, which is the
one that a lane meets them in. It knows no products.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from runner.kernels.compile import Variant
from runner.kernels.fragment_products import minus_of_lanes
from runner.kernels.fragments import MAGIC, TILE
from runner.kernels.grids import (
    FORMATS,
    RAISED,
    half_tables,
    raised_quads,
    scale_value,
    table,
    to_raised,
)
from runner.kernels.pack import dequantize_ref
from runner.kernels.values import GROUP, OPTIONS, PackedMatrix, cdiv, is_nvidia
from runner.quant.mq.formats import MQ4
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


def _f16x2(first: float, second: float) -> int:
    low, high = (int.from_bytes(struct.pack("<e", value), "little") for value in (first, second))
    return low | high << 16


def _scaled_levels() -> str:
    """PTX: the levels of mq4 times the float16 of $5 without its sign, rounded: $0, $1 those below 0, from the lowest
    on, without their signs, and $2, $3 the others, from the highest on; $4 the sign of $5, 1 or -1.

    What is rounded is the float16 1536 plus the product, of which a byte is the lower half.
    """
    lines = ["{ .reg .b32 r, p, q, c, k; and.b32 r, $5, 0x7fff7fff; shr.s32 $4, $5, 31; or.b32 $4, $4, 1;"]
    lines.append("mov.b32 k, 0x66006600;")
    for i, four in enumerate(map(_BY_SIZE.__getitem__, (slice(4), slice(4, 8), slice(8, 12), slice(12, 16)))):
        for half, pair in (("p", four[:2]), ("q", four[2:])):
            lines.append(f"mov.b32 c, {_f16x2(*pair):#x}; fma.rn.f16x2 {half}, c, r, k;")
        lines.append(f"prmt.b32 ${i}, p, q, 0x6420;")
    return " ".join(lines) + " }"


# Of the levels below 0 what PRMT picks by a nibble, of the others by the nibble's complement; a nibble of 8 or more
# copies the sign of a byte, which is 0.
_BY_SIZE: Final = (*(-level for level in MQ4.levels[:8]), *MQ4.levels[:7:-1])
assert all(level >= 0 for level in _BY_SIZE)


def _looked_up(word: str, below: tuple[str, str], above: tuple[str, str], sign: str, minus: str) -> str:
    """PTX: the levels of a word of mq4 by the tables of _scaled_levels, int8: four of the low quad in $0, of the high
    one in $1. minus: -1.

    One of both tables gives 0, so that 128 more than their difference is a byte, and carries nothing to the next. What
    need not be a shift or PRMT is a product: their pipe is the one that is full.
    """
    lines = ["{ .reg .b32 rest, n, a, b, k; mov.b32 k, 0x80808080;", f"shr.u32 rest, {word}, 16;"]
    for out, picks in (("$0", word), ("$1", "rest")):
        lines.append(f"mad.lo.s32 n, {picks}, {minus}, {minus};")
        lines.append(f"prmt.b32 b, {below[0]}, {below[1]}, {picks}; prmt.b32 a, {above[0]}, {above[1]}, n;")
        lines.append(f"mad.lo.s32 a, b, {minus}, a; mad.lo.s32 a, a, {sign}, k; xor.b32 {out}, a, k;")
    return " ".join(lines) + " }"


def _rounded(word: str, ratio: str) -> str:
    """PTX: the levels of a word of mq4-uniform times the ratio, rounded to int8, as _looked_up gives them.

    A byte is the lower half of the float16 1024 plus itself, and what is rounded is that of 1536 plus the product.
    """
    less = 0xE400 + RAISED["mq4-uniform"]  # -(1024 + what the levels are raised by)
    lines = [f"{{ .reg .b32 u, v, p, q, m, k; mov.b32 m, {less * 0x10001:#x}; mov.b32 k, 0x66006600;"]
    lines.append(to_raised("mq4-uniform", word, "u", "v"))
    for out, quad in (("$0", "u"), ("$1", "v")):
        for half, bytes_of in (("p", 0x4140), ("q", 0x4342)):
            lines.append(f"prmt.b32 {half}, {quad}, 0x64646464, {bytes_of:#x}; add.rn.f16x2 {half}, {half}, m;")
            lines.append(f"fma.rn.f16x2 {half}, {half}, {ratio}, k;")
        lines.append(f"prmt.b32 {out}, p, q, 0x6420;")
    return " ".join(lines) + " }"


_RATIOS = tl.constexpr(_ratios())
_SCALED_LEVELS = tl.constexpr(_scaled_levels())
_QUADS = tl.constexpr(_looked_up("$2", ("$3", "$4"), ("$5", "$6"), "$7", "$8"))
_QUADS_UNIFORM = tl.constexpr(_rounded("$2", "$3"))
_BYTES = tl.constexpr(_looked_up("$2", ("$6", "$10"), ("$14", "$18"), "$22", "$26"))
_BYTES_UNIFORM = tl.constexpr(_rounded("$2", "$6"))
_BYTES_REGISTERS = tl.constexpr(",".join(["=r"] * 2 + ["r"] * 28))
_BYTES_REGISTERS_UNIFORM = tl.constexpr(",".join(["=r"] * 2 + ["r"] * 8))


@triton.jit
def _of_lanes(v):
    """What the lanes of [S, 128] have, four elements each: [S, 32] of each."""
    even, odd = tl.split(tl.reshape(v, (v.shape[0], 32, 2, 2)))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    return a, b, c, d


@triton.jit
def loaded_block(packed, scale, p, end):
    """Of the four pairs of groups from p [T, 1] on, of those before `end`: words, and the codes of their scales.

    packed, scale: where the tiles [T, 1] begin. Four words [T, 128], of which a lane (g, j) has word w of pair p + j in
    the order r = 2 e + h of fragments.py: all of two groups in the end; and their codes, int32 [T, 32], four of a lane
    in one: as bytes, a loop would take them apart.
    """
    i = tl.arange(0, 128)[None, :]
    of_lane = p + i // 4 % 4
    at, ok = packed + of_lane * 128 + i // 16 * 16 + i % 4, of_lane < end
    words = ()
    for w in tl.static_range(4):
        words = words + (tl.load(at + 4 * w, mask=ok, other=0, eviction_policy="evict_first"),)  # type: ignore[assignment]  # noqa: RUF005
    codes = tl.load(scale + of_lane * 32 + i // 16 * 4 + i % 4, mask=ok, other=0)
    a, b, c, d = _of_lanes(codes.to(tl.int32))
    return words, a | b << 8 | c << 16 | d << 24


@triton.jit
def decoders(codes, by, FORMAT: tl.constexpr, NVIDIA: tl.constexpr):
    """What int8_quads wants of the groups whose codes these are, for each of the words of loaded_block.

    by: row_ratio of their rows, float16 [T, 128]. Of mq4 on NVIDIA 16 levels times the group's ratio, and its sign;
    else the ratio, on NVIDIA two float16, elsewhere float32.
    """
    ratio = _ratios_of(codes, by, NVIDIA)
    if NVIDIA and FORMAT == "mq4":
        return tl.inline_asm_elementwise(
            _SCALED_LEVELS,
            "=r,=r,=r,=r,=r,r",
            [ratio],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
    else:
        return (ratio,)


@triton.jit
def _ratios_of(codes, by, NVIDIA: tl.constexpr):
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
def int8_quads(words, decoder, levels, minus, FORMAT: tl.constexpr, NVIDIA: tl.constexpr):
    """The low and the high quads of words in the order of fragments.py, scaled, as int8 in int32s.

    decoder: decoders of their groups. minus: minus_of_lanes.
    """
    if NVIDIA:
        if FORMAT == "mq4":
            return tl.inline_asm_elementwise(
                _QUADS,
                "=r,=r,r,r,r,r,r,r,r",
                [words, decoder[0], decoder[1], decoder[2], decoder[3], decoder[4], minus],
                dtype=(tl.int32, tl.int32),
                is_pure=True,
                pack=1,
            )
        return tl.inline_asm_elementwise(
            _QUADS_UNIFORM, "=r,=r,r,r", [words, decoder[0]], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )
    else:
        low, high, above = raised_quads(words, words, levels, FORMAT, False)
        return _rounded_quad(low, decoder[0], above), _rounded_quad(high, decoder[0], above)


@triton.jit
def _rounded_quad(quad, ratio, above):
    a = tl.fma((quad & 255).to(tl.float32) - above, ratio, _ROUNDING).to(tl.int32, bitcast=True) & 255
    b = tl.fma((quad >> 8 & 255).to(tl.float32) - above, ratio, _ROUNDING).to(tl.int32, bitcast=True) & 255
    c = tl.fma((quad >> 16 & 255).to(tl.float32) - above, ratio, _ROUNDING).to(tl.int32, bitcast=True) & 255
    d = tl.fma((quad >> 24 & 255).to(tl.float32) - above, ratio, _ROUNDING).to(tl.int32, bitcast=True)
    return a | (b << 8) | (c << 16) | (d << 24)


@triton.jit
def int8_bytes(words, decoder, levels, minus, FORMAT: tl.constexpr, NVIDIA: tl.constexpr):
    """The same as int8 [..., 2, 2], the last two dimensions being the bytes of a quad, which are one register."""
    if NVIDIA:
        words = _four_times(words)
        if FORMAT == "mq4":
            b0, b1, a0, a1 = decoder[0], decoder[1], decoder[2], decoder[3]
            return tl.inline_asm_elementwise(
                _BYTES,
                _BYTES_REGISTERS,
                [
                    words, _four_times(b0), _four_times(b1), _four_times(a0), _four_times(a1),
                    _four_times(decoder[4]), _four_times(minus),
                ],
                dtype=(tl.int8, tl.int8),
                is_pure=True,
                pack=4,
            )  # fmt: skip
        return tl.inline_asm_elementwise(
            _BYTES_UNIFORM,
            _BYTES_REGISTERS_UNIFORM,
            [words, _four_times(decoder[0])],
            dtype=(tl.int8, tl.int8),
            is_pure=True,
            pack=4,
        )
    else:
        low, high = int8_quads(words, decoder, levels, minus, FORMAT, False)
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
    packed, scale, largest, levels, halves, out, first_tile, n_tiles, n_pairs,
    FORMAT: tl.constexpr, LONGEST: tl.constexpr, T: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """Block program_id(0) of 256 columns, of T tiles from T * program_id(1) on, after first_tile."""
    block, i = tl.program_id(0), tl.arange(0, 128)[None, :]  # g, j, r = 2 e + h
    of_out = tl.minimum(tl.program_id(1) * T + tl.arange(0, T), n_tiles - 1)[:, None]
    tile = (first_tile + of_out).to(tl.int64)
    by = row_ratio(tl.load(largest + tile * 16 + i % 2 * 8 + i // 16), LONGEST)
    words, codes = loaded_block(packed + tile * (n_pairs * 128), scale + tile * (n_pairs * 32), block * 4, n_pairs)
    decoder, minus = decoders(codes, by, FORMAT, NVIDIA), minus_of_lanes(halves, T, FORMAT, NVIDIA)
    found = ()
    for w in tl.static_range(4):
        low, high = int8_quads(words[w], decoder, levels, minus, FORMAT, NVIDIA)
        found = found + (tl.join(low, high),)  # type: ignore[assignment]  # noqa: RUF005
    quads = tl.join(tl.join(found[0], found[2]), tl.join(found[1], found[3]))  # type: ignore[misc]
    quads = tl.reshape(quads, (T, 8, 4, 2, 2, 2, 4))  # t, g, j, e, h, half, w
    quads = tl.reshape(tl.permute(quads, (0, 4, 1, 6, 3, 5, 2)), (T, 16, 64))
    row = of_out[:, :, None] * 16 + tl.arange(0, 16)[None, :, None]
    at = block * 64 + tl.arange(0, 64)[None, None, :]
    tl.store(out + row.to(tl.int64) * (tl.cdiv(n_pairs, 4) * 64) + at, quads)


def int8_weights(w: PackedMatrix, out: Tensor, *, first_tile: int) -> None:
    """The places of tiles first_tile, first_tile + 1, ... of a matrix in fragments into out [16 T, 256 B] int8,
    contiguous: the rows' steps times these are the weights, but for rounding.

    Columns are in the order of Int8Blocks; what belongs to columns from K on is any level.
    """
    n_tiles, n_pairs = len(out) // TILE, w.packed.shape[1]
    assert w.largest is not None, "the matrix is in fragments"
    assert w.format in FORMATS_AS_INT8
    assert out.shape == (n_tiles * TILE, 256 * cdiv(n_pairs, 4))
    assert out.dtype == torch.int8
    assert out.is_contiguous()
    assert 0 <= first_tile <= len(w.packed) - n_tiles
    _int8_weights[(cdiv(n_pairs, 4), cdiv(n_tiles, _TILES))](
        w.packed, w.scale, w.largest, table(out.device), half_tables(out.device), out.view(torch.int32),
        first_tile, n_tiles, n_pairs,
        FORMAT=w.format, LONGEST=longest_level(w), T=_TILES, NVIDIA=is_nvidia(out), num_warps=_TILES, **OPTIONS,
    )  # fmt: skip


def longest_level(w: PackedMatrix) -> int:
    return -FORMATS[w.format].levels[0]


# Of mq6 the rounding would be a third of what its levels have lost.
FORMATS_AS_INT8: Final = ("mq4", "mq4-uniform")
_TILES: Final = 2  # of a program, each a warp's


def variants() -> Iterator[Variant]:
    for form in FORMATS_AS_INT8:
        yield Variant(
            name=f"int8_weights {form}",
            kernel=_int8_weights,
            signature={
                "packed": "*i32", "scale": "*u8", "largest": "*u8", "levels": "*i32", "halves": "*i32", "out": "*i32",
                "first_tile": "i32", "n_tiles": "i32", "n_pairs": "i32:16",
            },
            constants={"FORMAT": form, "LONGEST": -FORMATS[form].levels[0], "T": _TILES, "NVIDIA": False},
            num_warps=_TILES,
            is_decode=False,
            only_target="sm_90",
            nvidia_constants={"NVIDIA": True},
        )  # fmt: skip
