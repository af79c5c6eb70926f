"""Packed weights to dense ones, in the basis that they are stored in: what the library multiplies by in prefill.

A program decodes 16 rows of a span of columns. A lane has 8 neighbouring elements at a time, which are half of two
words: neighbouring lanes then write whole lines, which is most of the traffic, and a word's other half is in the L1
cache for the lane that wants it. A weight is level * scale in float32, exact, and is rounded once, to the type of the
output. The reference is pack.dequantize_ref. It knows no products.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from runner.kernels.compile import Variant
from runner.kernels.fragments import BLOCK, TILE
from runner.kernels.grids import FORMATS, scale_value, table, words_of_group
from runner.kernels.values import GROUP, OPTIONS, PackedMatrix, cdiv, is_nvidia
from runner.quant.mq.formats import MQ4, MQ4_UNIFORM, MQ6


def _look_up() -> str:
    """PTX: the four lowest nibbles of $1 to their levels in $0.

    PRMT picks four bytes of eight by the low three bits of a nibble, from each half of the table; a third one picks
    between the halves by bit 3.
    """
    words = [int.from_bytes(bytes(level & 255 for level in MQ4.levels[i : i + 4]), "little") for i in (0, 4, 8, 12)]
    tables = " ".join(f"mov.b32 t{i}, {word:#x};" for i, word in enumerate(words))
    return (
        "{ .reg .b32 s, m, a, b, t0, t1, t2, t3; "
        + tables
        + " and.b32 s, $1, 0x7777; shr.u32 m, $1, 1; and.b32 m, m, 0x4444; or.b32 m, m, 0x3210; "
        + "prmt.b32 a, t0, t1, s; prmt.b32 b, t2, t3, s; prmt.b32 $0, a, b, m; }"
    )


_LOOK_UP = tl.constexpr(_look_up())
_LOWEST_4 = tl.constexpr(MQ4_UNIFORM.levels[0])
_LOWEST_6 = tl.constexpr(MQ6.levels[0])


@triton.jit
def _words(
    packed, high, n, place, g, quad, ok, n_groups, FORMAT: tl.constexpr, WORDS: tl.constexpr, ORDER: tl.constexpr
):
    """The word that quad `quad`, 0 to 7, of group g has its 4 (or 8) bits in; for mq6 also the one with its top bits.

    n: the row of the weights, place: where it lies in a tile of fragments.
    """
    if ORDER == "planes":
        group = packed + n.to(tl.int64) * (WORDS * n_groups) + g
        word = tl.load(group + (quad if FORMAT == "mq8" else quad % 4) * n_groups, mask=ok, other=0)
        more = tl.load(group + (4 + quad // 4) * n_groups, mask=ok, other=0) if FORMAT == "mq6" else word
    else:
        pair = (place // 16).to(tl.int64) * (n_groups // 2) + g // 2
        at = pair * 128 + place % 8 * 16 + quad % 4 * 4 + g % 2 * 2 + place % 16 // 8
        word = tl.load(packed + at, mask=ok, other=0)
        more = tl.load(high + at, mask=ok, other=0).to(tl.int32) if FORMAT == "mq6" else word
    return word, more


@triton.jit
def _levels(word, more, quad, levels, FORMAT: tl.constexpr, ORDER: tl.constexpr, NVIDIA: tl.constexpr):
    """The four levels of a quad, float32."""
    half = quad // 4
    if FORMAT == "mq4" and NVIDIA:
        if ORDER == "fragments":
            word = word >> (16 * half)
        else:
            word = _in_order(word >> (4 * half))
        word = tl.inline_asm_elementwise(_LOOK_UP, "=r,r", [word], dtype=tl.int32, is_pure=True, pack=1)
    result = ()
    for i in tl.static_range(4):
        if FORMAT == "mq8" or (FORMAT == "mq4" and NVIDIA):
            level = (word << (24 - 8 * i)) >> 24
        elif FORMAT == "mq4":
            shift = 4 * i + 16 * half if ORDER == "fragments" else 8 * i + 4 * half
            level = tl.load(levels + ((word >> shift) & 15))
        elif FORMAT == "mq4-uniform":
            level = 2 * ((word >> (8 * i + 4 * half)) & 15) + _LOWEST_4
        else:
            shift = 2 * i + 8 * half if ORDER == "fragments" else 8 * i + 2 * (quad % 4)
            index = ((word >> (8 * i + 4 * half)) & 15) | (((more >> shift) & 3) << 4)
            level = 2 * index + _LOWEST_6
        result = result + (level.to(tl.float32),)  # type: ignore[assignment]
    return result


@triton.jit
def _in_order(word):
    """The low nibbles of four bytes side by side, in the low 16 bits."""
    nibbles = word & 0x0F0F0F0F
    nibbles |= nibbles >> 4
    return (nibbles & 0xFF) | ((nibbles >> 8) & 0xFF00)


@triton.jit
def _dequantize(
    packed, high, scale, row_scale, levels, out, first, count, n_groups,
    PAIR: tl.constexpr, FORMAT: tl.constexpr, WORDS: tl.constexpr, ORDER: tl.constexpr,
    SPAN: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """first, count: the columns of what the product gives; see dequantize."""
    n_spans = tl.cdiv(4 * n_groups, SPAN)
    i = tl.arange(0, 16)[:, None]
    if PAIR == 0:
        place = first + tl.program_id(0) // n_spans * 16 + i
        n = place
        row = place - first
        n_ok = row < count
    else:
        place = 2 * first + tl.program_id(0) // n_spans * 16 + i
        column = place // 16 * 8 + i % 8
        n = column + i // 8 * PAIR
        row = column - first + i // 8 * count
        n_ok = column < first + count
    eighth = tl.program_id(0) % n_spans * SPAN + tl.arange(0, SPAN)[None, :]
    ok = n_ok & (eighth < 4 * n_groups)
    g, quad = eighth // 4, eighth % 4 * 2
    if ORDER == "planes":
        code = tl.load(scale + n.to(tl.int64) * n_groups + g, mask=ok, other=0)
    else:
        pair = (place // 16).to(tl.int64) * (n_groups // 2) + g // 2
        code = tl.load(scale + pair * 32 + place % 8 * 4 + g % 2 * 2 + place % 16 // 8, mask=ok, other=0)
    unit = scale_value(code) * tl.load(row_scale + n, mask=n_ok, other=0.0)
    word, more = _words(packed, high, n, place, g, quad, ok, n_groups, FORMAT, WORDS, ORDER)
    a = _levels(word, more, quad, levels, FORMAT, ORDER, NVIDIA)
    word, more = _words(packed, high, n, place, g, quad + 1, ok, n_groups, FORMAT, WORDS, ORDER)
    b = _levels(word, more, quad + 1, levels, FORMAT, ORDER, NVIDIA)
    even = tl.join(tl.join(a[0] * unit, b[0] * unit), tl.join(a[2] * unit, b[2] * unit))  # which word, which half
    odd = tl.join(tl.join(a[1] * unit, b[1] * unit), tl.join(a[3] * unit, b[3] * unit))
    value = tl.reshape(tl.join(even, odd).to(out.dtype.element_ty), (16, 8 * SPAN))
    k = tl.program_id(0) % n_spans * (8 * SPAN) + tl.arange(0, 8 * SPAN)[None, :]
    tl.store(out + row.to(tl.int64) * (32 * n_groups) + k, value, mask=n_ok & (k < 32 * n_groups))


def dequantize(w: PackedMatrix, out: Tensor, *, first: int, pair: int) -> None:
    """Rows first, first + 1, ... of the weights into out [count, K], contiguous, of a float type.

    pair: if not 0, rows first ... of those below `pair`, and then their partners n + pair, into out [2 count, K].
    first: a multiple of 16, with pairs of 8.
    """
    n, k = w.shape
    count, unit = (len(out) // 2, BLOCK) if pair else (len(out), TILE)
    assert out.shape[1] == k
    assert out.is_contiguous()
    assert pair in (0, n // 2)
    assert first % unit == 0
    assert 0 < count <= (pair or n) - first
    assert w.layout == "planes" or w.pair == pair
    span, warps = _TILES[w.layout]
    _dequantize[(-(-count // unit) * cdiv(k // 8, span),)](
        w.packed, w.packed if w.high is None else w.high, w.scale, w.row_scale, table(out.device), out,
        first, count, k // GROUP,
        PAIR=pair, FORMAT=w.format, WORDS=words_of_group(FORMATS[w.format]), ORDER=w.layout,
        SPAN=span, NVIDIA=is_nvidia(out), num_warps=warps, **OPTIONS,
    )  # fmt: skip


# 8 * SPAN columns of 16 rows a program, and its warps. H200, planes of [49152, 2048] and [98304, 768]: 179 and 105 us;
# (32, 4) 217 and 131, (64, 4) 181 and 113, (64, 8) 178 and 138, (128, 8) 221 and 142.
_TILES: Final = {"fragments": (32, 4), "planes": (16, 2)}


def variants() -> Iterator[Variant]:
    for form, order, pair in (
        ("mq4", "planes", 0), ("mq4", "fragments", 14336), ("mq4-uniform", "fragments", 0), ("mq6", "fragments", 0),
        ("mq8", "planes", 0),
    ):  # fmt: skip
        span, warps = _TILES[order]
        yield Variant(
            name=f"dequantize {form} {order}" + (" pairs" if pair else ""),
            kernel=_dequantize,
            signature={
                "packed": "*i32", "high": "*i16" if (form, order) == ("mq6", "fragments") else "*i32", "scale": "*u8",
                "row_scale": "*fp32", "levels": "*i32", "out": "*bf16", "first": "i32:16", "count": "i32:16",
                "n_groups": "i32:16",
            },
            constants={
                "PAIR": pair, "FORMAT": form, "WORDS": words_of_group(FORMATS[form]), "ORDER": order, "SPAN": span,
                "NVIDIA": False,
            },
            num_warps=warps,
            is_decode=False,
            nvidia_constants={"NVIDIA": True},
        )  # fmt: skip
