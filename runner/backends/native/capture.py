"""Hidden states on the way through a model: the residual stream after chosen layers, for heads that draft from it.

It knows nothing of what a head does with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from runner.backends.native.blocks import Decoder, Tap
from runner.backends.native.kv_cache import KvCache

_RING: Final = 512  # positions
_MOST_KEPT: Final = _RING - 16  # a decode loop is a step ahead of who reads


class Follower(Protocol):
    """Who hears what a model computes and forgets, in the order in which it does."""

    def keep(self, length: int) -> None:
        """All positions from `length` on were forgotten."""
        ...

    def extend(self, start: int, tokens: Sequence[int], captured: Tensor) -> None:
        """`tokens` were computed at positions from `start` on; captured: [len(tokens), n], good until it returns."""
        ...


@dataclass(frozen=True)
class Interior:
    """What a head shares with its target. embed: rows [T, hidden] of the ids [T] int64. norm: the final one, of
    [T, hidden]. logits: [T, V] float32 of what norm gives. All in `dtype` on `device`. has_kernels: as Placement's.
    """

    embed: Callable[[Tensor], Tensor]
    norm: Callable[[Tensor], Tensor]
    logits: Callable[[Tensor], Tensor]
    dtype: torch.dtype
    device: torch.device
    has_kernels: bool = False


class Capture:
    """Keeps the stream after `layers` layers, one number a state, as rows [T, len(layers) * hidden].

    Steps of few rows leave theirs in a ring by position, which stays where it is: CUDA graphs may have recorded it, and
    a loop on the device may go on without anybody looking. A long pass has a tensor of its own.
    """

    def __init__(self, layers: Sequence[int], hidden_size: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.layers = tuple(layers)
        self._size = hidden_size
        self._ring = torch.zeros(_RING, len(self.layers) * hidden_size, dtype=dtype, device=device)
        self._long: Tensor | None = None

    def step(self, start: Tensor, n_rows: int) -> Tap:
        """The tap of a step of few rows, the first at position `start`, an integer on the device."""
        index = (start + torch.arange(n_rows, device=self._ring.device)) % _RING

        def tap(n_layers: int, stream: Tensor) -> None:
            for columns in self._columns(n_layers):
                self._ring[:, columns].index_copy_(0, index, stream.to(self._ring.dtype))

        return tap

    def begin_steps(self) -> None:
        """Steps of few rows come from now on, or a graph of such is replayed."""
        self._long = None

    def long_pass(self, n_rows: int) -> Tap:
        """The tap of a pass of many rows, which no graph records; rows beyond the first n_rows fill it up."""
        rows = self._long = self._ring.new_empty(n_rows, self._ring.shape[1])

        def tap(n_layers: int, stream: Tensor) -> None:
            for columns in self._columns(n_layers):
                rows[:, columns].copy_(stream[: len(rows)])

        return tap

    def rows(self, start: int, stop: int) -> Tensor:
        """What was captured at the positions from `start` to `stop`: of the last pass all, of many steps the last."""
        if self._long is not None:
            assert len(self._long) == stop - start
            return self._long
        positions = torch.arange(max(start, stop - _MOST_KEPT), stop, device=self._ring.device)
        return self._ring[positions % _RING]

    def _columns(self, n_layers: int) -> list[slice]:
        size = self._size
        return [slice(i * size, (i + 1) * size) for i, layer in enumerate(self.layers) if layer == n_layers]


def capture_sequences(
    decoder: Decoder, tokens: Tensor, cache: KvCache, layers: Sequence[int], checkpoint: Callable[[], None]
) -> tuple[Tensor, Tensor]:
    """The final hidden states [B, T, hidden] of `tokens` [B, T] and what is captured, [B, T, len(layers) * hidden].

    As Decoder.forward, which it calls.
    """
    found: dict[int, Tensor] = {}

    def tap(n_layers: int, stream: Tensor) -> None:
        if n_layers in layers:
            found[n_layers] = stream  # a plain decoder makes a new one for each layer

    final = decoder(tokens, cache, checkpoint, tap)
    return final, torch.cat([found[layer] for layer in layers], dim=-1)
