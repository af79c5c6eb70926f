"""What the target computes on a batch of texts: the hidden states that a head reads, and what it would write.

Computed for each batch when it is trained on, and not kept. It knows nothing of heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runner.backends.native.blocks import Decoder, go_on
from runner.backends.native.capture import capture_sequences
from runner.backends.native.kv_cache import KvCache


@dataclass(frozen=True)
class Seen:
    """captured: [B, T, n * hidden]. embeddings: of the tokens, [B, T, hidden]. final: hidden states, [B, T, hidden]."""

    captured: Tensor
    embeddings: Tensor
    final: Tensor


@torch.no_grad()
def observe(decoder: Decoder, ids: Tensor, layers: Sequence[int], dtype: torch.dtype) -> Seen:
    """The target on `ids` [B, T]; what fills up a text comes after it and changes nothing before.

    dtype: of what a head reads. The target computes in its own.
    """
    weight = decoder.model.norm.weight
    n_texts, length = ids.shape
    cache = KvCache.of(decoder.config, n_ctx=length, dtype=weight.dtype, device=weight.device, batch=(n_texts,))
    cache.reserve(length)
    final, captured = capture_sequences(decoder, ids, cache, layers, go_on)
    return Seen(captured.to(dtype), decoder.model.embed_tokens(ids).to(dtype), final)


def output_rows(decoder: Decoder, ids: Tensor) -> Tensor:
    """The rows of the target's output matrix for these ids: [n, hidden]."""
    weight = decoder.model.embed_tokens.weight if decoder.lm_head is None else decoder.lm_head.weight
    return weight[ids]


def training_dtype(device: torch.device) -> torch.dtype:
    """What a head computes in while it is trained: bfloat16 where products are twice as fast and more in it."""
    is_fast = device.type != "cpu" or bool(torch.cpu._is_avx512_bf16_supported())
    return torch.bfloat16 if is_fast else torch.float32
