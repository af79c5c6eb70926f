"""The gated delta net that some layers have in place of attention (arXiv:2412.06464), as Qwen3.5 has it.

Each value head keeps a matrix S of what its keys stand for. A token lets it fade, corrects what its key stands for, and
asks it with its query: S = exp(g) S, S = S + k (beta (v - S^T k))^T, y = S^T q. The matrix takes the place of keys and
values: it has one size however long the text is. Where it is kept is delta_state.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.backends.native.delta_state import DeltaState
from runner.backends.native.linear import Linear
from runner.model_config import ModelConfig

_EPS = 1e-6  # of the norms of queries and keys


class Recurring(Protocol):
    """What a delta net needs of a pass: that it goes on from the state before, and keeps those after."""

    def recur(self, net: DeltaNet, x: Tensor, layer: int) -> Tensor:
        """The value heads' outputs [..., T, Hv * Dv] for x [..., T, hidden]."""
        ...


class Convolution(nn.Module):
    """silu(sum over taps of weight * the channel's last inputs), each channel by itself, computed in float32.

    weight: [C, 1, taps].
    """

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, taps), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., taps - 1 + T, C], the inputs before the T new ones first -> [..., T, C], float32 or wider."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        first, *others = self.weight[:, 0].to(x.dtype).unbind(-1)
        n_tokens = x.shape[-2] - len(others)
        total = x[..., :n_tokens, :] * first
        for i, tap in enumerate(others, 1):
            total += x[..., i : i + n_tokens, :] * tap
        return functional.silu(total)


class GatedRmsNorm(nn.Module):
    """x / rms(x) * weight * silu(gate) over the last dimension, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        wide = torch.promote_types(gate.dtype, torch.float32)
        normed = functional.rms_norm(x.to(wide), self.weight.shape, self.weight.to(wide), self.eps)
        return (normed * functional.silu(gate.to(wide))).to(gate.dtype)


class DeltaNet(nn.Module):
    """Value head i has the query and the key of key head i // (value_heads / key_heads).

    in_proj_qkv: rows of queries, keys and values, which the convolution mixes; in_proj_z: the gate of the output;
    in_proj_b: how far a token corrects; in_proj_a: with A_log and dt_bias, how fast what is known fades.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        delta, hidden = config.delta, config.hidden_size
        assert delta is not None
        self.config = delta
        self.in_proj_qkv = Linear(hidden, delta.channels)
        self.in_proj_z = Linear(hidden, delta.values_size)
        self.in_proj_b = Linear(hidden, delta.value_heads)
        self.in_proj_a = Linear(hidden, delta.value_heads)
        self.conv1d = Convolution(delta.channels, delta.taps)
        self.A_log = nn.Parameter(torch.empty(delta.value_heads), requires_grad=False)
        self.dt_bias = nn.Parameter(torch.empty(delta.value_heads), requires_grad=False)
        self.norm = GatedRmsNorm(delta.value_dim, config.rms_norm_eps)
        self.out_proj = Linear(delta.values_size, hidden)

    def forward(self, x: Tensor, layer: int, run: Recurring) -> Tensor:
        """x: [..., T, hidden] -> the same."""
        return self.out_proj(run.recur(self, x, layer))  # type: ignore[no-any-return]

    def outputs(
        self, x: Tensor, before: DeltaState | None, n_kept: int, checkpoint: Callable[[], None]
    ) -> tuple[Tensor, list[DeltaState]]:
        """The value heads' outputs [..., T, Hv * Dv] for x [..., T, hidden], and the states after the last n_kept
        tokens.

        before: None where no token came before. checkpoint: see Pass.
        """
        mixed, z = self.in_proj_qkv(x), self.in_proj_z(x)
        checkpoint()
        before = before or self._beginning(mixed)
        inputs = torch.cat((before.past.to(mixed.dtype), mixed), dim=-2)
        q, k, v = self._heads(self.conv1d(inputs))
        beta = self.in_proj_b(x).to(v.dtype).sigmoid()
        fading = self.A_log.to(v.dtype).exp() * functional.softplus(self.in_proj_a(x).to(v.dtype) + self.dt_bias)
        checkpoint()
        y, kept = delta_rule(q, k, v, (-fading).exp(), beta, before.matrices.to(v.dtype), n_kept, checkpoint)
        gated = self.norm(y, _heads_of(z, self.config.value_heads))
        n_tokens, n_past = x.shape[-2], self.config.taps - 1
        pasts = [inputs[..., n : n + n_past, :] for n in range(n_tokens - n_kept + 1, n_tokens + 1)]
        states = [DeltaState(matrices=matrices, past=past) for matrices, past in zip(kept, pasts, strict=True)]
        return gated.flatten(-2), states

    def _beginning(self, mixed: Tensor) -> DeltaState:
        """The state before the first token."""
        delta, batch = self.config, mixed.shape[:-2]
        return DeltaState(
            matrices=mixed.new_zeros(*batch, delta.value_heads, delta.key_dim, delta.value_dim, dtype=torch.float32),
            past=mixed.new_zeros(*batch, delta.taps - 1, delta.channels),
        )

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q and k [..., T, Hv, Dk] of length 1, q over sqrt(Dk), and v [..., T, Hv, Dv]."""
        delta = self.config
        q, k, v = torch.split(mixed, [delta.keys_size, delta.keys_size, delta.values_size], dim=-1)
        served = delta.value_heads // delta.key_heads
        q, k = (normed(_heads_of(part, delta.key_heads)).repeat_interleave(served, dim=-2) for part in (q, k))
        return q * delta.key_dim**-0.5, k, _heads_of(v, delta.value_heads)


def _heads_of(x: Tensor, num_heads: int) -> Tensor:
    """[..., H * D] -> [..., H, D]."""
    return x.reshape(*x.shape[:-1], num_heads, -1)


def normed(x: Tensor) -> Tensor:
    """x over its length, along the last dimension."""
    return x * (x.square().sum(-1, keepdim=True) + _EPS).rsqrt()


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    left: Tensor,
    beta: Tensor,
    matrices: Tensor,
    n_kept: int,
    checkpoint: Callable[[], None],
) -> tuple[Tensor, list[Tensor]]:
    """What T tokens ask of the matrices, one after another: [..., T, H, Dv], and the matrices [..., H, Dk, Dv] after
    each of the last n_kept.

    q, k: [..., T, H, Dk]; v: [..., T, H, Dv]; left: what a token leaves of them, and beta, [..., T, H].
    """
    n_tokens = v.shape[-3]
    matrices, found, kept = matrices.clone(), torch.empty_like(v), list[Tensor]()
    for token in range(n_tokens):
        checkpoint()
        key = k[..., token, :, :]
        matrices *= left[..., token, :, None, None]
        change = (v[..., token, :, :] - _asked(matrices, key)) * beta[..., token, :, None]
        matrices += key.unsqueeze(-1) * change.unsqueeze(-2)
        found[..., token, :, :] = _asked(matrices, q[..., token, :, :])
        if token >= n_tokens - n_kept:
            kept.append(matrices.clone())
    return found, kept


def _asked(matrices: Tensor, key: Tensor) -> Tensor:
    """What a key [..., H, Dk] stands for: [..., H, Dv]."""
    return (key.unsqueeze(-2) @ matrices).squeeze(-2)
