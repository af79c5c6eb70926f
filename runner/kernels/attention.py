"""What both attentions share: their reference, and in which types and tiles they multiply."""

from __future__ import annotations

import math
from typing import Final

import torch
import triton.language as tl
from torch import Tensor

from runner.kernels.kv_layer import LayerCache, read_ref


def attend_ref(
    q: Tensor,
    cache: LayerCache,
    start: int,
    *,
    window: int | None,
    sinks: Tensor | None,
    scale: float,
    cap: float | None = None,
) -> Tensor:
    """softmax(scale * q k^T) v with the causal mask, the window's, and sinks; computed in the dtype of q.

    q: [M, H, D] at positions start, start + 1, ...; row m sees positions from start + m - window + 1 to start + m.
    sinks: [H], logits that have a part in the softmax and no value (gpt-oss). cap: c, where scores are
    c * tanh(scores / c) (Gemma 2). Returns [M, H * D].
    """
    n_rows, num_heads, _ = q.shape
    keys, values = read_ref(cache, start + n_rows, q.dtype)
    grouped = q.transpose(0, 1).unflatten(0, (cache.num_kv_heads, -1))  # [G, H / G, M, D]
    scores = scale * (grouped @ keys[:, None].transpose(-2, -1))
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
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


def cap_of_powers(cap: float | None) -> float | None:
    """A cap of scores that are exponents of 2."""
    return None if cap is None else cap * math.log2(math.e)


def tile_positions(block_d: int, dtype: torch.dtype, most: int) -> int:
    """Positions of a tile on tensor cores: 16 KiB of keys, so that two of each fit every GPU's shared memory."""
    return min(most, max(16, 16384 // (block_d * dtype.itemsize)))


def check_query(q: Tensor, cache: LayerCache, sinks: Tensor | None) -> None:
    assert q.dim() == 3
    assert q.shape[2] == cache.head_dim, (q.shape, cache.head_dim)
    assert q.shape[1] % cache.num_kv_heads == 0, (q.shape, cache.num_kv_heads)
    assert q.is_contiguous()
    assert sinks is None or sinks.shape == q.shape[1:2], sinks
