"""What a model keeps of a sequence: keys and values, one pair of tensors a layer of attention, grown by blocks as the
sequence grows, and beside them the states of layers that have a delta net (delta_state.py).

It knows positions and nothing of tokens: which ids lie at them is the backend's to remember.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from runner.backends.native.delta_state import DeltaState, DeltaStates
from runner.model_config import HeadSizes, ModelConfig

BLOCK = 256  # tokens; the unit of allocation
_SCALE = torch.float32


def bytes_of_token(layers: Sequence[HeadSizes], dtype: torch.dtype) -> int:
    """What layers with such heads keep of one token of one sequence; see KvCache."""
    scale = _SCALE.itemsize if dtype == torch.int8 else 0
    return sum(2 * heads.num_kv_heads * (heads.head_dim * dtype.itemsize + scale) for heads in layers)


class KvCache:
    """`length` positions of K and V, each [*batch, G, capacity, D] a layer; capacity never passes `n_ctx`.

    layers: the heads of each layer, which has G of D elements.
    dtype: int8 adds a scale for each head's row, which the kernels write and read; `put` is for the other types.
    batch: () for one sequence, (B,) for B sequences that have one length. states: of the layers that keep none of them.

    Growing by half (in whole blocks) keeps the copies of a long chat linear in its length, and a short chat in a long
    context small.
    """

    def __init__(
        self,
        *,
        layers: Sequence[HeadSizes],
        n_ctx: int,
        dtype: torch.dtype,
        device: torch.device,
        batch: tuple[int, ...] = (),
        states: DeltaStates | None = None,
    ) -> None:
        self.length = 0
        self.states = states
        self.n_ctx = n_ctx
        self.capacity = 0
        self.num_layers = len(layers)
        self._bytes_of_one = bytes_of_token(layers, dtype)
        self.bytes_per_token = math.prod(batch) * self._bytes_of_one
        self._parts: dict[str, list[Tensor]] = {
            name: [torch.empty(*batch, one.num_kv_heads, 0, one.head_dim, dtype=dtype, device=device) for one in layers]
            for name in ("keys", "values")
        }
        if dtype == torch.int8:
            self._parts |= {
                name: [torch.empty(*batch, one.num_kv_heads, 0, 1, dtype=_SCALE, device=device) for one in layers]
                for name in ("key_scale", "value_scale")
            }

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        *,
        n_ctx: int,
        dtype: torch.dtype,
        device: torch.device,
        kv_dtype: torch.dtype | None = None,
        batch: tuple[int, ...] = (),
    ) -> KvCache:
        """Of a whole model, which computes in `dtype`. kv_dtype: of keys and values, the same unless it is given."""
        delta = config.delta
        return cls(
            layers=[config.heads(layer) for layer in config.caching_layers],
            n_ctx=n_ctx,
            dtype=dtype if kv_dtype is None else kv_dtype,
            device=device,
            batch=batch,
            states=None if delta is None else DeltaStates(delta, dtype=dtype, device=device, batch=batch),
        )

    @property
    def nbytes(self) -> int:
        return self.capacity * self.bytes_per_token + (0 if self.states is None else self.states.nbytes)

    def reserve(self, length: int) -> None:
        """Make room for `length` positions in all; what is held stays. Raises as torch does when memory is short."""
        assert length <= self.n_ctx
        if length <= self.capacity:
            return
        wanted = max(length, self.capacity + self.capacity // 2)
        capacity = min(self.n_ctx, -(-wanted // BLOCK) * BLOCK)
        # A layer at a time: at most one layer is held twice. Where memory runs out, layers that grew before are longer.
        for layer in range(self.num_layers):
            grown = [self._grown(tensors[layer], capacity) for tensors in self._parts.values()]
            for tensors, new in zip(self._parts.values(), grown, strict=True):
                tensors[layer] = new
        self.capacity = capacity

    def _grown(self, old: Tensor, capacity: int) -> Tensor:
        if old.shape[-2] >= capacity:
            return old
        new = old.new_empty(*old.shape[:-2], capacity, old.shape[-1])
        new[..., : self.length, :] = old[..., : self.length, :]
        return new

    def layer(self, layer: int) -> dict[str, Tensor]:
        """A layer's tensors as kernels take them: keys and values [*batch, G, capacity, D], and the scales
        [*batch, G, capacity] of an int8 cache, by the names of kernels.kv_layer.LayerCache."""
        return {
            name: tensors[layer].squeeze(-1) if name.endswith("_scale") else tensors[layer]
            for name, tensors in self._parts.items()
        }

    def put(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write K and V [*batch, G, T, D] after `length`; returns all of the layer's, [*batch, G, length + T, D] views.

        `length` itself moves with `advance`, once every layer has been written.
        """
        all_keys, all_values = self.kept(layer, keys.shape[-2])
        all_keys[..., self.length :, :] = keys
        all_values[..., self.length :, :] = values
        return all_keys, all_values

    def kept(self, layer: int, n_tokens: int) -> tuple[Tensor, Tensor]:
        """What `put` of n_tokens positions gave for this layer in the pass that goes on."""
        end = self.length + n_tokens
        return self._parts["keys"][layer][..., :end, :], self._parts["values"][layer][..., :end, :]

    def state(self, layer: int) -> DeltaState | None:
        """The state of a delta net after `length` positions; None after none. layer: its number among these."""
        assert self.states is not None
        return self.states.read(layer, self.length)

    def n_states(self, n_tokens: int) -> int:
        """How many states of a delta net are kept of a pass over so many positions: those after its last ones."""
        assert self.states is not None
        return self.states.n_written(n_tokens)

    def put_states(self, layer: int, states: Sequence[DeltaState], n_tokens: int) -> None:
        """Write these, the last of which is that after `n_tokens` more positions; they count with `advance`, as in
        `put`."""
        assert self.states is not None
        self.states.write(layer, self.length + n_tokens, states)

    def begin(self, n_tokens: int) -> None:
        """A pass over `n_tokens` positions begins; one that is cut off may leave no state of them."""
        if self.states is not None:
            self.states.begin(self.length, n_tokens)

    def advance(self, n_tokens: int) -> None:
        assert self.length + n_tokens <= self.capacity
        self.length += n_tokens
        if self.states is not None:
            self.states.hold(self.length, n_tokens)

    def fall_short(self, n_lost: int, n_behind: int) -> None:
        """`n_lost` of the positions before the last `n_behind` are none, and these follow on those before them: guesses
        of a step that did not stand, and the step that began before that was known."""
        self.length -= n_lost
        if self.states is not None:
            self.states.fall_short(self.length - n_behind, n_behind)

    def save(self) -> None:
        """Keep the states after all positions, to go back to where the text goes on from here in another way."""
        if self.states is not None:
            self.states.save(self.length)

    def truncate(self, length: int) -> int:
        """Forget all positions from `length` on; the memory stays for what comes next.

        Returns how many are left: fewer where no state is held to go on from there.
        """
        assert 0 <= length <= self.length
        self.length = length if self.states is None else self.states.keep(length)
        return self.length

    def select(self, sequences: Tensor) -> None:
        """Keep these sequences of a batch, by their indices, and forget the others."""
        self.bytes_per_token = len(sequences) * self._bytes_of_one
        for tensors in self._parts.values():
            for layer, tensor in enumerate(tensors):
                tensors[layer] = tensor[sequences]
        if self.states is not None:
            self.states.select(sequences)

    def release(self) -> None:
        """Give the memory back; nothing is held then."""
        self.length = self.capacity = 0
        for tensors in self._parts.values():
            tensors[:] = [tensor[..., :0, :].clone() for tensor in tensors]
        if self.states is not None:
            self.states.release()
