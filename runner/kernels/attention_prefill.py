"""Attention of a prompt, or of a chunk of one: torch's on NVIDIA where it is the fastest, else flash attention here.

The kernel (FlashAttention-2, arXiv:2307.08691) is right for everything: windows, of which it reads no more than is
seen, sinks, int8 caches, every head size, and reads its position on the device, so that a graph can record it. A
program is 64 rows of one head. The reference is attention.attend_ref.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from runner.kernels.attention import TYPES, check_query, multiplied_in, tile_positions
from runner.kernels.compile import Variant
from runner.kernels.kv_layer import LayerCache
from runner.kernels.values import OPTIONS, capability, cdiv, is_nvidia, next_power_of_2


@triton.jit
def _fold_tile(
    q, keys, values, key_scale, value_scale, at, at_ok, seen, scale, top, total, mixed,
    D: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A tile's positions into the running softmax of R queries: (top, total, mixed) before -> after.

    q: [R, BLOCK_D] in the type that is multiplied in. keys, values and their scales: a kv head's. at: [C] positions,
    at_ok those that may be read, seen [R, C] which query sees which. top: [R], the largest score; total: [R], the sum
    of exp(score - top); mixed: [R, BLOCK_D], the values weighted by it. Sums are float32; the weights of values are
    rounded to the type of q.
    """
    d = tl.arange(0, BLOCK_D)
    offset = at[:, None].to(tl.int64) * D + d[None, :]
    ok = at_ok[:, None] & (d < D)[None, :]
    # What may not be read is 0 and not whatever lies there: 0 times NaN would be NaN.
    k = tl.load(keys + offset, mask=ok, other=0).to(q.dtype)
    v = tl.load(values + offset, mask=ok, other=0).to(q.dtype)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if key_scale is not None:
        scores *= tl.load(key_scale + at, mask=at_ok, other=0.0)[None, :]
    scores = tl.where(seen, scores, -float("inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(new_top == -float("inf"), 0.0, new_top)  # a query that has seen nothing yet
    weight = tl.exp(scores - base[:, None])
    keep = tl.exp(top - base)
    total = total * keep + tl.sum(weight, 1)
    if value_scale is not None:
        weight *= tl.load(value_scale + at, mask=at_ok, other=0.0)[None, :]
    mixed = tl.dot(weight.to(q.dtype), v, mixed * keep[:, None], input_precision="ieee")
    return new_top, total, mixed


@triton.jit(do_not_specialize=["n_rows", "window", "capacity"])
def _attend_prompt(
    q, keys, values, key_scale, value_scale, sinks, out, scale, n_rows, start, window, capacity,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    start = tl.load(start)
    h = tl.program_id(0)
    block = tl.num_programs(1) - 1 - tl.program_id(1)  # the last rows see most, and so begin first
    m = block * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK_D)
    offset = (m[:, None].to(tl.int64) * H + h) * D + d[None, :]
    ok = (m < n_rows)[:, None] & (d < D)[None, :]
    queries = tl.load(q + offset, mask=ok, other=0.0).to(TYPE)
    group = (h // (H // G)).to(tl.int64) * capacity
    if key_scale is not None:
        key_scale += group
        value_scale += group
    if sinks is not None:
        top = tl.load(sinks + h).to(tl.float32) + tl.zeros((ROWS,), tl.float32)
        total = tl.full((ROWS,), 1.0, tl.float32)
    else:
        top = tl.full((ROWS,), -float("inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, BLOCK_D), tl.float32)
    position = start + m
    first = tl.maximum(start + block * ROWS - window + 1, 0)
    last = tl.minimum(start + block * ROWS + ROWS, start + n_rows) - 1
    for tile in range(first // TILE * TILE, last + 1, TILE):
        at = tile + tl.arange(0, TILE)
        at_ok = (at >= first) & (at <= last)
        seen = at_ok[None, :] & (at[None, :] <= position[:, None]) & (at[None, :] > position[:, None] - window)
        top, total, mixed = _fold_tile(
            queries, keys + group * D, values + group * D, key_scale, value_scale, at, at_ok, seen, scale,
            top, total, mixed, D, BLOCK_D,
        )  # fmt: skip
    total = tl.where(m < n_rows, total, 1.0)
    tl.store(out + offset, (mixed / total[:, None]).to(out.dtype.element_ty), mask=ok)


def attend_prompt(
    q: Tensor,
    cache: LayerCache,
    start: Tensor,
    *,
    first: int | None,
    window: int | None,
    sinks: Tensor | None,
    scale: float,
) -> Tensor:
    """Attention [M, H * D], in the dtype of q, of M rows over a cache that already holds their keys and values.

    q: [M, H, D], contiguous, row m at position start + m, of which it sees this one and those before; with a window,
    the last `window` of these. start: int32 [1], on the device; first: the same as a number, which torch's attention
    wants, or None where the device alone is to say it. sinks: [H] logits without a value, or None. scale: what scores
    are multiplied by. Scores, softmax and sums are float32; the weights of values are rounded to the type of q.
    """
    check_query(q, cache, sinks)
    assert (first or 0) + len(q) <= cache.capacity, (first, len(q), cache.capacity)
    if first is not None:
        is_whole = window is None or window >= first + len(q)
        if is_whole and sinks is None and _library_is_fast(q, cache):
            return _library(q, cache, first, scale)
    n_rows, num_heads, d = q.shape
    out = torch.empty(n_rows, num_heads * d, dtype=q.dtype, device=q.device)
    block_d, kind = max(16, next_power_of_2(d)), multiplied_in(q, cache)
    _attend_prompt[(num_heads, cdiv(n_rows, _ROWS))](
        q, cache.keys, cache.values, cache.key_scale, cache.value_scale, sinks, out, scale,
        n_rows, start, _NO_WINDOW if window is None else window, cache.capacity,
        H=num_heads, G=cache.num_kv_heads, D=d, BLOCK_D=block_d,
        ROWS=_ROWS, TILE=tile_positions(block_d, kind, 64), TYPE=TYPES[kind],
        num_warps=_WARPS, num_stages=_STAGES, **OPTIONS,
    )  # fmt: skip
    return out


def _library_is_fast(q: Tensor, cache: LayerCache) -> bool:
    """Whether torch has flash attention for these tensors: elsewhere it would write out a matrix of all scores."""
    is_half = q.dtype in (torch.bfloat16, torch.float16) and q.dtype == cache.keys.dtype
    return is_nvidia(q) and is_half and cache.head_dim % 8 == 0 and cache.head_dim <= 256 and capability(q) >= (8, 0)


def _library(q: Tensor, cache: LayerCache, start: int, scale: float) -> Tensor:
    """torch's attention, where row m of M sees the first start + m + 1 of start + M positions.

    The operator is what torch.nn.attention.bias.causal_lower_right comes to; importing that takes a second.
    """
    stop = start + len(q)
    mixed = torch.ops.aten._scaled_dot_product_flash_attention(
        q.transpose(0, 1)[None],
        cache.keys[None, :, :stop],
        cache.values[None, :, :stop],
        0.0,
        is_causal=True,  # of this operator: aligned at the last row and the last position
        return_debug_mask=False,
        scale=scale,
    )[0]
    rows: Tensor = mixed[0].transpose(0, 1).flatten(1)
    return rows


_NO_WINDOW = 1 << 30
# H200, H 32, G 8, 4096 rows: 295 us with D 64 and 585 with D 128, where torch's takes 180 and 260. 8 warps take twice
# as long; 128 rows with 8 warps 4 to 8 % longer; a third stage, which AMD has no memory for, saves 1 to 8 %.
_ROWS, _WARPS, _STAGES = 64, 4, 2


def variants() -> Iterator[Variant]:
    scales = ("key_scale", "value_scale")
    for name, form, (h, g, d), sinks in (
        ("bf16 d64 with sinks", "*bf16", (64, 8, 64), True),
        ("bf16 d128", "*bf16", (32, 8, 128), False),
        ("int8 d128", "*i8", (32, 8, 128), False),
        ("bf16 d256", "*bf16", (4, 1, 256), False),
    ):
        block_d = next_power_of_2(d)
        optional = {**dict.fromkeys(scales, "*fp32" if form == "*i8" else None), "sinks": "*bf16" if sinks else None}
        yield Variant(
            name=f"attention_prefill {name}",
            kernel=_attend_prompt,
            signature={
                "q": "*bf16", "keys": form, "values": form, "out": "*bf16", "scale": "fp32", "n_rows": "i32",
                "start": "*i32", "window": "i32", "capacity": "i32", **optional,
            },
            constants={
                "H": h, "G": g, "D": d, "BLOCK_D": block_d, "ROWS": _ROWS,
                "TILE": tile_positions(block_d, torch.bfloat16, 64), "TYPE": tl.bfloat16,
            },
            num_warps=_WARPS,
            num_stages=_STAGES,
            is_decode=False,
        )  # fmt: skip
