"""What both attentions share: their reference, and one tile of positions taken into a running softmax.

It knows neither how queries are laid out over programs nor in which order tiles come.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from runner.kernels.kv_layer import LayerCache, read_ref


def attend_ref(
    q: Tensor, cache: LayerCache, start: int, *, window: int | None, sinks: Tensor | None, scale: float
) -> Tensor:
    """softmax(scale * q k^T) v with the causal mask, the window's, and sinks; computed in the dtype of q.

    q: [M, H, D] at positions start, start + 1, ...; row m sees positions from start + m - window + 1 to start + m.
    sinks: [H], logits that have a part in the softmax and no value (gpt-oss). Returns [M, H * D].
    """
    n_rows, num_heads, _ = q.shape
    keys, values = read_ref(cache, start + n_rows, q.dtype)
    grouped = q.transpose(0, 1).unflatten(0, (cache.num_kv_heads, -1))  # [G, H / G, M, D]
    scores = scale * (grouped @ keys[:, None].transpose(-2, -1))
    query = start + torch.arange(n_rows, device=q.device)[:, None]
    key = torch.arange(start + n_rows, device=q.device)[None, :]
    is_seen = (key <= query) & (key > query - (start + n_rows if window is None else window))
    scores = scores.masked_fill(~is_seen, -torch.inf).flatten(0, 1)
    if sinks is not None:
        column = sinks.to(q.dtype)[:, None, None].expand(num_heads, n_rows, 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = scores.softmax(-1)[..., : start + n_rows].unflatten(0, (cache.num_kv_heads, -1))
    mixed: Tensor = weights @ values[:, None]
    return mixed.flatten(0, 1).transpose(0, 1).flatten(1)


TYPES: Final = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


@triton.jit
def fold_tile(
    q, keys, values, key_scale, value_scale, at, at_ok, seen, scale, top, total, mixed,
    D: tl.constexpr, BLOCK_D: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """A tile's positions into the running softmax of R queries: (top, total, mixed) before -> after.

    q: [R, BLOCK_D] in the type that is multiplied in. keys, values and their scales: a kv head's. at: [C] positions,
    at_ok those that may be read, seen [R, C] which query sees which. top: [R], the largest score; total: [R], the sum
    of exp(score - top); mixed: [R, BLOCK_D], the values weighted by it. Sums are float32.

    PRODUCTS "rounded": on tensor cores, for which the weights of values are rounded to the type of q. "exact": on
    tensor cores, with what the rounding left as a second product. "plain": without tensor cores, q float32.
    """
    d = tl.arange(0, BLOCK_D)
    offset = at[:, None].to(tl.int64) * D + d[None, :]
    ok = at_ok[:, None] & (d < D)[None, :]
    # What may not be read is 0 and not whatever lies there: 0 times NaN would be NaN.
    k = tl.load(keys + offset, mask=ok, other=0).to(q.dtype)
    v = tl.load(values + offset, mask=ok, other=0).to(q.dtype)
    if PRODUCTS == "plain":
        scores = tl.sum(q[:, None, :] * k[None, :, :], 2) * scale
    else:
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
    mixed *= keep[:, None]
    if PRODUCTS == "plain":
        return new_top, total, mixed + tl.sum(weight[:, :, None] * v[None, :, :], 1)
    rounded = weight.to(q.dtype)
    mixed = tl.dot(rounded, v, mixed, input_precision="ieee")
    if PRODUCTS == "exact" and q.dtype != tl.float32:
        rest = (weight - rounded.to(tl.float32)).to(q.dtype)
        mixed = tl.dot(rest, v, mixed, input_precision="ieee")
    return new_top, total, mixed


def multiplied_in(q: Tensor, cache: LayerCache) -> torch.dtype:
    """The type in which scores and values are multiplied: exact for what q and the cache hold.

    Levels of int8 fit bfloat16; the weights of their products carry scales, and so must not be float16. Triton's
    interpreter, which runs on the CPU, multiplies no bfloat16.
    """
    if q.dtype == torch.bfloat16 and not q.is_cuda:
        return torch.float32
    if q.dtype == torch.bfloat16 and cache.is_int8:
        return torch.bfloat16
    return q.dtype if q.dtype == cache.keys.dtype else torch.float32


def tile_positions(block_d: int, dtype: torch.dtype, most: int) -> int:
    """Positions of a tile on tensor cores: 16 KiB of keys, so that two of each fit every GPU's shared memory."""
    return min(most, max(16, 16384 // (block_d * dtype.itemsize)))


def check_query(q: Tensor, cache: LayerCache, sinks: Tensor | None) -> None:
    assert q.dim() == 3
    assert q.shape[2] == cache.head_dim, (q.shape, cache.head_dim)
    assert q.shape[1] % cache.num_kv_heads == 0, (q.shape, cache.num_kv_heads)
    assert q.is_contiguous()
    assert sinks is None or sinks.shape == q.shape[1:2], sinks
