"""Rotary positions (arXiv:2104.09864): the frequencies of a model, and turning queries and keys by them.

Elements i and i + R/2 of a head, R the elements that are turned, are a pair, as in Hugging Face checkpoints. Everything
is computed in float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from runner.model_config import QueryGrowth, Rope, RopeScaling


def inverse_frequencies(rope: Rope, n_ctx: int) -> Tensor:
    """Radians per position of each pair, [R/2] float32, with the scaling of `rope`.

    n_ctx: the context that the model is loaded for, which decides between the two sets of factors of longrope.
    transformers decides anew at each step; keys that were turned before do not fit the others then.
    """
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    plain = 1.0 / rope.theta**exponents
    scaling = rope.scaling
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    if scaling.kind == "proportional":
        n_turned = int(scaling.share * rope.dim // 2)
        return torch.where(torch.arange(len(plain)) < n_turned, plain / scaling.factor, 0.0)
    if scaling.kind == "llama3":
        return _llama3(plain, scaling)
    if scaling.kind == "longrope":
        is_long = n_ctx > scaling.original_max_position_embeddings
        factors = torch.tensor(scaling.long_factors if is_long else scaling.short_factors)
        return 1.0 / (factors * rope.theta**exponents)
    return _yarn(plain, scaling, rope.theta)


def rotations(positions: Tensor, frequencies: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """cos and sin, [T, R/2] float32 each, of `positions` [T] float32; `scale` is the attention factor of YaRN or
    longrope, else 1."""
    angles = torch.outer(positions, frequencies)
    return angles.cos() * scale, angles.sin() * scale


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [H, T, D], its first R elements turned by cos and sin [T, R/2]; x's dtype is kept."""
    half = cos.shape[-1]
    first, second, rest = x.float().tensor_split((half, 2 * half), dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1).to(x.dtype)


def grown(q: Tensor, start: int | Tensor, growth: QueryGrowth) -> Tensor:
    """Queries [..., T, D] of the positions from `start` on, multiplied as `growth` says; q's dtype is kept."""
    positions = torch.arange(q.shape[-2], device=q.device) + start
    factors = 1 + growth.beta * torch.log1p((positions // growth.span).float())
    return (q.float() * factors[:, None]).to(q.dtype)


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    """Long wavelengths divided by `factor`, short ones kept, a linear ramp between (Llama 3.1)."""
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    ramp = ramp.clamp(0.0, 1.0)
    return (1 - ramp) * plain / scaling.factor + ramp * plain


def _yarn(plain: Tensor, scaling: RopeScaling, theta: float) -> Tensor:
    """Interpolated below beta_slow turns in the original context, kept above beta_fast (arXiv:2309.00071, 3.2)."""
    head_dim = 2 * len(plain)

    def dimension(turns: float) -> float:
        """The element of a head that makes that many turns in the original context."""
        wavelength = scaling.original_max_position_embeddings / (turns * 2 * math.pi)
        return head_dim * math.log(wavelength) / (2 * math.log(theta))

    first, last = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    low, high = max(first, 0), min(last, head_dim - 1)
    ramp = (torch.arange(len(plain), dtype=torch.float32) - low) / max(high - low, 0.001)
    keep = 1 - ramp.clamp(0.0, 1.0)
    return plain / scaling.factor * (1 - keep) + plain * keep
