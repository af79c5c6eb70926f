"""Packed weights inside a kernel: words to int8 levels, scale codes to float32, and 4-way products with int8.

The layouts are those of quant/mq/grid.py, and so are the levels. What a kernel computes is the same integers on every
device: dp4a and PRMT on NVIDIA, shifts and masks elsewhere. It knows nothing of tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from runner.quant.mq.formats import MQ4, MQ4_UNIFORM, MQ6, MQ8
from runner.quant.mq.grid import GridFormat

FORMATS = {form.name: form for form in (MQ4, MQ4_UNIFORM, MQ6, MQ8)}


@cache
def table(device: torch.device) -> Tensor:
    """The 16 levels of mq4, int32 [16]: what the portable form of a kernel looks them up in."""
    return torch.tensor(MQ4.levels, dtype=torch.int32, device=device)


def words_of_group(form: GridFormat) -> int:
    return form.bits * form.group_size // 32


def _word(levels: Sequence[int]) -> int:
    """Four levels, one a byte."""
    return int.from_bytes(bytes(level & 255 for level in levels), "little")


def _look_up(levels: Sequence[int], word: str, low: str, high: str) -> str:
    """PTX: the eight nibbles of the register `word` to their levels in `low` and `high`, four each, in their order.

    PRMT picks four bytes of eight by the low three bits of four nibbles, from each half of the table; a third one
    picks between the halves by bit 3.
    """
    tables = " ".join(f"mov.b32 t{i}, {_word(levels[4 * i : 4 * i + 4]):#x};" for i in range(4))
    half = "prmt.b32 a, t0, t1, s; prmt.b32 b, t2, t3, s; prmt.b32 {}, a, b, m;"
    return (
        "{ .reg .b32 s, m, a, b, t0, t1, t2, t3; "
        + tables
        + f" and.b32 s, {word}, 0x77777777; shr.u32 m, {word}, 1; and.b32 m, m, 0x44444444; or.b32 m, m, 0x32103210; "
        + half.format(low)
        + " shr.u32 s, s, 16; shr.u32 m, m, 16; "
        + half.format(high)
        + " }"
    )


# How far the levels of words in the order of fragments.py are raised to be bytes from 0 on.
RAISED = {form.name: 128 if form.grid == "table" else -form.levels[0] for form in FORMATS.values()}


def to_raised(form: str, word: str, low: str, high: str) -> str:
    """PTX: a word of mq4 or mq4-uniform in that order to its raised quads; all are registers."""
    if form == "mq4":
        return _look_up([level + RAISED[form] for level in MQ4.levels], word, low, high)
    return (
        f"shl.b32 {low}, {word}, 1; and.b32 {low}, {low}, {EVEN_BITS.value:#x}; "
        f"shr.u32 {high}, {word}, 3; and.b32 {high}, {high}, {EVEN_BITS.value:#x};"
    )


# What a nibble says is the sum of two bytes: a level below 0, or -1; and a level above 0 plus 1, or 0. The second table
# is backwards, for it is looked up with the nibble's complement.
_BELOW, _ABOVE = MQ4.levels[:8], tuple(level + 1 for level in MQ4.levels[:7:-1])
assert all(level < 0 for level in _BELOW)
assert all(1 < level < 128 for level in _ABOVE)


def _halves(word: str, low: tuple[str, str], high: tuple[str, str], left: str, right: str, minus: str) -> str:
    """PTX: eight nibbles of `word`, in the order of fragments.py, to two addends each, of the low and the high quad.

    Nothing picks between two halves of a table: PRMT copies a byte's sign where the top bit of a nibble is set, which
    is what makes the -1 and the 0. left, right, minus: half_tables; of a constant, ptxas would make another register
    for every second PRMT. The complement is a product, since the pipe of shifts and PRMT is the one that is full.
    """
    return (
        f".reg .b32 below, above, n, rest, n_rest; shr.u32 rest, {word}, 16; "
        f"mad.lo.s32 n, {word}, {minus}, {minus}; mad.lo.s32 n_rest, rest, {minus}, {minus}; "
        f"mov.b32 below, {_word(_BELOW[4:]):#x}; mov.b32 above, {_word(_ABOVE[4:]):#x}; "
        f"prmt.b32 {low[0]}, {left}, below, {word}; prmt.b32 {high[0]}, {left}, below, rest; "
        f"prmt.b32 {low[1]}, {right}, above, n; prmt.b32 {high[1]}, {right}, above, n_rest;"
    )


def _addends() -> str:
    """PTX: $0 + $2 are the levels of the low quad of $4, $1 + $3 those of the high one: a tensor core adds them,
    exactly."""
    return "{ " + _halves("$4", ("$0", "$2"), ("$1", "$3"), "$5", "$6", "$7") + " }"


@cache
def half_tables(device: torch.device) -> Tensor:
    """What _halves wants from memory, int32 [3, 128]: the first half of either table and -1, for every element."""
    words = torch.tensor((_word(_BELOW[:4]), _word(_ABOVE[:4]), 2**32 - 1), dtype=torch.int64)
    return words.to(torch.int32).repeat_interleave(128).view(3, 128).to(device)


# Of words in planes: those of the low nibbles in $0, those of the high ones in $1.
LOOK_UP = tl.constexpr(
    "{ .reg .b32 u, v; "
    + _look_up(MQ4.levels, "$2", "u", "v")
    + " prmt.b32 $0, u, v, 0x6420; prmt.b32 $1, u, v, 0x7531; }"
)
LOOK_UP_RAISED = tl.constexpr(to_raised("mq4", "$2", "$0", "$1"))
ADDENDS = tl.constexpr(_addends())
LOW_NIBBLES = tl.constexpr(0x0F0F0F0F)
LOW_PAIRS = tl.constexpr(0x03030303)
EVEN_BITS = tl.constexpr(0x1E1E1E1E)
TOP_BITS = tl.constexpr(-0x7F7F7F80)  # 0x80 in each byte, as an int32
UNIFORM_4 = tl.constexpr(-MQ4_UNIFORM.levels[0] * 0x01010101)
UNIFORM_6 = tl.constexpr(-MQ6.levels[0] * 0x01010101)


@triton.jit
def odd_levels(index, LOWEST: tl.constexpr):
    """2 * index - lowest in each of four bytes, as int8. The top bit keeps borrows from crossing bytes."""
    return (((index << 1) | TOP_BITS) - LOWEST) ^ TOP_BITS


@triton.jit
def table_quad(index, levels):
    """Four indices, one a byte, to their levels, one a byte."""
    quad = tl.load(levels + (index & 255)) & 255
    quad |= (tl.load(levels + ((index >> 8) & 255)) & 255) << 8
    quad |= (tl.load(levels + ((index >> 16) & 255)) & 255) << 16
    return quad | (tl.load(levels + ((index >> 24) & 255)) << 24)


@triton.jit
def spread_nibbles(bits):
    """Four times four bits, each to the low end of a byte."""
    bits = (bits | (bits << 8)) & 0x00FF00FF
    return (bits | (bits << 4)) & LOW_NIBBLES


@triton.jit
def load_quads(group, stride, ok, levels, j, FORMAT: tl.constexpr, NVIDIA: tl.constexpr):
    """The levels of quads j and j + 4 of groups whose first words `group` points at, as int8 in int32s.

    stride: from word to word of a group. j: 0 to 3.
    """
    word = tl.load(group + j * stride, mask=ok, other=0, eviction_policy="evict_first")
    if FORMAT == "mq8":
        return word, tl.load(group + (j + 4) * stride, mask=ok, other=0, eviction_policy="evict_first")
    if FORMAT == "mq4" and NVIDIA:
        return tl.inline_asm_elementwise(LOOK_UP, "=r,=r,r", [word], dtype=(tl.int32, tl.int32), is_pure=True, pack=1)
    low = word & LOW_NIBBLES
    high = (word >> 4) & LOW_NIBBLES
    if FORMAT == "mq4":
        return table_quad(low, levels), table_quad(high, levels)
    if FORMAT == "mq4-uniform":
        return odd_levels(low, UNIFORM_4), odd_levels(high, UNIFORM_4)
    # mq6: the high two bits of quads 0 to 3 in the fifth word, of 4 to 7 in the sixth
    more_low = tl.load(group + 4 * stride, mask=ok, other=0, eviction_policy="evict_first")
    more_high = tl.load(group + 5 * stride, mask=ok, other=0, eviction_policy="evict_first")
    low |= ((more_low >> (2 * j)) & LOW_PAIRS) << 4
    high |= ((more_high >> (2 * j)) & LOW_PAIRS) << 4
    return odd_levels(low, UNIFORM_6), odd_levels(high, UNIFORM_6)


@triton.jit
def load_level(group, stride, ok, levels, quad, i, FORMAT: tl.constexpr):
    """The level, int32, of element i of quad `quad` of the same groups; both may be numbers of the run."""
    if FORMAT == "mq8":
        return (tl.load(group + quad * stride, mask=ok, other=0) << (24 - 8 * i)) >> 24
    word = tl.load(group + (quad % 4) * stride, mask=ok, other=0)
    index = (word >> (8 * i + 4 * (quad // 4))) & 15
    if FORMAT == "mq4":
        return tl.load(levels + index)
    if FORMAT == "mq4-uniform":
        return 2 * index - (UNIFORM_4 & 255)
    more = tl.load(group + (4 + quad // 4) * stride, mask=ok, other=0)
    index |= ((more >> (8 * i + 2 * (quad % 4))) & 3) << 4
    return 2 * index - (UNIFORM_6 & 255)


@triton.jit
def fragment_level(word, high, ok, levels, half, i, FORMAT: tl.constexpr):
    """The level, int32, of element i of the low (half 0) or the high quad of words in the order of fragments.py."""
    bits = tl.load(word, mask=ok, other=0)
    if FORMAT == "mq4":
        return tl.load(levels + ((bits >> (4 * i + 16 * half)) & 15))
    index = (bits >> (8 * i + 4 * half)) & 15
    if FORMAT == "mq4-uniform":
        return 2 * index - (UNIFORM_4 & 255)
    more = tl.load(high, mask=ok, other=0).to(tl.int32)
    index |= ((more >> (2 * i + 8 * half)) & 3) << 4
    return 2 * index - (UNIFORM_6 & 255)


@triton.jit
def spread_pairs(bits):
    """Four times two bits, each to the low end of a byte."""
    bits = (bits | (bits << 12)) & 0x000F000F
    return (bits | (bits << 6)) & LOW_PAIRS


@triton.jit
def raised_quads(words, high, levels, FORMAT: tl.constexpr, NVIDIA: tl.constexpr):
    """The low and the high quads of words in the order of fragments.py, levels raised to bytes from 0 on, and by how
    much."""
    if FORMAT == "mq4":
        if NVIDIA:
            low, top = tl.inline_asm_elementwise(
                LOOK_UP_RAISED, "=r,=r,r", [words], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
            )
            return low, top, 128.0
        low = table_quad(spread_nibbles(words & 0xFFFF), levels) ^ TOP_BITS
        return low, table_quad(spread_nibbles((words >> 16) & 0xFFFF), levels) ^ TOP_BITS, 128.0
    low = (words << 1) & EVEN_BITS
    top = (words >> 3) & EVEN_BITS
    if FORMAT == "mq4-uniform":
        return low, top, (UNIFORM_4 & 255) * 1.0
    low |= spread_pairs(high.to(tl.int32) & 255) << 5
    top |= spread_pairs((high.to(tl.int32) >> 8) & 255) << 5
    return low, top, (UNIFORM_6 & 255) * 1.0


_2_15 = tl.constexpr(0x47000000)
_BYTES = tl.constexpr(" ".join(f"prmt.b32 ${i}, $4, 0x47000000, 0x74{i}4;" for i in range(4)))


@triton.jit
def scaled_bytes(quad, unit, zero, NVIDIA: tl.constexpr):
    """unit times each of the four bytes of an int32, and zero added: evens and odds [..., 2], float32.

    A byte is the second one of the float 2^15 plus itself, which takes no conversion; all that is computed is exact.
    """
    if NVIDIA:
        a, b, c, d = tl.inline_asm_elementwise(
            _BYTES, "=r,=r,=r,=r,r", [quad], dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=1
        )
    else:
        a, b = (quad & 255) << 8 | _2_15, (quad >> 8 & 255) << 8 | _2_15
        c, d = (quad >> 16 & 255) << 8 | _2_15, (quad >> 24 & 255) << 8 | _2_15
    a = tl.fma(a.to(tl.float32, bitcast=True), unit, zero)
    b = tl.fma(b.to(tl.float32, bitcast=True), unit, zero)
    c = tl.fma(c.to(tl.float32, bitcast=True), unit, zero)
    d = tl.fma(d.to(tl.float32, bitcast=True), unit, zero)
    return tl.join(a, c), tl.join(b, d)


@triton.jit
def scale_value(code):
    """(1 + (code & 15) / 16) * 2^(code >> 4 & 7), negative from code 128 on: the bits of a float32."""
    code = code.to(tl.int32)
    bits = ((code & 127) << 19) + (127 << 23)
    return (bits | ((code & 128) << 24)).to(tl.float32, bitcast=True)


@triton.jit
def dot4(a, b, total, NVIDIA: tl.constexpr):
    """total + sum of a[i] * b[i] over the four int8 of each int32."""
    if NVIDIA:
        return tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, total], dtype=tl.int32, is_pure=True, pack=1
        )
    total += ((a << 24) >> 24) * ((b << 24) >> 24)
    total += ((a << 16) >> 24) * ((b << 16) >> 24)
    total += ((a << 8) >> 24) * ((b << 8) >> 24)
    return total + (a >> 24) * (b >> 24)
