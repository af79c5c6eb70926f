"""What the products of weights in fragments share: words to what a tensor core multiplies, and the last sums of a tile.

See fragments.py for what lies where. gemv_steps.py and gemv_fragments.py add the same numbers in the same order, so a
row has the same bits in both. It knows nothing of how they share the pairs of groups.
"""

from __future__ import annotations

import triton
import triton.language as tl

from runner.kernels.fragments import MAGIC
from runner.kernels.grids import ADDENDS, FORMATS, dot4, raised_quads, spread_nibbles, table_quad

# What a weight's bits say lies this much above its level: they say twice a nibble or twice six bits, or, where there is
# a table of levels, the level itself.
ZEROS = {name: 0 if form.grid == "table" else -form.levels[0] for name, form in FORMATS.items()}
START = tl.constexpr(MAGIC)
START_BITS = tl.constexpr(0x4B400000)


def scales(code: str) -> str:
    """PTX: s0 to s3, the four scales whose codes the register `code` has, each twice what it says, by way of c.

    A code's exponent, 0 to 7, is put beside a float's 128, which takes no carry; the columns' factor mends that.
    """
    lines = []
    for i in range(4):
        byte_and_its_sign = 0x8880 + 0x1111 * i & 0xFFFF | i
        lines.append(f"prmt.b32 c, {code}, 0, {byte_and_its_sign:#x}; shl.b32 c, c, 19; and.b32 c, c, 0x83f80000;")
        lines.append(f"or.b32 c, c, 0x40000000; mov.b32 s{i}, c;")
    return " ".join(lines)


@triton.jit
def scales_of(codes):
    """What `scales` gives of codes uint8."""
    bits = codes.to(tl.int8, bitcast=True).to(tl.int32) << 19
    return ((bits & -0x7C080000) | 0x40000000).to(tl.float32, bitcast=True)


_TO_FOUR = tl.constexpr("mov.b32 $0, $4; mov.b32 $1, $4; mov.b32 $2, $4; mov.b32 $3, $4;")


@triton.jit
def codes_in_four(codes, NVIDIA: tl.constexpr):
    """Codes uint8 [S, 128], on NVIDIA as int32: a lane's four codes in one register, four times."""
    if NVIDIA:
        return tl.inline_asm_elementwise(_TO_FOUR, "=r,=r,=r,=r,r", [codes], dtype=tl.int32, is_pure=True, pack=4)
    else:
        return codes


@triton.jit
def _first_of_four(v):
    """int32 [S, 128] whose four elements of a lane are the same, as one register."""
    return tl.inline_asm_elementwise(_TO_FOUR, "=r,=r,=r,=r,r,r,r,r", [v], dtype=tl.int32, is_pure=True, pack=4)


@triton.jit
def half_tables_of_lanes(halves, S: tl.constexpr, FORMAT: tl.constexpr, NVIDIA: tl.constexpr):
    """grids.half_tables as three tensors [S, 128], where `addends` wants them."""
    if FORMAT == "mq4" and NVIDIA:
        i = tl.arange(0, 128)[None, :] + 0 * tl.arange(0, S)[:, None]
        left = _first_of_four(tl.load(halves + i))
        right = _first_of_four(tl.load(halves + 128 + i))
        return left, right, _first_of_four(tl.load(halves + 256 + i))
    else:
        return 0, 0, 0


@triton.jit
def minus_of_lanes(halves, S: tl.constexpr, FORMAT: tl.constexpr, NVIDIA: tl.constexpr):
    """-1 [S, 128] for mq4 on NVIDIA, as memory has it: of a constant, ptxas would make a subtraction of a product."""
    _, _, minus = half_tables_of_lanes(halves, S, FORMAT, NVIDIA)
    return minus


@triton.jit
def addends(words, high, levels, left, right, minus, FORMAT: tl.constexpr, NVIDIA: tl.constexpr):
    """Levels, plus what ZEROS says, of the low and the high quads of words [S, 128], as int8 in int32s.

    And two more: of mq4 on NVIDIA what is to be added to them, of others the same again. left, right, minus:
    half_tables_of_lanes.
    """
    if FORMAT == "mq4":
        if NVIDIA:
            return tl.inline_asm_elementwise(
                ADDENDS,
                "=r,=r,=r,=r,r,r,r,r",
                [words, left, right, minus],
                dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
                is_pure=True,
                pack=1,
            )
        low = table_quad(spread_nibbles(words & 0xFFFF), levels)
        top = table_quad(spread_nibbles((words >> 16) & 0xFFFF), levels)
        return low, top, low, top
    low, top, _ = raised_quads(words, high, levels, FORMAT, NVIDIA)
    return low, top, low, top


@triton.jit
def by_group(v, S: tl.constexpr):
    """What lies in [S, 128] by group: two times [S, 8, 4, 2], the last index being r % 2."""
    return tl.split(tl.permute(tl.reshape(v, (S, 8, 4, 2, 2)), (0, 1, 2, 4, 3)))


@triton.jit
def portable_product(low, high, x, S: tl.constexpr):
    """What the instruction gives, int32 [S, 8, 4, 2, 2] (g, t, h, c), of one group's low, high and x [S, 8, 4, 2]."""
    x_low, x_high = tl.split(x)
    total = tl.zeros((S, 8, 8, 4, 2), tl.int32)  # g, n, j, h
    total = dot4(low[:, :, None, :, :] + total, x_low[:, None, :, :, None] + total, total, False)
    total = dot4(high[:, :, None, :, :] + 0 * total, x_high[:, None, :, :, None] + 0 * total, total, False)
    found = tl.reshape(tl.sum(total, 3), (S, 8, 4, 2, 2))  # g, t, c, h
    return tl.permute(found, (0, 1, 2, 4, 3))


@triton.jit
def sum_by_halves(v, N: tl.constexpr, R: tl.constexpr):
    """[N, R] to [R]: the first half plus the second, and so on, so that the order does not follow from the layout."""
    HALVINGS: tl.constexpr = tl.constexpr(N.bit_length() - 1)
    for i in tl.static_range(HALVINGS):
        first, second = tl.split(tl.permute(tl.reshape(v, (2, N >> (i + 1), R)), (1, 2, 0)))
        v = first + second
    return tl.reshape(v, (R,))
