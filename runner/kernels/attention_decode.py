"""Attention of 1 to 16 new tokens over a long cache: flash decoding (Dao et al. 2023) with splits of a fixed size.

A program is one kv head with its query heads, as many rows as fill a tile with these, and 256 positions: [256 s,
256 s + 256). It norms and rotates its queries; if its positions are new ones, it first puts keys and values there, of
all new rows that its rows see. So several programs write the same numbers to the same places, each reads what it wrote
itself, and none waits for another. Which splits take part depends on a row's own position and the window alone, what
another row of the tile sees adds zeros to this one's sums, and a second kernel adds the splits up in their order: so a
row has the same bits whatever M and the cache's capacity are. Positions are read on the device: a captured graph serves
every length. Norms, angles, scores, softmax and sums are float32. The references are heads.place_heads_ref and
attention.attend_ref.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.attention import TYPES, fold_tile, multiplied_in, tile_positions
from runner.kernels.compile import Variant
from runner.kernels.heads import HeadNorm, angles_of, append, check_heads, heads_and_partners, rstd_of_rows, turned
from runner.kernels.kv_layer import LARGEST_LEVEL, LayerCache
from runner.kernels.values import MOST_ROWS, OPTIONS, has_pdl, is_nvidia, pdl_option, register_option


@triton.jit
def _seen_range(start, m, window, capacity):
    """The first and the last position that row m sees; nothing is read beyond the capacity."""
    position = tl.load(start) + m
    return tl.maximum(position - window + 1, 0), tl.minimum(position, capacity - 1)


@triton.jit(do_not_specialize=["n_rows", "window", "capacity", "n_splits"])
def _attend_split(
    qkv, cos, sin, q_gain, k_gain, eps, keys, values, key_scale, value_scale, start, tops, totals, mixes,
    scale, n_rows, window, capacity, n_splits,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr, LARGEST: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_ROW: tl.constexpr, SPLIT: tl.constexpr,
    QUERIES: tl.constexpr, HEADS: tl.constexpr, TILE: tl.constexpr, TYPE: tl.constexpr, PRODUCTS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    PER_GROUP: tl.constexpr = H // G
    PARTS: tl.constexpr = (PER_GROUP + HEADS - 1) // HEADS
    AT_A_TIME: tl.constexpr = QUERIES // HEADS
    WIDTH: tl.constexpr = (H + 2 * G) * D
    first_m = tl.program_id(0) * AT_A_TIME
    last_m = tl.minimum(first_m + AT_A_TIME, n_rows) - 1
    g = tl.program_id(1) // PARTS
    split = tl.program_id(2)
    first, _ = _seen_range(start, first_m, window, capacity)
    _, last = _seen_range(start, last_m, window, capacity)
    first = tl.maximum(first, split * SPLIT)
    last = tl.minimum(last, split * SPLIT + SPLIT - 1)
    if first > last:
        return
    d = tl.arange(0, BLOCK_D)
    new = tl.load(start)
    i = tl.program_id(1) % PARTS * HEADS + tl.arange(0, QUERIES) % HEADS
    m = first_m + tl.arange(0, QUERIES) // HEADS
    is_head = (i < PER_GROUP) & (m <= last_m)
    # As many rows as there can be, whatever M is: the order of sums follows from the shape.
    n = tl.arange(0, ROWS)
    position = new + n
    is_seen = (n <= last_m) & (position >= first) & (position <= last)
    q_cos, q_sin = cos + m * HALF, sin + m * HALF
    AT_ONCE: tl.constexpr = BLOCK_D <= 128  # wider ones find no room in the registers
    if AT_ONCE:
        q_angles = angles_of(q_cos, q_sin, is_head, HALF, BLOCK_D)
    k_angles = angles_of(cos + n * HALF, sin + n * HALF, is_seen, HALF, BLOCK_D)
    # All so far was written by kernels before the one before this one, which have ended (docs/KERNELS.md).
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    # And what this one wants of it is asked for at once, before the first of it is waited for.
    row = qkv + m * WIDTH
    q_at = row + (g * PER_GROUP + i) * D
    if AT_ONCE:
        q_loaded = heads_and_partners(q_at, is_head, D, HALF, BLOCK_D)
    rows = qkv + n * WIDTH
    k_loaded = heads_and_partners(rows + (H + g) * D, is_seen, D, HALF, BLOCK_D)
    v_at = (rows + (H + G + g) * D)[:, None] + d[None, :]
    if AT_ONCE:
        v = tl.load(v_at, mask=is_seen[:, None] & (d < D)[None, :], other=0.0)
    if last >= new:
        k_rstd = rstd_of_rows(rows + H * D, is_seen, G * D, eps, NORM, BLOCK_ROW)
        gain_at = g * D + 0 * n if NORM == "row" else 0 * n
        k = turned(k_loaded, is_seen, k_angles, k_gain, gain_at, k_rstd, eps, D, HALF, NORM, BLOCK_D)
        append(k, is_seen, keys, key_scale, g, position, capacity, D, LARGEST, BLOCK_D)
        if not AT_ONCE:
            v = tl.load(v_at, mask=is_seen[:, None] & (d < D)[None, :], other=0.0)
        append(v.to(tl.float32), is_seen, values, value_scale, g, position, capacity, D, LARGEST, BLOCK_D)
        tl.debug_barrier()  # what lanes wrote is read by others
    head = m * H + g * PER_GROUP + i
    ok = is_head[:, None] & (d < D)[None, :]
    if not AT_ONCE:
        q_angles = angles_of(q_cos, q_sin, is_head, HALF, BLOCK_D)
        q_loaded = heads_and_partners(q_at, is_head, D, HALF, BLOCK_D)
    q_rstd = rstd_of_rows(row, is_head, H * D, eps, NORM, BLOCK_ROW)
    q_gain_at = (g * PER_GROUP + i) * D if NORM == "row" else 0 * i
    q = turned(q_loaded, is_head, q_angles, q_gain, q_gain_at, q_rstd, eps, D, HALF, NORM, BLOCK_D)
    queries = q.to(qkv.dtype.element_ty).to(TYPE)
    group = g.to(tl.int64) * capacity
    if key_scale is not None:
        key_scale += group
        value_scale += group
    top = tl.full((QUERIES,), -float("inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    mixed = tl.zeros((QUERIES, BLOCK_D), tl.float32)
    for tile in range(first // TILE * TILE, last + 1, TILE):
        at = tile + tl.arange(0, TILE)
        at_ok = (at >= first) & (at <= last)
        seen = at_ok[None, :] & (at[None, :] > (new + m - window)[:, None]) & (at[None, :] <= (new + m)[:, None])
        top, total, mixed = fold_tile(
            queries, keys + group * D, values + group * D, key_scale, value_scale, at, at_ok, seen, scale,
            top, total, mixed, D, BLOCK_D, PRODUCTS,
        )  # fmt: skip
    place = head.to(tl.int64) * n_splits + split
    tl.store(tops + place, top, mask=is_head)
    tl.store(totals + place, total, mask=is_head)
    tl.store(mixes + place[:, None] * D + d[None, :], mixed, mask=ok)


@triton.jit(do_not_specialize=["window", "capacity", "n_splits"])
def _combine(
    tops, totals, mixes, sinks, start, out, window, capacity, n_splits,
    H: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT: tl.constexpr, COMBINED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0)
    h = tl.program_id(1)
    first, last = _seen_range(start, m, window, capacity)  # which the kernel before this one does not write
    first //= SPLIT
    last //= SPLIT
    d = tl.arange(0, BLOCK_D)
    head = m * H + h
    place = head.to(tl.int64) * n_splits
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    top = tl.full((1,), -float("inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    if sinks is not None:
        top = tl.load(sinks + h + tl.zeros((1,), tl.int32)).to(tl.float32)
        total += 1.0
    mixed = tl.zeros((BLOCK_D,), tl.float32)
    for tile in range(first // COMBINED * COMBINED, last + 1, COMBINED):
        # Element by element in the order of the splits, so that all loads are under way at once.
        of_splits = ()
        new_top = top
        for j in tl.static_range(COMBINED):
            split = tile + j + tl.zeros((1,), tl.int32)
            found = tl.load(tops + place + split, mask=(split >= first) & (split <= last), other=-float("inf"))
            of_splits = of_splits + (found,)  # type: ignore[assignment]  # noqa: RUF005
            new_top = tl.maximum(new_top, found)
        keep = tl.exp(top - new_top)
        total *= keep
        mixed *= keep
        for j in tl.static_range(COMBINED):
            split = tile + j + tl.zeros((1,), tl.int32)
            there = (split >= first) & (split <= last)
            weight = tl.exp(of_splits[j] - new_top)
            total += weight * tl.load(totals + place + split, mask=there, other=0.0)
            mixed += weight * tl.load(mixes + (place + split) * D + d, mask=there & (d < D), other=0.0)
        top = new_top
    tl.store(out + head.to(tl.int64) * D + d, (mixed / total).to(out.dtype.element_ty), mask=d < D)


def attend_rows(
    qkv: Tensor,
    num_heads: int,
    cos: Tensor,
    sin: Tensor,
    *,
    q_gain: Tensor | None,
    k_gain: Tensor | None,
    norm: HeadNorm,
    eps: float,
    cache: LayerCache,
    start: Tensor,
    window: int | None,
    sinks: Tensor | None,
    scale: float,
) -> Tensor:
    """place_heads for M <= 16 rows, and their attention [M, H * D], in the dtype of qkv, over the cache after it.

    qkv to start: see heads.place_heads. Row m is at position start + m, of which it sees this one and those before;
    with a window, the last `window` of these. sinks: [H] logits without a value, or None. scale: what scores are
    multiplied by.
    """
    check_heads(qkv, num_heads, cos, sin, q_gain, k_gain, norm, cache, start)
    (n_rows, half), d = cos.shape, cache.head_dim
    assert 1 <= n_rows <= MOST_ROWS
    assert num_heads % cache.num_kv_heads == 0
    assert sinks is None or sinks.shape == (num_heads,), sinks
    n_splits = triton.cdiv(cache.capacity, _SPLIT)
    tops, totals = (torch.empty(n_rows, num_heads, n_splits, dtype=torch.float32, device=qkv.device) for _ in range(2))
    mixes = torch.empty(n_rows, num_heads, n_splits, d, dtype=torch.float32, device=qkv.device)
    out = torch.empty(n_rows, num_heads * d, dtype=qkv.dtype, device=qkv.device)
    reach = _NO_WINDOW if window is None else window
    per_group = num_heads // cache.num_kv_heads
    block_d = max(16, triton.next_power_of_2(d))
    pdl, nvidia = has_pdl(qkv), is_nvidia(qkv)
    shape = _shape(per_group, block_d, multiplied_in(qkv, cache) if nvidia else None)
    n_blocks, n_parts = triton.cdiv(n_rows, shape["QUERIES"] // shape["HEADS"]), triton.cdiv(per_group, shape["HEADS"])
    # Rows are neighbours in the grid: they read the same keys and values, the first from memory, the others from L2.
    _attend_split[(n_blocks, cache.num_kv_heads * n_parts, n_splits)](
        qkv, cos, sin, q_gain, k_gain, eps, cache.keys, cache.values, cache.key_scale, cache.value_scale, start,
        tops, totals, mixes, scale, n_rows, reach, cache.capacity, n_splits,
        H=num_heads, G=cache.num_kv_heads, D=d, HALF=half, NORM=norm, LARGEST=LARGEST_LEVEL, ROWS=MOST_ROWS,
        BLOCK_D=block_d, BLOCK_ROW=_BLOCK_ROW, SPLIT=_SPLIT, **shape, PDL=pdl, num_warps=_WARPS, num_stages=_STAGES,
        **register_option(_most_registers(block_d) if nvidia else None), **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    _combine[(n_rows, num_heads)](
        tops, totals, mixes, sinks, start, out, reach, cache.capacity, n_splits,
        H=num_heads, D=d, BLOCK_D=block_d, SPLIT=_SPLIT, COMBINED=_COMBINED if qkv.is_cuda else 2, PDL=pdl,
        num_warps=_WARPS, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    return out


def _shape(per_group: int, block_d: int, kind: torch.dtype | None) -> dict[str, Any]:
    """What a program takes at once: on NVIDIA for products of `kind` on tensor cores, 16 queries, HEADS of each row.

    None: elsewhere. RDNA's tensor cores want every operand twice in registers, and spill; plain sums of a few queries
    keep up with memory there.
    """
    queries = 4 if kind is None else 16
    heads = min(queries, triton.next_power_of_2(per_group))
    if kind is None:
        tile = max(1, 2048 // block_d)
        return {"QUERIES": queries, "HEADS": heads, "TILE": tile, "TYPE": tl.float32, "PRODUCTS": "plain"}
    tile = tile_positions(block_d, kind, 128)
    return {"QUERIES": queries, "HEADS": heads, "TILE": tile, "TYPE": TYPES[kind], "PRODUCTS": "exact"}


_NO_WINDOW = 1 << 30
# One choice for every M and every capacity, since the order of summation follows from it. H200, H 32, G 8, D 128, bf16,
# both kernels in a graph, M = 1: 8.6 us at 512 positions, 10.7 at 4096, 52 at 32768; two stages, 2 or 8 warps, or tiles
# of half the size take up to 1.8 times as long, splits of 128 gain 2 % there and lose as much for other shapes.
# In the interpreter, where each operation takes its time, two splits are put together at once and not sixteen.
_SPLIT, _COMBINED, _WARPS, _STAGES = 256, 16, 4, 3
_BLOCK_ROW = 128  # columns of all rows at a time, for the norm of rows


def _most_registers(block_d: int) -> int | None:
    """For heads of 64 ptxas takes too few by itself, and spills some bytes."""
    return 184 if block_d < 128 else None


def variants() -> Iterator[Variant]:
    partial = {"tops": "*fp32", "totals": "*fp32", "mixes": "*fp32", "start": "*i32"}
    sizes = {"window": "i32", "capacity": "i32", "n_splits": "i32"}
    scales = ("key_scale", "value_scale")
    for name, form, norm, (h, g, d, half) in (
        ("bf16 d64", "*bf16", "none", (64, 8, 64, 32)),
        ("bf16 d128", "*bf16", "none", (32, 8, 128, 64)),
        ("bf16 d128 not rotated", "*bf16", "none", (32, 8, 128, 0)),
        ("bf16 d128 norm of heads", "*bf16", "head", (16, 8, 128, 64)),
        ("bf16 d128 norm of rows", "*bf16", "row", (32, 32, 128, 64)),
        ("bf16 d256 norm of heads", "*bf16", "head", (4, 1, 256, 128)),
        ("int8 d128", "*i8", "none", (32, 8, 128, 64)),
    ):
        block_d, gain = triton.next_power_of_2(d), None if norm == "none" else "*fp32"
        optional = dict.fromkeys(scales, "*fp32" if form == "*i8" else None)
        yield Variant(
            name=f"attention_decode {name}",
            kernel=_attend_split,
            signature={
                "qkv": "*bf16", "cos": "*fp32", "sin": "*fp32", "q_gain": gain, "k_gain": gain, "eps": "fp32",
                "keys": form, "values": form, "scale": "fp32", "n_rows": "i32", **partial, **sizes, **optional,
            },
            constants={
                "H": h, "G": g, "D": d, "HALF": half, "NORM": norm, "LARGEST": LARGEST_LEVEL, "ROWS": MOST_ROWS,
                "BLOCK_D": block_d, "BLOCK_ROW": _BLOCK_ROW, "SPLIT": _SPLIT, **_shape(h // g, block_d, None),
            },
            nvidia_constants=_shape(h // g, block_d, torch.bfloat16),
            has_pdl=True,
            num_warps=_WARPS,
            num_stages=_STAGES,
            most_registers=_most_registers(block_d),
        )  # fmt: skip
    for name, sinks in (("", None), (" with sinks", "*bf16")):
        yield Variant(
            name=f"attention_combine d128{name}",
            kernel=_combine,
            signature={"out": "*bf16", "sinks": sinks, **partial, **sizes},
            constants={"H": 32, "D": 128, "BLOCK_D": 128, "SPLIT": _SPLIT, "COMBINED": _COMBINED},
            has_pdl=True,
            num_warps=_WARPS,
        )
