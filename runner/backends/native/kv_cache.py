"""Keys and values of a sequence, one pair of tensors a layer, grown by blocks as the sequence grows.

It knows positions and nothing of tokens: which ids lie at them is the backend's to remember.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK = 256  # tokens; the unit of allocation


class KvCache:
    """`length` positions of K and V, each [*batch, G, capacity, D] a layer; capacity never passes `n_ctx`.

    batch: () for one sequence, (B,) for B sequences that have one length.

    Growing by half (in whole blocks) keeps the copies of a long chat linear in its length, and a short chat in a long
    context small.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        n_ctx: int,
        dtype: torch.dtype,
        device: torch.device,
        batch: tuple[int, ...] = (),
    ) -> None:
        self.length = 0
        self.n_ctx = n_ctx
        self.capacity = 0
        self.bytes_per_token = math.prod(batch) * 2 * num_layers * num_kv_heads * head_dim * dtype.itemsize
        empty = torch.empty(*batch, num_kv_heads, 0, head_dim, dtype=dtype, device=device)
        self._keys: list[Tensor] = [empty] * num_layers
        self._values: list[Tensor] = [empty] * num_layers

    @property
    def nbytes(self) -> int:
        return self.capacity * self.bytes_per_token

    def reserve(self, length: int) -> None:
        """Make room for `length` positions in all; what is held stays. Raises as torch does when memory is short."""
        assert length <= self.n_ctx
        if length <= self.capacity:
            return
        wanted = max(length, self.capacity + self.capacity // 2)
        capacity = min(self.n_ctx, -(-wanted // BLOCK) * BLOCK)
        # A layer at a time: at most one layer is held twice. Tensors that grew before a failure are simply longer.
        for layer in range(len(self._keys)):
            self._keys[layer] = self._grown(self._keys[layer], capacity)
            self._values[layer] = self._grown(self._values[layer], capacity)
        self.capacity = capacity

    def _grown(self, old: Tensor, capacity: int) -> Tensor:
        if old.shape[-2] >= capacity:
            return old
        new = old.new_empty(*old.shape[:-2], capacity, old.shape[-1])
        new[..., : self.length, :] = old[..., : self.length, :]
        return new

    def put(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write K and V [*batch, G, T, D] after `length`; returns all of the layer's, [*batch, G, length + T, D] views.

        `length` itself moves with `advance`, once every layer has been written.
        """
        end = self.length + keys.shape[-2]
        self._keys[layer][..., self.length : end, :] = keys
        self._values[layer][..., self.length : end, :] = values
        return self._keys[layer][..., :end, :], self._values[layer][..., :end, :]

    def advance(self, n_tokens: int) -> None:
        assert self.length + n_tokens <= self.capacity
        self.length += n_tokens

    def truncate(self, length: int) -> None:
        """Forget all positions from `length` on; the memory stays for what comes next."""
        assert 0 <= length <= self.length
        self.length = length

    def release(self) -> None:
        """Give the memory back; nothing is held then."""
        self.length = self.capacity = 0
        self._keys = [keys[..., :0, :].clone() for keys in self._keys]
        self._values = [values[..., :0, :].clone() for values in self._values]
