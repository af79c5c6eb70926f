"""Attention of 1 to 16 new tokens over a long cache: flash decoding (Dao et al. 2023) with splits at fixed positions.

A program is one kv head with its query heads, as many rows as fill a tile with these, and a split (splits.py) of 64 to
1024 positions, the longest first. It norms and rotates its queries; if its positions are new ones, it first puts keys
and values there, of all new rows that its rows see, unless these are another layer's, which has done so. So several
programs write the same numbers to the same places, each reads what it wrote itself, and none waits for another. Which
splits take part depends on a row's own position and the window alone, what another row of the tile sees adds zeros to
this one's sums, and who puts the splits together does it in their order: so a row has the same bits whatever M and the
cache's capacity are. Positions are read on the device: a captured graph serves every length. Norms, angles, scores,
softmax and sums are float32. The references are heads.place_heads_ref and attention.attend_ref.

A warp has a scheduler to itself here, so that what a tile takes is its instructions, one after the other, and its
barriers: most of what looks odd in _fold_tile saves some. (Fewer still gained nothing for one row: docs/LOG.md,
2026-11-25.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.attention import TYPES, cap_of_powers, multiplied_in, tile_positions
from runner.kernels.compile import Variant
from runner.kernels.epilogues import p_capped
from runner.kernels.heads import Heads, append, grown, heads_and_partners, normed_values, rstd_of_rows, turned, turns_of
from runner.kernels.kv_layer import LayerCache
from runner.kernels.splits import (
    LOG2_E,
    NO_WINDOW,
    Splits,
    begin_of_split,
    first_split,
    length_of_splits,
    n_splits_of,
    power_of_2,
    seen_range,
)
from runner.kernels.values import (
    MOST_ROWS,
    OPTIONS,
    cdiv,
    has_pdl,
    is_nvidia,
    next_power_of_2,
    pdl_option,
    register_option,
)


@triton.jit
def _in_two(weight, like):
    """weight, float32, in the type of `like`, and what it lost in the same type.

    It is cut to bfloat16 and not rounded, since rounding is an instruction for each and a slow one.
    """
    if like.dtype == tl.bfloat16:
        upper = (weight.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    else:
        upper = weight.to(like.dtype).to(tl.float32)
    return upper.to(like.dtype), (weight - upper).to(like.dtype)


@triton.jit
def _fold_tile(
    queries, keys, values, key_scale, value_scale, group, tile, first, last, low, high, scale, cap, top, total, mixed,
    D: tl.constexpr, TILE: tl.constexpr, EXACT: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """TILE positions from `tile` on into the running softmax of R queries: (top, total, mixed) before -> after.

    queries: [R, BLOCK_D] in the type that is multiplied in. group: where a kv head's positions begin in keys, values
    and their scales; of these only those from first to last are read. low, high: [R], the first and the last position
    that a query sees. scale: of scores, times log2(e). cap: of scores, times log2(e), or None. top: [R], the largest
    score; total: [R, COLUMNS], in each column the sum of 2^(score - top); mixed: [R, BLOCK_D], the values weighted by
    it. Sums are float32.

    EXACT: on tensor cores, where a column of ones makes the sums (its own columns for each warp, so that none passes
    between them). Else without tensor cores, and queries are float32.
    """
    i = tl.arange(0, TILE)
    d = tl.arange(0, queries.shape[1])
    begin = group + tile
    offset = i[:, None] * D + d[None, :]
    # What may not be read is 0 and not whatever lies there: 0 times NaN would be NaN.
    is_read = (i >= first - tile) & (i <= last - tile)
    ok = is_read[:, None] & (d < D)[None, :]
    k = tl.load(keys + begin * D + offset, mask=ok, other=0).to(queries.dtype)
    v = tl.load(values + begin * D + offset, mask=ok, other=0).to(queries.dtype)
    if EXACT:
        scores = tl.dot(queries, tl.trans(k), input_precision="ieee") * scale
    else:
        scores = tl.sum(queries[:, None, :] * k[None, :, :], 2) * scale
    if key_scale is not None:
        scores *= tl.load(key_scale + begin + i, mask=is_read, other=0.0)[None, :]
    if cap is not None:
        scores = p_capped(scores, cap)
    seen = (i[None, :] >= (low - tile)[:, None]) & (i[None, :] <= (high - tile)[:, None])
    scores = tl.where(seen, scores, -float("inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(new_top == -float("inf"), 0.0, new_top)  # a query that has seen nothing yet
    weight = power_of_2(scores - base[:, None], NVIDIA)
    keep = power_of_2(top - base, NVIDIA)[:, None]
    of_values = weight
    if value_scale is not None:
        of_values = weight * tl.load(value_scale + begin + i, mask=is_read, other=0.0)[None, :]
    mixed *= keep
    total *= keep
    if EXACT:
        ones = tl.full((TILE, total.shape[1]), 1.0, queries.dtype)
        upper, rest = _in_two(weight, queries)
        values_upper, values_rest = _in_two(of_values, queries)
        mixed = tl.dot(values_upper, v, mixed, input_precision="ieee")
        total = tl.dot(upper, ones, total, input_precision="ieee")
        if queries.dtype != tl.float32:
            mixed = tl.dot(values_rest, v, mixed, input_precision="ieee")
            total = tl.dot(rest, ones, total, input_precision="ieee")
    else:
        mixed += tl.sum(of_values[:, :, None] * v[None, :, :], 1)
        total += tl.sum(weight, 1)[:, None]
    return new_top, total, mixed


@triton.jit(do_not_specialize=["n_rows", "window", "capacity", "n_splits"])
def _attend_split(
    qkv, sums, cos, sin, q_gain, k_gain, eps, keys, values, key_scale, value_scale, start, tops, totals, mixes,
    scale, cap, n_rows, window, capacity, n_splits, beta, span,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
    HAS_SUMS: tl.constexpr, SHARES: tl.constexpr, VALUES: tl.constexpr, READS: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_ROW: tl.constexpr, QUERIES: tl.constexpr, HEADS: tl.constexpr,
    COLUMNS: tl.constexpr, TILE: tl.constexpr, TYPE: tl.constexpr, LENGTH: tl.constexpr, EXACT: tl.constexpr,
    NVIDIA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """SHARES: the heads of v are those of k; VALUES: they are normed. READS: there are none of either, and the cache
    holds those of all rows."""
    PER_GROUP: tl.constexpr = H // G
    PARTS: tl.constexpr = (PER_GROUP + HEADS - 1) // HEADS
    AT_A_TIME: tl.constexpr = QUERIES // HEADS
    first_m = tl.program_id(0) * AT_A_TIME
    last_m = tl.minimum(first_m + AT_A_TIME, n_rows) - 1
    g = tl.program_id(1) // PARTS
    place = tl.num_programs(2) - 1 - tl.program_id(2)  # the last one has most to do, and so begins first
    split = first_split(start, window, capacity, LENGTH) + place
    first, _ = seen_range(start, first_m, window, capacity)
    _, last = seen_range(start, last_m, window, capacity)
    first = tl.maximum(first, begin_of_split(split, LENGTH))
    last = tl.minimum(last, begin_of_split(split + 1, LENGTH) - 1)
    if first > last:
        return
    d = tl.arange(0, BLOCK_D)
    new = tl.load(start)
    i = tl.program_id(1) % PARTS * HEADS + tl.arange(0, QUERIES) % HEADS
    m = first_m + tl.arange(0, QUERIES) // HEADS
    is_head = (i < PER_GROUP) & (m <= last_m)
    n = tl.arange(0, ROWS)
    position = new + n
    is_seen = (n <= last_m) & (position >= first) & (position <= last)
    q_gain_at = (g * PER_GROUP + i) * D if NORM == "row" else 0 * i
    q_turns = turns_of(cos + m * HALF, sin + m * HALF, is_head, q_gain, q_gain_at, D, HALF, NORM, BLOCK_D)
    q_turns = grown(q_turns, new + m, beta, span)
    k_gain_at = g * D + 0 * n if NORM == "row" else 0 * n
    if BLOCK_D <= 256 and not READS:
        k_turns = turns_of(cos + n * HALF, sin + n * HALF, is_seen, k_gain, k_gain_at, D, HALF, NORM, BLOCK_D)
    # All so far was written by kernels before the one before this one, which have ended (docs/KERNELS.md).
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    # And what this one wants of it is asked for at once, before the first of it is waited for.
    row = qkv + m * WIDTH
    q_at = row + (g * PER_GROUP + i) * D
    q_loaded = heads_and_partners(q_at, is_head, D, HALF, BLOCK_D)
    rows = qkv + n * WIDTH
    if not READS:
        k_loaded = heads_and_partners(rows + (H + g) * D, is_seen, D, HALF, BLOCK_D)
        if SHARES:
            v = k_loaded[0]
        else:
            v_at = (rows + (H + G + g) * D)[:, None] + d[None, :]
            v = tl.load(v_at, mask=is_seen[:, None] & (d < D)[None, :], other=0.0)
        # Keys whether they are new or not: so both are made at once, and one's instructions fill the other's waits.
        is_new = last >= new
        k_sums = sums + n * (WIDTH // 16) + H * D // 16
        if BLOCK_D > 256:  # of wider heads they had no room in registers so far
            k_turns = turns_of(cos + n * HALF, sin + n * HALF, is_seen, k_gain, k_gain_at, D, HALF, NORM, BLOCK_D)
        is_any = is_new.to(tl.int32)
        k_rstd = rstd_of_rows(rows + H * D, k_sums, is_seen, is_any, G * D, eps, NORM, HAS_SUMS, BLOCK_ROW)
        k = turned(k_loaded, k_turns, k_rstd, eps, D, HALF, NORM)
    q_rstd = rstd_of_rows(row, sums + m * (WIDTH // 16), is_head, 1, H * D, eps, NORM, HAS_SUMS, BLOCK_ROW)
    q = turned(q_loaded, q_turns, q_rstd, eps, D, HALF, NORM)
    queries = q.to(qkv.dtype.element_ty).to(TYPE)
    if not READS:  # noqa: SIM102 - there is no is_new else
        if is_new:
            append(k, is_seen, keys, key_scale, g, position, capacity, D, BLOCK_D)
            value = normed_values(v.to(tl.float32), eps, D, VALUES)
            append(value, is_seen, values, value_scale, g, position, capacity, D, BLOCK_D)
            tl.debug_barrier()  # what lanes wrote is read by others
    head = m * H + g * PER_GROUP + i
    group = g.to(tl.int64) * capacity
    top = tl.full((QUERIES,), -float("inf"), tl.float32)
    total = tl.zeros((QUERIES, COLUMNS), tl.float32)
    mixed = tl.zeros((QUERIES, BLOCK_D), tl.float32)
    low, high = tl.maximum(new + m - window + 1, first), tl.minimum(new + m, last)
    for tile in range(first // TILE * TILE, last + 1, TILE):
        top, total, mixed = _fold_tile(
            queries, keys, values, key_scale, value_scale, group, tile, first, last, low, high, scale, cap,
            top, total, mixed, D, TILE, EXACT, NVIDIA,
        )  # fmt: skip
    at = head.to(tl.int64) * n_splits + place
    tl.store(tops + at, top, mask=is_head)
    tl.store(totals + at, tl.max(total, 1), mask=is_head)
    tl.store(mixes + at[:, None] * D + d[None, :], mixed, mask=is_head[:, None] & (d < D)[None, :])


def attend_rows(
    heads: Heads,
    cache: LayerCache,
    start: Tensor,
    *,
    window: int | None,
    sinks: Tensor | None,
    scale: float,
    cap: float | None = None,
) -> Splits:
    """place_heads for M <= 16 rows, and their attention over the cache after it: of each split, for splits.combine.

    Row m is at position start + m, of which it sees this one and those before; with a window, the last `window` of
    these. sinks: [H] logits without a value, or None. scale: what scores are multiplied by. cap: see attend_ref.
    """
    heads.check(cache, start)
    qkv, num_heads, norm = heads.qkv, heads.num_heads, heads.norm
    assert isinstance(qkv, Tensor)
    (n_rows, half), d = heads.cos.shape, cache.head_dim
    assert 1 <= n_rows <= MOST_ROWS
    assert num_heads % cache.num_kv_heads == 0
    assert sinks is None or sinks.shape == (num_heads,), sinks
    reach = NO_WINDOW if window is None else window
    length = length_of_splits(reach, cache.num_kv_heads)
    n_splits = n_splits_of(cache.capacity, reach, length)
    tops, totals = (torch.empty(n_rows, num_heads, n_splits, dtype=torch.float32, device=qkv.device) for _ in range(2))
    mixes = torch.empty(n_rows, num_heads, n_splits, d, dtype=torch.float32, device=qkv.device)
    per_group = num_heads // cache.num_kv_heads
    block_d = max(16, next_power_of_2(d))
    beta, span = heads.growth or (None, None)
    pdl, nvidia = has_pdl(qkv), is_nvidia(qkv)
    shape = _shape(per_group, block_d, _multiplied_in(qkv, cache))
    n_blocks, n_parts = cdiv(n_rows, shape["QUERIES"] // shape["HEADS"]), cdiv(per_group, shape["HEADS"])
    # Rows are neighbours in the grid: they read the same keys and values, the first from memory, the others from L2.
    _attend_split[(n_blocks, cache.num_kv_heads * n_parts, n_splits)](
        qkv, qkv if heads.sums is None else heads.sums, heads.cos, heads.sin, heads.q_gain, heads.k_gain, heads.eps,
        cache.keys, cache.values, cache.key_scale, cache.value_scale, start,
        tops, totals, mixes, scale * LOG2_E.value, cap_of_powers(cap), n_rows, reach, cache.capacity, n_splits,
        beta, span,
        H=num_heads, G=cache.num_kv_heads, D=d, HALF=half, NORM=norm,
        HAS_SUMS=heads.sums is not None, SHARES=heads.shares_keys, VALUES=heads.has_value_norm,
        READS=heads.reads_cache, WIDTH=heads.width, ROWS=_rows(n_rows, norm, block_d, cache.is_int8),
        BLOCK_D=block_d, BLOCK_ROW=_BLOCK_ROW, **shape, LENGTH=length, NVIDIA=nvidia, PDL=pdl,
        num_warps=_warps(block_d), num_stages=_stages(block_d, _multiplied_in(qkv, cache)),
        **register_option(_most_registers(block_d, cache.is_int8) if nvidia else None), **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    return Splits(
        tops=tops, totals=totals, mixes=mixes, start=start, window=reach, length=length, capacity=cache.capacity,
        sinks=sinks, dtype=qkv.dtype,
    )  # fmt: skip


def _multiplied_in(qkv: Tensor, cache: LayerCache) -> torch.dtype | None:
    """The type that tensor cores multiply in; None where they are not used.

    RDNA's want every operand twice in registers, and spill; plain sums of a few queries keep up with memory there.
    """
    return multiplied_in(qkv, cache) if is_nvidia(qkv) else None


def _rows(n_rows: int, norm: str, block_d: int, is_int8: bool) -> int:
    """How many rows' keys and values a program may put into the cache.

    Where elements are summed it is the same for every M, unless a row has the same lanes with 8 as with 16 rows: not
    those of int8, of which a lane stores as many at once as it has.
    """
    has_same_lanes = norm == "none" or (block_d >= 128 and not is_int8)
    return 8 if n_rows <= 8 and has_same_lanes else MOST_ROWS


def _shape(per_group: int, block_d: int, kind: torch.dtype | None) -> dict[str, Any]:
    """What a program takes at once: of products in `kind` on tensor cores 16 queries, HEADS of each row."""
    is_exact = kind is not None
    queries = 16 if is_exact else 4
    return {
        "QUERIES": queries,
        "HEADS": min(queries, next_power_of_2(per_group)),
        "COLUMNS": 8 * _warps(block_d) if is_exact else 1,
        "TILE": max(1, 2048 // block_d) if kind is None else tile_positions(block_d, kind, _MOST_OF_TILE),
        "TYPE": tl.float32 if kind is None else TYPES[kind],
        "EXACT": is_exact,
    }


# H200, mq4, us of a step after 16, 1000, 4096 and 16384 tokens, 16 layers of Llama-3.1-8B: 849, 879, 962 and 1241, two
# programs a multiprocessor, for which carveout.py leaves room; with four stages and room for one (50 percent) 852, 866,
# 962 and 1308. 28 layers of Qwen3-0.6B: 554, 620, 762 and 1274; 557, 602, 787 and 1401. See docs/LOG.md for splits.
_STAGES, _STAGES_OF_LARGE_TILES = 3, 2
_MOST_OF_TILE = 128  # positions
_BLOCK_ROW = 128  # columns of all rows, or sums of 16 of them, at a time: for the norm of rows


def _warps(block_d: int) -> int:
    """Heads of 256 are twice as much work, and four warps have no room for all that can be asked for at once.

    H200, ms of a step of Gemma-3-4B after 16, 300 and 1000 tokens, with four and with eight: 1.390, 1.451, 1.530 and
    1.353, 1.390, 1.454.
    """
    return 8 if block_d > 128 else 4


def _stages(block_d: int, kind: torch.dtype | None) -> int:
    """Two where a tile of keys is larger than others are, so that it fits every GPU's shared memory."""
    return _STAGES_OF_LARGE_TILES if kind is not None and block_d * kind.itemsize > 1024 else _STAGES


def _most_registers(block_d: int, is_int8: bool) -> int | None:
    """For heads of 64 ptxas takes too few by itself, and spills some bytes; of 128, more than it needs."""
    return None if is_int8 else {64: 184, 128: 168}.get(block_d)


def variants() -> Iterator[Variant]:
    partial = {"tops": "*fp32", "totals": "*fp32", "mixes": "*fp32", "start": "*i32"}
    sizes = {"window": "i32", "capacity": "i32", "n_splits": "i32"}
    scales = ("key_scale", "value_scale")
    for name, form, norm, (h, g, d, half), m in (
        ("bf16 d64", "*bf16", "none", (64, 8, 64, 32), 1),
        ("bf16 d128", "*bf16", "none", (32, 8, 128, 64), 1),
        ("bf16 d128 M=16", "*bf16", "none", (32, 8, 128, 64), 16),
        ("bf16 d128 not rotated", "*bf16", "none", (32, 8, 128, 0), 1),
        ("bf16 d128 norm of heads", "*bf16", "head", (16, 8, 128, 64), 1),
        ("bf16 d128 norm of heads M=16", "*bf16", "head", (16, 8, 128, 64), 16),
        ("bf16 d128 norm of rows", "*bf16", "row", (32, 32, 128, 64), 1),
        ("bf16 d128 norm of rows, their sums there", "*bf16", "row", (32, 32, 128, 64), 1),
        ("bf16 d128 norm of rows, their sums there, M=16", "*bf16", "row", (32, 32, 128, 64), 16),
        ("bf16 d256 norm of heads", "*bf16", "head", (4, 1, 256, 128), 1),
        ("bf16 d256 norm of heads M=16", "*bf16", "head", (4, 1, 256, 128), 16),
        ("bf16 d256 partly rotated, before gates", "*bf16", "head", (16, 4, 256, 32), 1),
        ("bf16 d128 that grow", "*bf16", "none", (32, 8, 128, 64), 1),
        ("bf16 d256, values normed", "*bf16", "head", (32, 16, 256, 128), 1),
        ("bf16 d256, scores capped", "*bf16", "none", (16, 8, 256, 128), 1),
        ("bf16 d256 of another's cache", "*bf16", "head", (8, 1, 256, 128), 1),
        ("bf16 d512 of another's cache", "*bf16", "head", (8, 1, 512, 256), 16),
        ("bf16 d512, values normed, of keys", "*bf16", "head", (32, 4, 512, 256), 1),
        ("bf16 d512, values normed, of keys, M=16", "*bf16", "head", (32, 4, 512, 256), 16),
        ("int8 d512, values normed, of keys", "*i8", "head", (32, 4, 512, 256), 1),
        ("fp32 d512, values normed, of keys", "*fp32", "head", (32, 4, 512, 256), 1),
        ("int8 d128", "*i8", "none", (32, 8, 128, 64), 1),
        ("int8 d128 norm of heads", "*i8", "head", (16, 8, 128, 64), 1),
    ):
        block_d, gain = next_power_of_2(d), None if norm == "none" else "*fp32"
        kind = torch.float32 if form == "*fp32" else torch.bfloat16
        optional = dict.fromkeys(scales, "*fp32" if form == "*i8" else None)
        has_sums, grows, reads = "sums" in name, name.endswith("that grow"), name.endswith("cache")
        n_kept = 0 if reads else 1 if "of keys" in name else 2  # heads of k and of v in a row
        yield Variant(
            name=f"attention_decode {name}",
            kernel=_attend_split,
            signature={
                "qkv": "*bf16", "sums": "*fp32" if has_sums else "*bf16", "cos": "*fp32", "sin": "*fp32",
                "q_gain": gain, "k_gain": gain, "eps": "fp32", "keys": form, "values": form,
                "scale": "fp32", "cap": "fp32" if "capped" in name else None, "n_rows": "i32",
                **partial, **sizes, **optional,
                "beta": "fp32" if grows else None, "span": "i32" if grows else None,
            },
            constants={
                "H": h, "G": g, "D": d, "HALF": half, "NORM": norm, "HAS_SUMS": has_sums,
                "SHARES": "of keys" in name, "VALUES": "values" in name, "READS": reads,
                "WIDTH": (h + n_kept * g + h * ("gates" in name)) * d,
                "ROWS": _rows(m, norm, block_d, form == "*i8"), "BLOCK_D": block_d, "BLOCK_ROW": _BLOCK_ROW,
                "LENGTH": 64 if half == 128 else 0, "NVIDIA": False,
                **_shape(h // g, block_d, None),
            },
            nvidia_constants={"NVIDIA": True, **_shape(h // g, block_d, kind)},
            has_pdl=True,
            num_warps=_warps(block_d),
            num_stages=_stages(block_d, kind),
            most_registers=_most_registers(block_d, form == "*i8"),
        )  # fmt: skip
