"""The keys and values of one layer as kernels see them: tensors of a fixed capacity, dense or int8.

It knows neither which positions are filled nor how the capacity grows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LARGEST_LEVEL = 127


@dataclass(frozen=True, kw_only=True)
class LayerCache:
    """K and V of one layer, [G, capacity, D] each, contiguous: bfloat16, float16 or float32, or int8 with scales.

    key_scale, value_scale: float32 [G, capacity] of an int8 cache, else None: element = level * scale, where scale is
    max|x| / 127 of the D elements that a head has at a position, and levels go from -127 to 127.
    """

    keys: Tensor
    values: Tensor
    key_scale: Tensor | None = None
    value_scale: Tensor | None = None

    def __post_init__(self) -> None:
        assert self.keys.dim() == 3
        assert self.keys.shape == self.values.shape, (self.keys.shape, self.values.shape)
        assert self.keys.dtype == self.values.dtype, (self.keys.dtype, self.values.dtype)
        assert self.keys.is_contiguous()
        assert self.values.is_contiguous()
        for scale in (self.key_scale, self.value_scale):
            assert (scale is not None) == self.is_int8
            if scale is not None:
                assert scale.shape == self.keys.shape[:2], (scale.shape, self.keys.shape)
                assert scale.is_contiguous()

    @classmethod
    def empty(
        cls, num_kv_heads: int, capacity: int, head_dim: int, *, dtype: torch.dtype, device: torch.device
    ) -> LayerCache:
        """Room for `capacity` positions; nothing in it is defined yet."""
        keys, values = (torch.empty(num_kv_heads, capacity, head_dim, dtype=dtype, device=device) for _ in "kv")
        if dtype != torch.int8:
            return cls(keys=keys, values=values)
        k_scale, v_scale = (torch.empty(num_kv_heads, capacity, dtype=torch.float32, device=device) for _ in "kv")
        return cls(keys=keys, values=values, key_scale=k_scale, value_scale=v_scale)

    @property
    def is_int8(self) -> bool:
        return self.keys.dtype == torch.int8

    @property
    def num_kv_heads(self) -> int:
        return self.keys.shape[0]

    @property
    def capacity(self) -> int:
        return self.keys.shape[1]

    @property
    def head_dim(self) -> int:
        return self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        scales = (scale.nbytes for scale in (self.key_scale, self.value_scale) if scale is not None)
        return self.keys.nbytes + self.values.nbytes + sum(scales)


def read_ref(cache: LayerCache, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """K and V of the first `length` positions, [G, length, D] each, computed in `dtype`."""
    keys, values = cache.keys[:, :length].to(dtype), cache.values[:, :length].to(dtype)
    if cache.key_scale is None or cache.value_scale is None:
        return keys, values
    return keys * cache.key_scale[:, :length, None].to(dtype), values * cache.value_scale[:, :length, None].to(dtype)


def write_ref(cache: LayerCache, start: int, keys: Tensor, values: Tensor) -> None:
    """Put keys and values [G, M, D] at positions start, start + 1, ...; what lies beyond the capacity is dropped."""
    stop = min(start + keys.shape[1], cache.capacity)
    places = ((keys, cache.keys, cache.key_scale), (values, cache.values, cache.value_scale))
    for new, kept, kept_scale in places:
        row = new[:, : stop - start]
        if kept_scale is not None:
            row, scale = quantized_ref(row)
            kept_scale[:, start:stop] = scale.float()
        kept[:, start:stop] = row.to(kept.dtype)


def quantized_ref(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., D] as int8 levels [..., D], halves rounded to even, and scales [...] in x's dtype: 0 where all is 0."""
    scale = x.abs().amax(-1) / _LARGEST_LEVEL
    divisor = torch.where(scale > 0, scale, 1.0)
    return torch.round(x / divisor[..., None]).to(torch.int8), scale
