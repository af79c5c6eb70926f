"""Caches filled with random numbers up to a length, and with what must never be read beyond it."""

from __future__ import annotations

import torch
from torch import Tensor

from runner.kernels.kv_layer import LayerCache, quantized_ref

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def filled(
    kind: str, num_kv_heads: int, length: int, capacity: int, head_dim: int, *, first: int = 0, seed: int = 5
) -> LayerCache:
    """K and V of positions first..length - 1; all others are NaN, or levels with a NaN for a scale."""
    shape = (num_kv_heads, capacity, head_dim)
    keys, values = random(*shape, seed=seed), random(*shape, seed=seed + 1)
    position = torch.arange(capacity, device=DEVICE)
    nothing = (position < first) | (position >= length)
    if kind == "int8":
        (k, k_scale), (v, v_scale) = quantized_ref(keys), quantized_ref(values)
        for scale in (k_scale, v_scale):
            scale[:, nothing] = float("nan")
        return LayerCache(keys=k, values=v, key_scale=k_scale, value_scale=v_scale)
    keys[:, nothing] = float("nan")
    values[:, nothing] = float("nan")
    return LayerCache(keys=keys.to(FLOATS[kind]), values=values.to(FLOATS[kind]))


def check_attention(found: Tensor, wanted: Tensor, *, sums: float) -> None:
    """Each element within the rounding of its dtype, and `sums` times the largest value for what was added up.

    The interpreter cuts float32 to bfloat16, where a GPU rounds: twice the error.
    """
    assert found.shape == wanted.shape
    relative = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-7}[found.dtype]
    error = (found.double() - wanted).abs()
    assert bool((error <= relative * wanted.abs() + sums).all()), f"{error.max():.2e}, {error.isnan().sum()} NaN"
