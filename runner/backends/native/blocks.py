"""The blocks that architectures are composed of: norm, attention, gated MLP, layer, decoder.

Each is a module whose parameters have the names of Hugging Face checkpoints. Which model uses which block, and with
what, is said in architectures/; where the weights come from is the loader's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.backends.native.kv_cache import KvCache
from runner.backends.native.linear import Linear
from runner.backends.native.rope import inverse_frequencies, rotate, rotations
from runner.model_config import ModelConfig


@dataclass(frozen=True)
class Pass:
    """What the layers of one forward pass share.

    cos, sin: [T, D/2] rotations of the T new positions, the first of which is `start`. checkpoint: called between the
    large products; it may raise to end the pass, which leaves the cache's length as it was.
    """

    cache: KvCache
    start: int
    cos: Tensor
    sin: Tensor
    checkpoint: Callable[[], None]


class RmsNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, computed in float32 (arXiv:1910.07467)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self._eps)


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions.

    bias: on q, k and v; output_bias: on o. qk_norm: an RmsNorm on each head of q and of k, before the rotation.
    window: tokens that a token sees, itself included; None for all.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        bias: bool = False,
        output_bias: bool = False,
        qk_norm: bool = False,
        window: int | None = None,
    ) -> None:
        super().__init__()
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, q_size, bias=bias)
        self.k_proj = Linear(config.hidden_size, kv_size, bias=bias)
        self.v_proj = Linear(config.hidden_size, kv_size, bias=bias)
        self.o_proj = Linear(q_size, config.hidden_size, bias=output_bias)
        self.q_norm = RmsNorm(config.head_dim, config.rms_norm_eps) if qk_norm else None
        self.k_norm = RmsNorm(config.head_dim, config.rms_norm_eps) if qk_norm else None
        self._head_dim = config.head_dim
        self._window = window

    def forward(self, x: Tensor, layer: int, run: Pass) -> Tensor:
        """x: [..., T, hidden] -> the same; K and V of the T tokens go into the cache."""
        q, k, v = (self._heads(proj(x)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, run.cos, run.sin), rotate(k, run.cos, run.sin)
        keys, values = run.cache.put(layer, k, v)
        mixed = attend(q, keys.to(q.dtype), values.to(q.dtype), run.start, self._window)
        return self.o_proj(mixed.transpose(-3, -2).flatten(-2))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor) -> Tensor:
        """[..., T, N * D] -> [..., N, T, D]."""
        return x.view(*x.shape[:-1], -1, self._head_dim).transpose(-3, -2)


def attend(q: Tensor, keys: Tensor, values: Tensor, start: int, window: int | None) -> Tensor:
    """softmax(q k^T / sqrt(D)) v with the causal mask, and the window's if there is one.

    q: [..., H, T, D] at positions start...; keys, values: [..., G, S, D], S = start + T, H a multiple of G. Returns
    [..., H, T, D].
    """
    n_tokens, n_cached = q.shape[-2], keys.shape[-2]
    if window is not None and n_cached - window > 0:
        # No new token sees further back than the first one does.
        first = max(0, start - window + 1)
        keys, values, start = keys[..., first:, :], values[..., first:, :], start - first
    if n_tokens == 1:
        # One query sees everything: a group's heads become rows of one product, and K and V are read once.
        grouped = q.reshape(*keys.shape[:-2], -1, q.shape[-1])
        return _attention(grouped, keys, values).flatten(-3, -2).unsqueeze(-2)
    if start == 0 and (window is None or n_tokens <= window):
        return _attention(q, keys, values, is_causal=True)
    return _attention(q, keys, values, mask=_mask(n_tokens, start, window, q.device))


def _mask(n_tokens: int, start: int, window: int | None, device: torch.device) -> Tensor:
    """Which keys each new token sees, [T, start + T] bool."""
    query = torch.arange(start, start + n_tokens, device=device)[:, None]
    key = torch.arange(start + n_tokens, device=device)[None, :]
    seen = key <= query
    return seen if window is None else seen & (key > query - window)


def _attention(
    q: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    # The batch dimension is needed: without it torch takes a slow path on the CPU.
    is_batch = q.dim() > 3
    if not is_batch:
        q, keys, values = q[None], keys[None], values[None]
    mixed = functional.scaled_dot_product_attention(
        q, keys, values, attn_mask=mask, is_causal=is_causal, enable_gqa=q.shape[-3] != keys.shape[-3]
    )
    return mixed if is_batch else mixed[0]


class GatedMlp(nn.Module):
    """down(silu(gate(x)) * up(x)) (SwiGLU, arXiv:2002.05202)."""

    def __init__(self, config: ModelConfig, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=bias)

    def forward(self, x: Tensor, run: Pass) -> Tensor:
        gate = functional.silu(self.gate_proj(x))
        run.checkpoint()
        gate *= self.up_proj(x)
        run.checkpoint()
        return self.down_proj(gate)  # type: ignore[no-any-return]


class Layer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): the layer of every architecture here."""

    def __init__(self, config: ModelConfig, *, attention: Attention, mlp: GatedMlp) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = attention
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = mlp

    def forward(self, x: Tensor, layer: int, run: Pass) -> Tensor:
        run.checkpoint()
        x = x + self.self_attn(self.input_layernorm(x), layer, run)
        run.checkpoint()
        return x + self.mlp(self.post_attention_layernorm(x), run)  # type: ignore[no-any-return]


class Embedding(nn.Module):
    """Rows of `weight` [V, hidden] by token id."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size), requires_grad=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, self.weight)


class Trunk(nn.Module):
    """Embeddings, layers, final norm: what checkpoints keep under "model."."""

    def __init__(self, config: ModelConfig, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config)
        self.layers = nn.ModuleList(layers)
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)


class Decoder(nn.Module):
    """A whole model: token ids and a KvCache in, hidden states or logits out."""

    def __init__(self, config: ModelConfig, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config, layers)
        self.lm_head = None if config.tie_word_embeddings else Linear(config.hidden_size, config.vocab_size)
        self._frequencies: Tensor | None = None

    def forward(self, tokens: Tensor, cache: KvCache, checkpoint: Callable[[], None]) -> Tensor:
        """The final hidden states [T, hidden] of `tokens` [T] int64, placed after what the cache holds.

        The cache must have room for them (`reserve`), and holds them afterwards. Sequences of one length may come as a
        batch: [B, T] gives [B, T, hidden], with a cache made for B.
        """
        run = self.start_pass(cache, tokens.shape[-1], tokens.device, checkpoint)
        x = self.model.embed_tokens(tokens)
        for index, layer in enumerate(self.model.layers):
            x = layer(x, index, run)
        cache.advance(tokens.shape[-1])
        return self.model.norm(x)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits [..., V] float32 of final hidden states [..., hidden]."""
        weight = self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        return functional.linear(hidden, weight).float()

    def start_pass(self, cache: KvCache, n_tokens: int, device: torch.device, checkpoint: Callable[[], None]) -> Pass:
        """What the layers share for `n_tokens` tokens after those that the cache holds."""
        if self._frequencies is None:
            self._frequencies = inverse_frequencies(self.config).to(device)
        positions = torch.arange(cache.length, cache.length + n_tokens, dtype=torch.float32, device=device)
        scaling = self.config.rope_scaling
        cos, sin = rotations(positions, self._frequencies, scaling.attention_factor if scaling else 1.0)
        return Pass(cache, cache.length, cos, sin, checkpoint)
