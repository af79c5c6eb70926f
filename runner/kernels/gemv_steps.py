"""What the products of one row with weights in fragments share: steps of four pairs of groups, on tensor cores.

The eight columns of the instruction (mma.m16n8k32) hold x of eight groups: the x of group i of a step stands in column
i alone, so that eight chained products leave the exact sums of 16 rows of weights and 8 groups, and their scales, zero
points and float sums are computed once, with no lane idle.

    acc[lane] += x.scale[p] * sum over the two groups g of pair p of scale[n, g] * (sum over g of level * x level)

V warps multiply a tile of weights by a row of x each; W of them share a tile and a row: warp w of these has pairs
4 (W s + w) to 4 (W s + w) + 3 of step s, and a lane keeps the sums of one of these four. DEPTH steps' weights are on
their way. Products of levels are int32, all else float32. It knows neither where a tile lies nor what becomes of it.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from runner.kernels.fragment_products import (
    START,
    START_BITS,
    addends,
    by_group,
    codes_in_four,
    portable_product,
    scales,
    scales_of,
    sum_by_halves,
)

# PTX: $0-$3 = $16-$19 plus the products of a pair of groups; $4-$7 low quads and $8-$11 high ones, of row g and row
# g + 8 in the first group, then in the second; $12-$15 x words, 0 where another column has its group.
_CHAIN = tl.constexpr(
    "{ .reg .b32 d<4>; "
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {d0, d1, d2, d3}, {$4, $5, $8, $9}, {$12, $13}, "
    "{$16, $17, $18, $19}; "
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {$0, $1, $2, $3}, {$6, $7, $10, $11}, {$14, $15}, "
    "{d0, d1, d2, d3}; }"
)
_CHAIN_REGISTERS = tl.constexpr(",".join(["=r"] * 4 + ["r"] * 16))


def _fold(*, has_begins: bool) -> str:
    """PTX: acc += x.scale * (the two groups' scale * (level * x level)), for 16 rows of weights and 8 groups.

    $0-$3 acc after, of row g and of row g + 8, and twice nothing; $4-$7 the sums of row g with the first and the second
    group of the lane's pair, and of row g + 8; $8 the four scales' codes, of both rows in the first group, then in the
    second; $12-$15 notes of x for the lane's pair, or, unless has_begins, x.scale; $16-$19 acc. See
    gemv_fragments._fold for how.
    """
    lines = ["{ .reg .b32 c; .reg .f32 f, e, s<4>, o<2>;", scales("$8")]
    for row in range(2):
        first, second = ("$13", "$14") if has_begins else ("0f4B400000",) * 2
        lines.append(f"mov.b32 f, ${4 + 2 * row}; sub.rn.f32 f, f, {first}; mul.rn.f32 f, f, s{row};")
        lines.append(f"mov.b32 e, ${5 + 2 * row}; sub.rn.f32 e, e, {second}; fma.rn.f32 f, e, s{2 + row}, f;")
        lines.append(f"fma.rn.f32 o{row}, f, $12, ${16 + row};")
    return " ".join(lines) + " mov.f32 $0, o0; mov.f32 $1, o1; mov.f32 $2, $18; mov.f32 $3, $19; }"


_FOLD = tl.constexpr(_fold(has_begins=True))
_FOLD_ADDENDS = tl.constexpr(_fold(has_begins=False))
_FOLD_REGISTERS = tl.constexpr(",".join(["=f"] * 4 + ["r"] * 8 + ["f"] * 8))

# PTX: $0-$3 what lies at $4, which $5-$7 are too: one load for the four elements of a lane. A tensor of [V, 32] made
# [V, 128] afterwards would pass through shared memory, and so might this, had it not $8-$11, which lie as they should.
_ONE_OF_LANE = tl.constexpr("ld.global.f32 $0, [$4]; mov.b32 $1, $0; mov.b32 $2, $0; mov.b32 $3, $0;")
_ONE_OF_LANE_REGISTERS = tl.constexpr("=f,=f,=f,=f,l,l,l,l,r,r,r,r")


@triton.jit
def _portable_fold(sums, codes, notes, acc, V: tl.constexpr):
    """What _fold says: [V, 128], of which a lane has (2 rows, nothing)."""
    scale0, scale1 = tl.split(tl.permute(tl.reshape(scales_of(codes), (V, 8, 4, 2, 2)), (0, 1, 2, 4, 3)))
    sum0, sum1 = tl.split(tl.reshape(sums.to(tl.float32), (V, 8, 4, 2, 2)))  # [V, 8, 4, 2]: g, t, h
    even, odd = tl.split(tl.reshape(notes, (V, 8, 4, 2, 2)))  # of places 0 and 2, 1 and 3
    x_scale, begin1 = tl.split(even)
    begin0, _ = tl.split(odd)
    found = (sum0 - (begin0 - START)[:, :, :, None]) * scale0
    found = tl.fma(sum1 - (begin1 - START)[:, :, :, None], scale1, found)
    found = tl.permute(tl.join(found, 0.0 * found), (0, 1, 2, 4, 3))
    before = tl.reshape(acc, (V, 8, 4, 2, 2))
    return tl.reshape(tl.fma(found, x_scale[:, :, :, None, None] + 0.0 * found, before), (V, 128))


@triton.jit
def _load(pointer, ok, MASKED: tl.constexpr, POLICY: tl.constexpr):
    """What is there, 0 where it is not ok; not MASKED: all of it is."""
    if MASKED:
        return tl.load(pointer, mask=ok, other=0, eviction_policy=POLICY)
    else:
        return tl.load(pointer, eviction_policy=POLICY)


@triton.jit
def _loaded(packed, high, scale, p, end, FORMAT: tl.constexpr, NVIDIA: tl.constexpr, MASKED: tl.constexpr):
    """Of the four pairs from p [V, 1] on: their words, for mq6 the upper bits of them, and the codes of their scales.

    MASKED: not all of them are there. A lane has four elements of each: see gemv_fragments._loaded.
    """
    i = tl.arange(0, 128)[None, :]
    words = ()
    more = ()
    for t in tl.static_range(4):
        at = (p + t) * 128
        ok = (p + t < end) & (i >= 0)
        w = _load(packed + at + i, ok, MASKED, "evict_first")
        m = w
        if FORMAT == "mq6":
            m = _load(high + at + (i // 4 * 4 + i % 4), ok, MASKED, "evict_first")
        words = words + (w,)  # type: ignore[assignment]
        more = more + (m,)  # type: ignore[assignment]
    of_lane = p + i // 4 % 4
    codes = _load(scale + of_lane * 32 + i // 16 * 4 + i % 4, of_lane < end, MASKED, "")
    return words, more, codes_in_four(codes, NVIDIA)


@triton.jit
def _in_its_column(x_words, t, V: tl.constexpr, NVIDIA: tl.constexpr):
    """Of the words of x [V, 128] of a step those of pair t, each in the column of its group, else 0."""
    i = tl.arange(0, 128)[None, :] + 0 * tl.arange(0, V)[:, None]
    in_column = (i // 16 == 2 * t + i % 4 // 2).to(tl.int32)
    if NVIDIA:  # A product in PTX, or ptxas would turn it into a choice, which the busier pipe makes.
        return tl.inline_asm_elementwise(
            "mul.lo.s32 $0, $1, $2;", "=r,r,r", [x_words, in_column], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        return x_words * in_column


@triton.jit
def _chained(low, top, x_columns, sums):
    return tl.inline_asm_elementwise(
        _CHAIN, _CHAIN_REGISTERS, [low, top, x_columns, sums], dtype=tl.int32, is_pure=True, pack=4
    )


@triton.jit
def _products_of_step(
    loaded, acc, levels, halves, x_columns, x_notes, FORMAT: tl.constexpr, V: tl.constexpr, NVIDIA: tl.constexpr
):
    """acc [V, 128] with four pairs added. x_columns: _in_its_column of each; x_notes: those of a lane's pair."""
    words, more, codes = loaded
    left, right, minus = halves
    # Two chains of products, since each waits for the one before it; of integers, whose order does not matter. Of mq6
    # one: its registers do not last for two.
    sums = tl.full((V, 128), START_BITS if NVIDIA else 0, tl.int32)
    others = tl.zeros((V, 128), tl.int32)
    for t in tl.static_range(4):
        low, top, low2, top2 = addends(words[t], more[t], levels, left, right, minus, FORMAT, NVIDIA)
        mine = x_columns[t]
        if NVIDIA:
            if FORMAT == "mq4":
                sums = _chained(low, top, mine, sums)
                others = _chained(low2, top2, mine, others)
            elif FORMAT == "mq6" or t < 2:
                sums = _chained(low, top, mine, sums)
            else:
                others = _chained(low, top, mine, others)
        else:
            low0, low1 = by_group(low, V)
            top0, top1 = by_group(top, V)
            x0, x1 = by_group(mine, V)
            found = portable_product(low0, top0, x0, V) + portable_product(low1, top1, x1, V)
            sums += tl.reshape(found, (V, 128))
    if FORMAT != "mq6":
        sums += others
    if NVIDIA:
        return tl.inline_asm_elementwise(
            _FOLD_ADDENDS if FORMAT == "mq4" else _FOLD,
            _FOLD_REGISTERS,
            [sums, codes, x_notes, acc],
            dtype=tl.float32,
            is_pure=True,
            pack=4,
        )
    else:
        return _portable_fold(sums, codes, x_notes, acc, V)


@triton.jit
def _asked_x(x, notes, p, end, FORMAT: tl.constexpr, NVIDIA: tl.constexpr, MASKED: tl.constexpr):
    """Of x [V, 128]: the words of the four pairs from p [V, 1] on, and the notes of a lane's pair."""
    i = tl.arange(0, 128)[None, :]
    of_column, of_lane = p + i // 32, p + i // 4 % 4
    x_words = _load(x + of_column * 16 + i // 4 % 4 * 4 + i % 4, of_column < end, MASKED, "")
    if NVIDIA and FORMAT == "mq4":
        # The scale alone, since begins are constants there; of a pair that is not there another's, which counts for 0.
        ones = notes + (tl.minimum(of_lane, end - 1) if MASKED else of_lane) * 4
        x_notes = tl.inline_asm_elementwise(
            _ONE_OF_LANE, _ONE_OF_LANE_REGISTERS, [ones, x_words], dtype=tl.float32, is_pure=False, pack=4
        )
    else:
        x_notes = _load(notes + of_lane * 4 + i % 4, of_lane < end, MASKED, "")
    return x_words, x_notes


@triton.jit
def _before_weights(PDL: tl.constexpr):
    """What was asked for of x goes before the weights that are asked for next.

    L1 answers in order, and ptxas puts a load off until what it gives is used: notes of x would wait for weights from
    memory. It moves none past this, which is over at once: the wait of the whole program was before it.
    """
    if PDL:
        gdc_wait()


@triton.jit
def _step(loaded, asked, acc, levels, halves, FORMAT: tl.constexpr, V: tl.constexpr, NVIDIA: tl.constexpr):
    """acc [V, 128] with four pairs added. loaded, asked: what _loaded and _asked_x give of them."""
    x_words, x_notes = asked
    x_columns = ()
    for t in tl.static_range(4):
        x_columns = x_columns + (_in_its_column(x_words, t, V, NVIDIA),)  # type: ignore[assignment]
    return _products_of_step(loaded, acc, levels, halves, x_columns, x_notes, FORMAT, V, NVIDIA)


@triton.jit
def _step_and_load(
    loaded, acc, packed, high, scale, levels, tables, x, notes, p, end,
    FORMAT: tl.constexpr, V: tl.constexpr, W: tl.constexpr, DEPTH: tl.constexpr, NVIDIA: tl.constexpr,
    PDL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """A step, and then what the step that is DEPTH later needs, into its place."""
    asked = _asked_x(x, notes, p, end, FORMAT, NVIDIA, MASKED)
    _before_weights(PDL)
    acc = _step(loaded, asked, acc, levels, tables, FORMAT, V, NVIDIA)
    return acc, _loaded(packed, high, scale, p + 4 * W * DEPTH, end, FORMAT, NVIDIA, True)


@triton.jit
def _with(values, at: tl.constexpr, value, N: tl.constexpr):
    """The tuple of N values with another one at a place."""
    changed = ()
    for j in tl.static_range(N):
        changed = changed + (value if j == at else values[j],)  # type: ignore[assignment]
    return changed


@triton.jit
def begun_steps(
    packed, high, scale, p, end,
    FORMAT: tl.constexpr, W: tl.constexpr, DEPTH: tl.constexpr, STEPS: tl.constexpr, NVIDIA: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The weights of the first steps, asked for. p: the first pair [V, 1] of each warp; end: behind the last of all."""
    waiting = ()
    for s in tl.static_range(DEPTH if DEPTH < STEPS else STEPS):
        waiting = waiting + (_loaded(packed, high, scale, p + 4 * W * s, end, FORMAT, NVIDIA, MASKED),)  # type: ignore[assignment]
    return waiting


@triton.jit
def begun_x(
    x, notes, p, end,
    FORMAT: tl.constexpr, W: tl.constexpr, DEPTH: tl.constexpr, STEPS: tl.constexpr, NVIDIA: tl.constexpr,
    PDL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """What the first steps want of x, asked for, where there are so few that it is not asked for step by step."""
    asked = ()
    if STEPS <= 2 * DEPTH:
        for s in tl.static_range(DEPTH if DEPTH < STEPS else STEPS):
            asked = asked + (_asked_x(x, notes, p + 4 * W * s, end, FORMAT, NVIDIA, MASKED),)  # type: ignore[assignment]
        _before_weights(PDL)
    return asked


@triton.jit
def all_steps(
    waiting, asked, packed, high, scale, levels, tables, x, notes, p, first, end,
    FORMAT: tl.constexpr, V: tl.constexpr, W: tl.constexpr, DEPTH: tl.constexpr, STEPS: tl.constexpr,
    NVIDIA: tl.constexpr, PDL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The sums [V, 128] of all pairs from `first` to `end`; see row_sums. waiting: begun_steps; asked: begun_x.

    packed, high, scale, x, notes: where the tile and the row of x begin, of all warps or [V, 1].
    """
    acc = tl.zeros((V, 128), tl.float32)
    if STEPS <= 2 * DEPTH:
        for s in tl.static_range(STEPS):
            acc = _step(waiting[s % DEPTH], asked[s % DEPTH], acc, levels, tables, FORMAT, V, NVIDIA)
            if s + DEPTH < STEPS:
                at = p + 4 * W * (s + DEPTH)
                of_x = _asked_x(x, notes, at, end, FORMAT, NVIDIA, MASKED)
                _before_weights(PDL)
                loaded = _loaded(packed, high, scale, at, end, FORMAT, NVIDIA, MASKED)
                waiting = _with(waiting, s % DEPTH, loaded, DEPTH)
                asked = _with(asked, s % DEPTH, of_x, DEPTH)
    else:
        for step in range(0, STEPS, DEPTH):
            loaded = ()
            for s in tl.static_range(DEPTH):
                at = p + 4 * W * (step + s)
                fresh = waiting[s]
                # A branch, or ptxas gathers the loads of all steps behind the last products. mq6 has none: it
                # is faster so.
                if FORMAT == "mq6" or first + 4 * W * (step + s) < end:
                    acc, fresh = _step_and_load(
                        waiting[s], acc, packed, high, scale, levels, tables, x, notes, at, end,
                        FORMAT, V, W, DEPTH, NVIDIA, PDL, MASKED or STEPS % DEPTH != 0,
                    )  # fmt: skip
                loaded = loaded + (fresh,)
            waiting = loaded
    return acc


@triton.jit
def row_sums(acc, V: tl.constexpr, W: tl.constexpr):
    """The sums of warps that share a tile: acc [V, 128] of all_steps to [V / W * 16]."""
    S: tl.constexpr = V // W
    # [V, 128] is (tile, w, g, t, r): of row g + 8 r, if r is 0 or 1, the pairs 4 w + t of each step; else nothing,
    # which goes first, or it would pass between warps too.
    rows, _ = tl.split(tl.permute(tl.reshape(acc, (V, 8, 4, 2, 2)), (0, 1, 2, 4, 3)))
    by_pair = tl.permute(tl.reshape(rows, (S, W, 8, 4, 2)), (3, 1, 0, 4, 2))
    return sum_by_halves(by_pair, 4 * W, S * 16)
