"""Scaled dot-product attention with what models add to it: windows, sinks, caps of scores, groups of heads.

Plain torch, and the reference of the kernels. It knows neither projections nor where keys and values are kept.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    start: int,
    window: int | None,
    scale: float | None = None,
    sinks: Tensor | None = None,
    cap: float | None = None,
) -> Tensor:
    """softmax(q k^T * scale) v with the causal mask, the window's if there is one, and the heads' sinks.

    cap: c, where scores are c * tanh(scores / c) (arXiv:2408.00118); None for those as they come.

    q: [..., H, T, D] at positions start...; keys, values: [..., G, S, D], S = start + T, H a multiple of G. Returns
    [..., H, T, D]. scale: 1 / sqrt(D) unless it is given.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    n_tokens, n_cached = q.shape[-2], keys.shape[-2]
    if window is not None and n_cached - window > 0:
        # No new token sees further back than the first one does.
        first = max(0, start - window + 1)
        keys, values, start = keys[..., first:, :], values[..., first:, :], start - first
    if sinks is not None or cap is not None:
        return _attention_by_steps(q, keys, values, scale, sinks, cap, _mask(n_tokens, start, window, q.device))
    if n_tokens == 1:
        # One query sees everything: a group's heads become rows of one product, and K and V are read once.
        grouped = q.reshape(*keys.shape[:-2], -1, q.shape[-1])
        return _attention(grouped, keys, values, scale).flatten(-3, -2).unsqueeze(-2)
    if start == 0 and (window is None or n_tokens <= window):
        return _attention(q, keys, values, scale, is_causal=True)
    return _attention(q, keys, values, scale, mask=_mask(n_tokens, start, window, q.device))


def _mask(n_tokens: int, start: int, window: int | None, device: torch.device) -> Tensor:
    """Which keys each new token sees, [T, start + T] bool."""
    query = torch.arange(start, start + n_tokens, device=device)[:, None]
    key = torch.arange(start + n_tokens, device=device)[None, :]
    seen = key <= query
    return seen if window is None else seen & (key > query - window)


def _attention(
    q: Tensor, keys: Tensor, values: Tensor, scale: float, *, mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    # The batch dimension is needed: without it torch takes a slow path on the CPU.
    is_batch = q.dim() > 3
    if not is_batch:
        q, keys, values = q[None], keys[None], values[None]
    mixed = functional.scaled_dot_product_attention(
        q, keys, values, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=q.shape[-3] != keys.shape[-3]
    )
    return mixed if is_batch else mixed[0]


def _attention_by_steps(
    q: Tensor, keys: Tensor, values: Tensor, scale: float, sinks: Tensor | None, cap: float | None, mask: Tensor
) -> Tensor:
    """The same with what torch's own attention lacks: caps, and one more logit in each head's softmax, which has no
    value (arXiv:2309.17453). sinks: [H]."""
    wide = torch.promote_types(q.dtype, torch.float32)
    of_group = q.reshape(*keys.shape[:-2], -1, *q.shape[-2:])
    scores = of_group.to(wide) @ keys.to(wide).unsqueeze(-3).transpose(-2, -1) * scale
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        sink = sinks.to(wide).view(*of_group.shape[-4:-2], 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, sink), dim=-1)
    weights = scores.softmax(dim=-1)[..., : keys.shape[-2]]
    return (weights.to(values.dtype) @ values.unsqueeze(-3)).flatten(-4, -3)
