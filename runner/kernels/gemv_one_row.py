"""Packed weights times one row of int8 activations on tensor cores: decoding on NVIDIA.

What gemv_fragments.py computes, in the same order, for the one row that decoding has. The eight columns of the
instruction (mma.m16n8k32) hold x of eight groups there, where several rows hold theirs: the x of group i of a step
stands in column i alone, so that eight chained products leave the exact sums of 16 rows of weights and 8 groups, and
their scales, zero points and float sums are computed once, with no lane idle.

    acc[lane] += x.scale[p] * sum over the two groups g of pair p of scale[n, g] * (sum over g of level * x level)

A program computes a tile of 16 columns, or a part of its pairs of groups, in steps of four pairs a warp; warp w has
pairs 4 (W s + w) to 4 (W s + w) + 3 of step s, and a lane keeps the sums of one of these four. DEPTH steps' weights
are on their way, the first of them, and what else does not depend on x, before the kernel before this one has ended.
Products of levels are int32, all else float32; the last sums are those of fragment_products.sum_by_halves.

The reference is matmul.linear_ref. Who launches it is gemv_fragments.GemvFragments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels import epilogues
from runner.kernels.compile import Variant
from runner.kernels.epilogues import columns, p_parts, p_rstd_of, streams
from runner.kernels.fragment_products import (
    START,
    START_BITS,
    addends,
    by_group,
    codes_in_four,
    half_tables_of_lanes,
    portable_product,
    scales,
    scales_of,
    sum_by_halves,
)
from runner.kernels.gemv_tiles import Tiles, tiles_of, tiles_of_branch
from runner.kernels.grids import half_tables, table
from runner.kernels.values import OPTIONS, Int8Fragments, PackedMatrix, has_pdl, is_nvidia, pdl_option, register_option

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


def _fold() -> str:
    """PTX: acc += x.scale * (the two groups' scale * (level * x level)), for 16 rows of weights and 8 groups.

    $0-$3 acc after, of row g and of row g + 8, and twice nothing; $4-$7 the sums of row g with the first and the second
    group of the lane's pair, and of row g + 8; $8 the four scales' codes, of both rows in the first group, then in the
    second; $12-$15 notes of x for the lane's pair; $16-$19 acc. See gemv_fragments._fold for how.
    """
    lines = ["{ .reg .b32 c; .reg .f32 f, e, s<4>, o<2>;", scales("$8")]
    for row in range(2):
        lines.append(f"mov.b32 f, ${4 + 2 * row}; sub.rn.f32 f, f, $13; mul.rn.f32 f, f, s{row};")
        lines.append(f"mov.b32 e, ${5 + 2 * row}; sub.rn.f32 e, e, $14; fma.rn.f32 f, e, s{2 + row}, f;")
        lines.append(f"fma.rn.f32 o{row}, f, $12, ${16 + row};")
    return " ".join(lines) + " mov.f32 $0, o0; mov.f32 $1, o1; mov.f32 $2, $18; mov.f32 $3, $19; }"


_FOLD = tl.constexpr(_fold())
_FOLD_REGISTERS = tl.constexpr(",".join(["=f"] * 4 + ["r"] * 8 + ["f"] * 8))


@triton.jit
def _portable_fold(sums, codes, notes, acc, W: tl.constexpr):
    """What _fold says: [W, 128], of which a lane has (2 rows, nothing)."""
    scale0, scale1 = tl.split(tl.permute(tl.reshape(scales_of(codes), (W, 8, 4, 2, 2)), (0, 1, 2, 4, 3)))
    sum0, sum1 = tl.split(tl.reshape(sums.to(tl.float32), (W, 8, 4, 2, 2)))  # [W, 8, 4, 2]: g, t, h
    even, odd = tl.split(tl.reshape(notes, (W, 8, 4, 2, 2)))  # of places 0 and 2, 1 and 3
    x_scale, begin1 = tl.split(even)
    begin0, _ = tl.split(odd)
    found = (sum0 - (begin0 - START)[:, :, :, None]) * scale0
    found = tl.fma(sum1 - (begin1 - START)[:, :, :, None], scale1, found)
    found = tl.permute(tl.join(found, 0.0 * found), (0, 1, 2, 4, 3))
    before = tl.reshape(acc, (W, 8, 4, 2, 2))
    return tl.reshape(tl.fma(found, x_scale[:, :, :, None, None] + 0.0 * found, before), (W, 128))


@triton.jit
def _load(pointer, ok, MASKED: tl.constexpr, POLICY: tl.constexpr):
    """What is there, 0 where it is not ok; not MASKED: all of it is."""
    if MASKED:
        return tl.load(pointer, mask=ok, other=0, eviction_policy=POLICY)
    else:
        return tl.load(pointer, eviction_policy=POLICY)


@triton.jit
def _loaded(packed, high, scale, p, end, FORMAT: tl.constexpr, NVIDIA: tl.constexpr, MASKED: tl.constexpr):
    """Of the four pairs from p [W, 1] on: their words, for mq6 the upper bits of them, and the codes of their scales.

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
def in_its_column(x_words, t, W: tl.constexpr, NVIDIA: tl.constexpr):
    """Of the words of x [W, 128] of a step those of pair t, each in the column of its group, else 0."""
    i = tl.arange(0, 128)[None, :] + 0 * tl.arange(0, W)[:, None]
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
def products_of_step(
    loaded, acc, levels, halves, x_columns, x_notes, FORMAT: tl.constexpr, W: tl.constexpr, NVIDIA: tl.constexpr
):
    """acc [W, 128] with four pairs added. x_columns: in_its_column of each; x_notes: those of a lane's pair."""
    words, more, codes = loaded
    left, right, minus = halves
    # Two chains of products, since each waits for the one before it; of integers, whose order does not matter. Of mq6
    # one: its registers do not last for two.
    sums = tl.full((W, 128), START_BITS if NVIDIA else 0, tl.int32)
    others = tl.zeros((W, 128), tl.int32)
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
            low0, low1 = by_group(low, W)
            top0, top1 = by_group(top, W)
            x0, x1 = by_group(mine, W)
            found = portable_product(low0, top0, x0, W) + portable_product(low1, top1, x1, W)
            sums += tl.reshape(found, (W, 128))
    if FORMAT != "mq6":
        sums += others
    if NVIDIA:
        return tl.inline_asm_elementwise(
            _FOLD, _FOLD_REGISTERS, [sums, codes, x_notes, acc], dtype=tl.float32, is_pure=True, pack=4
        )
    else:
        return _portable_fold(sums, codes, x_notes, acc, W)


@triton.jit
def _step(
    loaded, acc, levels, halves, x, notes, p, end,
    FORMAT: tl.constexpr, W: tl.constexpr, NVIDIA: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """acc [W, 128] with the four pairs from p [W, 1] on added."""
    i = tl.arange(0, 128)[None, :]
    of_column, of_lane = p + i // 32, p + i // 4 % 4
    x_words = _load(x + of_column * 16 + i // 4 % 4 * 4 + i % 4, of_column < end, MASKED, "")
    x_notes = _load(notes + of_lane * 4 + i % 4, of_lane < end, MASKED, "")
    x_columns = ()
    for t in tl.static_range(4):
        x_columns = x_columns + (in_its_column(x_words, t, W, NVIDIA),)  # type: ignore[assignment]
    return products_of_step(loaded, acc, levels, halves, x_columns, x_notes, FORMAT, W, NVIDIA)


@triton.jit
def _step_and_load(
    loaded, acc, packed, high, scale, levels, tables, x, notes, p, end,
    FORMAT: tl.constexpr, W: tl.constexpr, DEPTH: tl.constexpr, NVIDIA: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """A step, and then what the step that is DEPTH later needs, into its place."""
    acc = _step(loaded, acc, levels, tables, x, notes, p, end, FORMAT, W, NVIDIA, MASKED)
    return acc, _loaded(packed, high, scale, p + 4 * W * DEPTH, end, FORMAT, NVIDIA, True)


@triton.jit
def _gemv_one_row(
    packed, high, scale, row_scale, levels, halves, x, notes, N, norm, stream, args,
    EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, NORM: tl.constexpr, ADDS: tl.constexpr, PAIR: tl.constexpr,
    FORMAT: tl.constexpr, P: tl.constexpr, PART: tl.constexpr, W: tl.constexpr, DEPTH: tl.constexpr,
    NVIDIA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    LENGTH: tl.constexpr = P if PART == 0 else PART
    STEPS: tl.constexpr = (LENGTH + 4 * W - 1) // (4 * W)
    MASKED: tl.constexpr = LENGTH % (4 * W) != 0 or P % LENGTH != 0
    tile = tl.program_id(0)
    part = tl.program_id(2)
    first = part * LENGTH
    end = tl.minimum(first + LENGTH, P)
    packed += tile.to(tl.int64) * (P * 128)
    high += tile.to(tl.int64) * (P * 128)
    scale += tile.to(tl.int64) * (P * 32)
    p = first + 4 * tl.arange(0, W)[:, None]
    waiting = ()
    for s in tl.static_range(DEPTH if DEPTH < STEPS else STEPS):
        waiting = waiting + (_loaded(packed, high, scale, p + 4 * W * s, end, FORMAT, NVIDIA, MASKED),)  # type: ignore[assignment]
    tables = half_tables_of_lanes(halves, W, FORMAT, NVIDIA)
    w_row, w_ok, n, n2, n_ok = columns(tile, N, PAIR, 16)
    factor = 0.5 * tl.load(row_scale + w_row, mask=w_ok, other=0.0)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    rows = tl.arange(0, 8)
    if NORM[0] > 0:  # asked for now, while weights come, and used at the end
        squares = p_parts(norm[0], rows, rows < 1, NORM[0], NORM[1])
    if ADDS:
        before = tl.load(stream + n, mask=n_ok, other=0.0)
    acc = tl.zeros((W, 128), tl.float32)
    if STEPS <= 2 * DEPTH:
        for s in tl.static_range(STEPS):
            acc = _step(
                waiting[s % DEPTH], acc, levels, tables, x, notes, p + 4 * W * s, end,
                FORMAT, W, NVIDIA, MASKED,
            )  # fmt: skip
            if s + DEPTH < STEPS:
                loaded = _loaded(packed, high, scale, p + 4 * W * (s + DEPTH), end, FORMAT, NVIDIA, MASKED)
                still = ()
                for j in tl.static_range(DEPTH):
                    still = still + (loaded if j == s % DEPTH else waiting[j],)  # type: ignore[assignment]
                waiting = still
    else:
        for step in range(0, STEPS, DEPTH):
            loaded = ()
            for s in tl.static_range(DEPTH):
                at = p + 4 * W * (step + s)
                fresh = waiting[s]  # type: ignore[var-annotated]
                # A branch, or ptxas gathers the loads of all steps behind the last products. mq6 has none: it
                # is faster so.
                if FORMAT == "mq6" or first + 4 * W * (step + s) < end:
                    acc, fresh = _step_and_load(
                        waiting[s], acc, packed, high, scale, levels, tables, x, notes, at, end,
                        FORMAT, W, DEPTH, NVIDIA, MASKED or STEPS % DEPTH != 0,
                    )  # fmt: skip
                loaded = loaded + (fresh,)
            waiting = loaded
    # [W, 128] is (w, g, t, r): of row g + 8 r, if r is 0 or 1, the pairs 4 w + t of each step.
    by_pair = tl.permute(tl.reshape(acc, (W, 8, 4, 4)), (2, 0, 1, 3))
    total, _ = tl.split(tl.permute(tl.reshape(sum_by_halves(by_pair, 4 * W, 32), (8, 2, 2)), (2, 0, 1)))
    total = tl.broadcast_to((tl.reshape(total, (16,)) * factor)[None, :], (8, 16))
    lo, hi = streams(total, PAIR, 8, 16)
    if NORM[0] > 0:
        rstd = p_rstd_of(squares, norm[1], norm[2])
        lo = lo * rstd[:, None]
        hi = hi * rstd[:, None]
    if ADDS:
        lo = lo + before[None, :]
    EPILOGUE(lo, hi, rows, rows < 1, n, n2, n_ok, tile if PART == 0 else part, args, CONFIG)


def multiply_one_row(
    x: Int8Fragments,
    w: PackedMatrix,
    tiles: Tiles,
    epilogue: Callable[..., Any],
    args: tuple[Any, ...],
    config: tuple[Any, ...],
) -> None:
    """The product of one row with w, and the program `epilogue` with its arguments and constants; see Tiles."""
    assert x.num_rows == 1
    n_tiles, n_pairs = w.packed.shape[:2]
    nvidia, pdl, device = is_nvidia(w.packed), has_pdl(w.packed), w.packed.device
    norm, is_normed, args, config = epilogues.norm_apart(epilogue, args, config, x.notes)
    stream, adds, epilogue = epilogues.stream_apart(epilogue, args, config, x.notes)
    _gemv_one_row[(n_tiles, 1, triton.cdiv(n_pairs, tiles.part or n_pairs))](
        w.packed, w.packed if w.high is None else w.high, w.scale, w.row_scale, table(device), half_tables(device),
        x.words, x.notes, w.shape[0], norm, stream, args,
        EPILOGUE=epilogue, CONFIG=config, NORM=is_normed, ADDS=adds, PAIR=w.pair, FORMAT=w.format, P=n_pairs,
        PART=tiles.part, W=tiles.warps, DEPTH=tiles.depth, NVIDIA=nvidia, PDL=pdl, num_warps=tiles.warps, num_stages=1,
        **register_option(_most_registers(tiles) if nvidia else None), **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip


def _most_registers(tiles: Tiles) -> int | None:
    """Of eight warps two programs are to run at once."""
    return 128 if tiles.warps == 8 else None


def variants() -> Iterator[Variant]:
    for form, program, pair, n_tiles, n_pairs in (
        ("mq4", epilogues.store, 0, 384, 64),
        ("mq4", epilogues.add_stream, 0, 256, 64),
        ("mq4", epilogues.add_stream, 0, 256, 224),
        ("mq4", epilogues.store_part, 0, 96, 140),
        ("mq4", epilogues.add_stream, 0, 320, 272),
        ("mq4", epilogues.gate, 14336, 1792, 64),
        ("mq4", epilogues.gate, 9728, 1216, 40),
        ("mq4", epilogues.add_stream, 0, 64, 48),
        ("mq4-uniform", epilogues.add_residual, 0, 20, 5),
        ("mq4-uniform", epilogues.add_stream, 0, 256, 64),
        ("mq4-uniform", epilogues.gate, 14336, 1792, 64),
        ("mq6", epilogues.logits, 0, 8016, 64),
    ):
        is_part = program is epilogues.store_part
        is_branch = program in (epilogues.store_part, epilogues.add_stream)
        tiles = tiles_of_branch(n_tiles, n_pairs) if is_branch else tiles_of(form, n_tiles, n_pairs)
        assert is_part == (tiles.part > 0)
        config = (-(-n_pairs // tiles.part),) if is_part else (0, 0, False, 0) if pair else (0, 0, False)
        adds = program is epilogues.add_stream
        yield Variant(
            name=f"gemv_one_row {form} {program.__name__} K={64 * n_pairs}",
            kernel=_gemv_one_row,
            signature={
                "packed": "*i32", "high": "*i16" if form == "mq6" else "*i32", "scale": "*u8", "row_scale": "*fp32",
                "levels": "*i32", "halves": "*i32", "x": "*i32", "notes": "*fp32", "N": "i32:16",
                "norm": ("*fp32", "fp32", "fp32"), "stream": "*fp32",
                "args": epilogues.signature(program, "*bf16"),
            },
            constants={
                "EPILOGUE": epilogues.store if adds else program, "CONFIG": config,
                "NORM": (0, 1) if is_branch else (16, 16), "ADDS": adds, "PAIR": pair, "FORMAT": form, "P": n_pairs,
                "PART": tiles.part, "W": tiles.warps, "DEPTH": tiles.depth, "NVIDIA": True,
            },
            num_warps=tiles.warps,
            num_stages=1,
            has_pdl=True,
            is_nvidia_only=True,
            most_registers=_most_registers(tiles),
        )  # fmt: skip
