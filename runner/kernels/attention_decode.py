"""Attention of 1 to 16 new tokens over a long cache: flash decoding (Dao et al. 2023) with splits of a fixed size.

A program is one row, one kv head with its query heads, and 256 positions: [256 s, 256 s + 256). Which splits take part
depends on the row's own position and the window alone, and a second kernel adds them up in their order, so a row has
the same bits whatever M and the cache's capacity are. Positions are read on the device: a captured graph serves every
length. The reference is attention.attend_ref.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.attention import TYPES, check_query, fold_tile, multiplied_in, tile_positions
from runner.kernels.compile import Variant
from runner.kernels.kv_layer import LayerCache
from runner.kernels.values import MOST_ROWS, OPTIONS, has_pdl, is_nvidia, pdl_option


@triton.jit
def _seen_range(start, m, window, capacity):
    """The first and the last position that row m sees; nothing is read beyond the capacity."""
    position = tl.load(start) + m
    return tl.maximum(position - window + 1, 0), tl.minimum(position, capacity - 1)


@triton.jit(do_not_specialize=["window", "capacity", "n_splits"])
def _attend_split(
    q, keys, values, key_scale, value_scale, start, tops, totals, mixes, scale, window, capacity, n_splits,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT: tl.constexpr,
    QUERIES: tl.constexpr, TILE: tl.constexpr, TYPE: tl.constexpr, PRODUCTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    m = tl.program_id(0)
    PER_GROUP: tl.constexpr = H // G
    PARTS: tl.constexpr = (PER_GROUP + QUERIES - 1) // QUERIES
    g = tl.program_id(1) // PARTS
    split = tl.program_id(2)
    first, last = _seen_range(start, m, window, capacity)
    first = tl.maximum(first, split * SPLIT)
    last = tl.minimum(last, split * SPLIT + SPLIT - 1)
    if first > last:
        return
    i = tl.program_id(1) % PARTS * QUERIES + tl.arange(0, QUERIES)
    d = tl.arange(0, BLOCK_D)
    head = m * H + g * PER_GROUP + i
    ok = (i < PER_GROUP)[:, None] & (d < D)[None, :]
    queries = tl.load(q + head[:, None] * D + d[None, :], mask=ok, other=0.0).to(TYPE)
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
        top, total, mixed = fold_tile(
            queries, keys + group * D, values + group * D, key_scale, value_scale, at, at_ok, at_ok[None, :], scale,
            top, total, mixed, D, BLOCK_D, PRODUCTS,
        )  # fmt: skip
    place = head.to(tl.int64) * n_splits + split
    tl.store(tops + place, top, mask=i < PER_GROUP)
    tl.store(totals + place, total, mask=i < PER_GROUP)
    tl.store(mixes + place[:, None] * D + d[None, :], mixed, mask=ok)


@triton.jit(do_not_specialize=["window", "capacity", "n_splits"])
def _combine(
    tops, totals, mixes, sinks, start, out, window, capacity, n_splits,
    H: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT: tl.constexpr, TILE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    m = tl.program_id(0)
    h = tl.program_id(1)
    first, last = _seen_range(start, m, window, capacity)
    d = tl.arange(0, BLOCK_D)
    head = m * H + h
    top = tl.load(sinks + h).to(tl.float32) if sinks is not None else -float("inf")
    total = 1.0 if sinks is not None else 0.0
    top += tl.zeros((1,), tl.float32)
    total += tl.zeros((1,), tl.float32)
    mixed = tl.zeros((BLOCK_D,), tl.float32)
    for tile in range(first // SPLIT // TILE * TILE, last // SPLIT + 1, TILE):
        split = tile + tl.arange(0, TILE)
        ok = (split >= first // SPLIT) & (split <= last // SPLIT)
        place = head.to(tl.int64) * n_splits + split
        split_top = tl.load(tops + place, mask=ok, other=-float("inf"))
        new_top = tl.maximum(top, tl.max(split_top, 0))
        weight = tl.exp(split_top - new_top)
        keep = tl.exp(top - new_top)
        total = total * keep + tl.sum(weight * tl.load(totals + place, mask=ok, other=0.0), 0)
        part = tl.load(mixes + place[:, None] * D + d[None, :], mask=ok[:, None] & (d < D)[None, :], other=0.0)
        mixed = mixed * keep + tl.sum(weight[:, None] * part, 0)
        top = new_top
    tl.store(out + head.to(tl.int64) * D + d, (mixed / total).to(out.dtype.element_ty), mask=d < D)


def attend_rows(
    q: Tensor, cache: LayerCache, start: Tensor, *, window: int | None, sinks: Tensor | None, scale: float
) -> Tensor:
    """Attention [M, H * D], in the dtype of q, of M <= 16 rows over a cache that already holds their keys and values.

    q: [M, H, D], contiguous, row m at position start + m, of which it sees this one and those before; with a window,
    the last `window` of these. start: int32 [1], on the device. sinks: [H] logits without a value, or None. scale:
    what scores are multiplied by. Scores, softmax and sums are float32.
    """
    n_rows, num_heads, d = q.shape
    check_query(q, cache, sinks)
    assert 1 <= n_rows <= MOST_ROWS
    assert start.shape == (1,)
    assert start.dtype == torch.int32
    n_splits = triton.cdiv(cache.capacity, _SPLIT)
    tops, totals = (torch.empty(n_rows, num_heads, n_splits, dtype=torch.float32, device=q.device) for _ in range(2))
    mixes = torch.empty(n_rows, num_heads, n_splits, d, dtype=torch.float32, device=q.device)
    out = torch.empty(n_rows, num_heads * d, dtype=q.dtype, device=q.device)
    reach = _NO_WINDOW if window is None else window
    per_group = num_heads // cache.num_kv_heads
    block_d = max(16, triton.next_power_of_2(d))
    pdl = has_pdl(q)
    shape = _shape(per_group, block_d, multiplied_in(q, cache) if is_nvidia(q) else None)
    # Rows are neighbours in the grid: they read the same keys and values, the first from memory, the others from L2.
    _attend_split[(n_rows, cache.num_kv_heads * triton.cdiv(per_group, shape["QUERIES"]), n_splits)](
        q, cache.keys, cache.values, cache.key_scale, cache.value_scale, start, tops, totals, mixes,
        scale, reach, cache.capacity, n_splits,
        H=num_heads, G=cache.num_kv_heads, D=d, BLOCK_D=block_d, SPLIT=_SPLIT, **shape,
        PDL=pdl, num_warps=_WARPS, num_stages=_STAGES, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    _combine[(n_rows, num_heads)](
        tops, totals, mixes, sinks, start, out, reach, cache.capacity, n_splits,
        H=num_heads, D=d, BLOCK_D=block_d, SPLIT=_SPLIT, TILE=_COMBINED, PDL=pdl, num_warps=_WARPS,
        **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    return out


def _shape(per_group: int, block_d: int, kind: torch.dtype | None) -> dict[str, Any]:
    """What a program takes at once: on NVIDIA for products of `kind` on tensor cores, 16 queries at least.

    None: elsewhere. RDNA's tensor cores want every operand twice in registers, and spill; plain sums of a few queries
    keep up with memory there.
    """
    if kind is None:
        queries = min(4, triton.next_power_of_2(per_group))
        return {"QUERIES": queries, "TILE": max(1, 2048 // block_d), "TYPE": tl.float32, "PRODUCTS": "plain"}
    return {"QUERIES": 16, "TILE": tile_positions(block_d, kind, 128), "TYPE": TYPES[kind], "PRODUCTS": "exact"}


_NO_WINDOW = 1 << 30
# One choice for every M and every capacity, since the order of summation follows from it. H200, H 32, G 8, D 128, bf16,
# both kernels in a graph, M = 1 and 8: 8.6 and 9.1 us at 512 positions, 10.7 and 29.5 at 4096, 52 and 196 at 32768; two
# stages, 8 warps, or tiles of half the size take up to 1.8 times as long, and none is faster by more than 2 %.
_SPLIT, _COMBINED, _WARPS, _STAGES = 256, 16, 4, 3


def variants() -> Iterator[Variant]:
    partial = {"tops": "*fp32", "totals": "*fp32", "mixes": "*fp32", "start": "*i32"}
    sizes = {"window": "i32", "capacity": "i32", "n_splits": "i32"}
    scales = ("key_scale", "value_scale")
    for name, form, (h, g, d) in (
        ("bf16 d64", "*bf16", (64, 8, 64)),
        ("bf16 d128", "*bf16", (32, 8, 128)),
        ("bf16 d256", "*bf16", (4, 1, 256)),
        ("int8 d128", "*i8", (32, 8, 128)),
    ):
        block_d = triton.next_power_of_2(d)
        optional = dict.fromkeys(scales, "*fp32" if form == "*i8" else None)
        yield Variant(
            name=f"attention_decode {name}",
            kernel=_attend_split,
            signature={"q": "*bf16", "keys": form, "values": form, "scale": "fp32", **partial, **sizes, **optional},
            constants={
                "H": h, "G": g, "D": d, "BLOCK_D": block_d, "SPLIT": _SPLIT, **_shape(h // g, block_d, None),
            },
            nvidia_constants=_shape(h // g, block_d, torch.bfloat16),
            has_pdl=True,
            num_warps=_WARPS,
            num_stages=_STAGES,
        )  # fmt: skip
    for name, sinks in (("", None), (" with sinks", "*bf16")):
        yield Variant(
            name=f"attention_combine d128{name}",
            kernel=_combine,
            signature={"out": "*bf16", "sinks": sinks, **partial, **sizes},
            constants={"H": 32, "D": 128, "BLOCK_D": 128, "SPLIT": _SPLIT, "TILE": _COMBINED},
            has_pdl=True,
            num_warps=_WARPS,
        )
