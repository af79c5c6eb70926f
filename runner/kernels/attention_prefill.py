"""Attention of a prompt, or of a chunk of one, over a cache that holds its keys and values: flash attention.

A program is 64 rows of one head (FlashAttention-2, arXiv:2307.08691). Where these are too few for the GPU, as for a
short message after a long text, it is a split of their positions, and splits.py puts these together (flash decoding).
Positions are read on the device: a captured graph serves every length. Windows, of which it reads no more than is seen,
sinks, int8 caches and every head size are the kernel's too. The reference is attention.attend_ref.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from runner.kernels.attention import TYPES, cap_of_powers, check_query, multiplied_in, tile_positions
from runner.kernels.compile import Variant
from runner.kernels.epilogues import p_capped
from runner.kernels.kv_layer import LayerCache
from runner.kernels.splits import LOG2_E, NO_WINDOW, Splits, power_of_2, splits_of_whole_rows
from runner.kernels.values import MULTIPROCESSORS, OPTIONS, cdiv, is_hopper, is_nvidia, next_power_of_2


@triton.jit
def _fold_tile(
    q, keys, values, key_scale, value_scale, tile, first, last, low, high, is_seen_by_all, scale, cap, top, total,
    mixed,
    D: tl.constexpr, BLOCK_D: tl.constexpr, TILE: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """TILE positions from `tile` on into the running softmax of R queries: (top, total, mixed) before -> after.

    q: [R, BLOCK_D] in the type that is multiplied in. keys, values and their scales: a kv head's, of which those from
    first to last may be read. low, high: [R], the first and the last position that a query sees; is_seen_by_all: all of
    the tile. scale: what scores are multiplied by, times log2(e), above 0: before a cap, which is times log2(e) too, if
    there is one, and else behind the sums. top: [R], the largest score, before scale where that is behind;
    total: [R], the sum of 2^(scale (score - top)); mixed: [R, BLOCK_D], the values weighted by it. Sums are float32;
    the weights of values are rounded to the type of q.
    """
    d = tl.arange(0, BLOCK_D)
    at = tile + tl.arange(0, TILE)
    at_ok = (at >= first) & (at <= last)
    offset = at[:, None].to(tl.int64) * D + d[None, :]
    ok = at_ok[:, None] & (d < D)[None, :]
    # What may not be read is 0 and not whatever lies there: 0 times NaN would be NaN.
    k = tl.load(keys + offset, mask=ok, other=0).to(q.dtype)
    v = tl.load(values + offset, mask=ok, other=0).to(q.dtype)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if key_scale is not None:
        scores *= tl.load(key_scale + at, mask=at_ok, other=0.0)[None, :]
    if cap is not None:
        scores = p_capped(scores * scale, cap)
        scale = 1.0
    if not is_seen_by_all:
        seen = (at[None, :] >= low[:, None]) & (at[None, :] <= high[:, None])
        scores = tl.where(seen, scores, -float("inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    base = scale * tl.where(new_top == -float("inf"), 0.0, new_top)  # else of a query that has seen nothing yet
    weight = power_of_2(tl.fma(scores, tl.zeros_like(scores) + scale, tl.zeros_like(scores) - base[:, None]), NVIDIA)
    keep = power_of_2(top * scale - base, NVIDIA)
    total = total * keep + tl.sum(weight, 1)
    if value_scale is not None:
        weight *= tl.load(value_scale + at, mask=at_ok, other=0.0)[None, :]
    mixed = tl.dot(weight.to(q.dtype), v, mixed * keep[:, None], input_precision="ieee")
    return new_top, total, mixed


@triton.jit(do_not_specialize=["n_rows", "window", "capacity"])
def _attend_prompt(
    q, keys, values, key_scale, value_scale, sinks, out, tops, totals, mixes, scale, cap, n_rows, start, window,
    capacity,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, TYPE: tl.constexpr, BRANCHES: tl.constexpr,
    NVIDIA: tl.constexpr,
):  # fmt: skip
    """In more than one split: tops, totals [M, H, SPLITS] and mixes [M, H, SPLITS, D], float32; see Splits.

    BRANCHES: tiles that all rows see are not masked.
    """
    start = tl.load(start)
    h = tl.program_id(0)
    block = tl.num_programs(1) - 1 - tl.program_id(1)  # the last rows see most, and so begin first
    split = tl.program_id(2)
    m = block * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK_D)
    row = m.to(tl.int64) * H + h
    is_row = m < n_rows
    ok = is_row[:, None] & (d < D)[None, :]
    queries = tl.load(q + row[:, None] * D + d[None, :], mask=ok, other=0.0).to(TYPE)
    group = (h // (H // G)).to(tl.int64) * capacity
    if key_scale is not None:
        key_scale += group
        value_scale += group
    top = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    if sinks is not None:  # in the first split alone
        top = tl.where(split == 0, tl.load(sinks + h).to(tl.float32) * LOG2_E / scale, top)
        total = tl.where(split == 0, 1.0, total)
    mixed = tl.zeros((ROWS, BLOCK_D), tl.float32)
    position = start + m
    first = tl.maximum(start + block * ROWS - window + 1, 0)
    last = tl.minimum(start + block * ROWS + ROWS, start + n_rows) - 1
    low, high = tl.maximum(position - window + 1, first), tl.minimum(position, last)
    all_from, all_to = tl.maximum(start + block * ROWS + ROWS - window, first), tl.minimum(start + block * ROWS, last)
    begin, end = first // TILE * TILE, last + 1
    if SPLITS > 1:
        length = tl.cdiv(tl.cdiv(end - begin, TILE), SPLITS) * TILE
        begin += split * length
        end = tl.minimum(begin + length, end)
    for tile in range(begin, end, TILE):
        if BRANCHES:
            is_seen_by_all = (tile >= all_from) & (tile + TILE - 1 <= all_to)
        else:
            is_seen_by_all = False
        top, total, mixed = _fold_tile(
            queries, keys + group * D, values + group * D, key_scale, value_scale, tile, first, last, low, high,
            is_seen_by_all, scale, cap, top, total, mixed, D, BLOCK_D, TILE, NVIDIA,
        )  # fmt: skip
    if SPLITS > 1:
        place = row * SPLITS + split
        tl.store(tops + place, top * scale if cap is None else top, mask=is_row)
        tl.store(totals + place, total, mask=is_row)
        tl.store(mixes + place[:, None] * D + d[None, :], mixed, mask=ok)
    else:
        total = tl.where(is_row, total, 1.0)
        tl.store(out + row[:, None] * D + d[None, :], (mixed / total[:, None]).to(out.dtype.element_ty), mask=ok)


def attend_prompt(
    q: Tensor,
    cache: LayerCache,
    start: Tensor,
    *,
    first: int | None,
    window: int | None,
    sinks: Tensor | None,
    scale: float,
    cap: float | None = None,
) -> Tensor | Splits:
    """Attention [M, H * D], in the dtype of q, of M rows over a cache that already holds their keys and values; or its
    splits, which are left to be put together.

    q: [M, H, D], contiguous, row m at position start + m, of which it sees this one and those before; with a window,
    the last `window` of these. start: int32 [1], on the device; first: the same as a number, or None where the device
    alone is to say it: how the positions are split follows from it, and so the bits of a row. sinks: [H] logits without
    a value, or None, which no model has beside a cap. scale: what scores are multiplied by, above 0. cap: see
    attend_ref. Scores, softmax and sums are float32; the weights
    of values are rounded to the type of q.
    """
    check_query(q, cache, sinks)
    assert (first or 0) + len(q) <= cache.capacity, (first, len(q), cache.capacity)
    assert scale > 0
    assert cap is None or sinks is None
    n_rows, num_heads, d = q.shape
    block_d, kind = max(16, next_power_of_2(d)), multiplied_in(q, cache)
    rows = _rows(block_d, kind)
    n_splits = _n_splits(num_heads * cdiv(n_rows, rows), None if first is None else first + n_rows)
    out = tops = totals = mixes = None
    found: Tensor | Splits
    if n_splits > 1:
        mixes = torch.empty(n_rows, num_heads, n_splits, d, dtype=torch.float32, device=q.device)
        tops, totals = (torch.empty(mixes.shape[:3], dtype=torch.float32, device=q.device) for _ in range(2))
        found = splits_of_whole_rows(tops, totals, mixes, q.dtype)
    else:
        found = out = torch.empty(n_rows, num_heads * d, dtype=q.dtype, device=q.device)
    _attend_prompt[(num_heads, cdiv(n_rows, rows), n_splits)](
        q, cache.keys, cache.values, cache.key_scale, cache.value_scale, sinks, out, tops, totals, mixes,
        scale * LOG2_E.value, cap_of_powers(cap), n_rows, start, NO_WINDOW if window is None else window,
        cache.capacity,
        H=num_heads, G=cache.num_kv_heads, D=d, BLOCK_D=block_d, ROWS=rows,
        TILE=tile_positions(block_d, kind, _MOST_OF_TILE), SPLITS=n_splits, TYPE=TYPES[kind],
        BRANCHES=not torch.version.hip, NVIDIA=is_nvidia(q),
        num_warps=_warps(block_d), num_stages=_stages(block_d, kind, is_hopper=is_hopper(q)), **OPTIONS,
    )  # fmt: skip
    return found


def _rows(block_d: int, kind: torch.dtype) -> int:
    """Of a program: as many as leave room in shared memory beside their queries."""
    return min(_MOST_ROWS, _QUERY_BYTES // (block_d * kind.itemsize))


def _warps(block_d: int) -> int:
    """Heads of 512 are too wide for the registers of four."""
    return 8 if block_d > 256 else 4


def _stages(block_d: int, kind: torch.dtype, *, is_hopper: bool) -> int:
    """One where a tile of keys is larger than others are, so that it fits every GPU's shared memory."""
    if block_d * kind.itemsize > 1024:
        return 1
    return _STAGES_HOPPER if is_hopper else _STAGES


def _n_splits(n_programs: int, n_positions: int | None) -> int:
    """Into how many splits, a power of 2, the positions that a program sees are cut, so that no multiprocessor is
    without one.

    n_programs: without splits. n_positions: all that are seen, None where the device alone knows; few are not split.
    """
    n_splits = 1
    if n_positions is not None and n_positions <= _NOT_SPLIT:
        return 1
    while n_splits < _MOST_SPLITS and n_splits * n_programs < MULTIPROCESSORS:
        n_splits *= 2
    return n_splits


# With branches gfx1100 spills four times as much.
# H100, H 32, G 8, D 128, us: 4096 rows 328, where torch's flash attention takes 503; 1024 rows after 8000 positions 314
# and 424, 64 rows after 500 and 8000 10 and 28, 13 and 40. Two stages take up to 25 % longer, 8 warps up to 2.2
# times as long, 128 rows with 8 warps up to 16 % longer for many rows. docs/LOG.md has more.
_MOST_ROWS, _STAGES = 64, 2
_QUERY_BYTES: Final = 1 << 15  # RTX 40 and 50 have 99 KiB, and a tile of keys and of values waits beside
_STAGES_HOPPER: Final = 3  # for which other GPUs may have no memory
_MOST_OF_TILE: Final = 64  # positions
_MOST_SPLITS: Final = 16
_NOT_SPLIT: Final = 512  # positions


def variants() -> Iterator[Variant]:
    scales, partial = ("key_scale", "value_scale"), ("tops", "totals", "mixes")
    for name, form, (h, g, d), sinks, n_splits, target in (
        ("fp32 d256", "*fp32", (4, 1, 256), False, 1, None),
        ("bf16 d64 with sinks", "*bf16", (64, 8, 64), True, 1, None),
        ("bf16 d128", "*bf16", (32, 8, 128), False, 1, None),
        ("bf16 d128 in splits", "*bf16", (32, 8, 128), False, 8, None),
        ("bf16 d128 on Hopper", "*bf16", (32, 8, 128), False, 1, "sm_90"),
        ("bf16 d128 in splits on Hopper", "*bf16", (32, 8, 128), False, 8, "sm_90"),
        ("int8 d128", "*i8", (32, 8, 128), False, 1, None),
        ("bf16 d256", "*bf16", (4, 1, 256), False, 1, None),
        ("bf16 d256 on Hopper", "*bf16", (4, 1, 256), False, 1, "sm_90"),
        ("bf16 d256, scores capped", "*bf16", (16, 8, 256), False, 1, None),
        ("bf16 d256, scores capped, in splits", "*bf16", (16, 8, 256), False, 8, None),
        ("fp32 d512", "*fp32", (32, 4, 512), False, 1, None),
        ("bf16 d512", "*bf16", (32, 4, 512), False, 1, None),
        ("bf16 d512 on Hopper", "*bf16", (32, 4, 512), False, 1, "sm_90"),
        ("int8 d512", "*i8", (32, 4, 512), False, 1, None),
    ):
        block_d, kind = next_power_of_2(d), "*fp32" if form == "*fp32" else "*bf16"
        dtype = torch.float32 if form == "*fp32" else torch.bfloat16
        optional = {**dict.fromkeys(scales, "*fp32" if form == "*i8" else None), "sinks": "*bf16" if sinks else None}
        optional |= dict.fromkeys(partial, None if n_splits == 1 else "*fp32")
        yield Variant(
            name=f"attention_prefill {name}",
            kernel=_attend_prompt,
            signature={
                "q": kind, "keys": form, "values": form, "out": kind if n_splits == 1 else None,
                "scale": "fp32", "cap": "fp32" if "capped" in name else None,
                "n_rows": "i32", "start": "*i32", "window": "i32", "capacity": "i32", **optional,
            },
            constants={
                "H": h, "G": g, "D": d, "BLOCK_D": block_d, "ROWS": _rows(block_d, dtype),
                "TILE": tile_positions(block_d, dtype, _MOST_OF_TILE), "SPLITS": n_splits, "TYPE": TYPES[dtype],
                "BRANCHES": False, "NVIDIA": False,
            },
            nvidia_constants={"BRANCHES": True, "NVIDIA": True},
            num_warps=_warps(block_d),
            num_stages=_stages(block_d, dtype, is_hopper=target is not None),
            is_decode=False,
            only_target=target,
        )  # fmt: skip
