"""What the delta nets of a model keep of a sequence: of each layer a few states, each of them that of another length.

A state has no positions that could be cut off: to go back is to have kept an earlier one. The state after p tokens lies
in slot p % SLOTS, so a step of one token reads one slot and writes the next by its position alone. A step of a few
tokens, which may be guesses, leaves the state after each of them, a prompt that after its last. Beside the slots, which
are soon written over, a few states are saved where that is asked for. It knows positions and nothing of tokens or of
the mathematics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from runner.config import LONGEST_STATE_DRAFT
from runner.kernels.values import MOST_ROWS
from runner.model_config import DeltaConfig

# Of a step with the longest draft the first token alone may be taken, when the next such step has run already.
SLOTS: Final = 2 * (LONGEST_STATE_DRAFT + 1)
SAVED: Final = 2
"""States of each layer that are saved beside the slots: of the last two messages, the older of which is the one to go
back to where the newer is taken back or edited."""


@dataclass(frozen=True)
class DeltaState:
    """The state of one layer: its matrices [*batch, Hv, Dk, Dv] float32, and the last inputs of its convolution
    [*batch, taps - 1, C]."""

    matrices: Tensor
    past: Tensor


class DeltaStates:
    """matrices, past: of each layer, [slots, ...] (see DeltaState); what is in them counts as `positions` says.

    positions: how many tokens the state in each slot comes after; None where it is spoilt or was never written. After 0
    tokens all is zero, which lies nowhere: no slot is read then. saved: the same of the places beside the slots. dtype:
    of `past`, what the model computes in. batch: () for one sequence, (B,) for B of one length, of which none goes
    back: they have one slot and save nothing.
    """

    def __init__(
        self,
        config: DeltaConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        batch: tuple[int, ...] = (),
    ) -> None:
        self.n_slots, n_saved = (1, 0) if batch else (SLOTS, SAVED)
        self.positions: list[int | None] = [None] * self.n_slots
        self.saved: list[int | None] = [None] * n_saved
        n_all = self.n_slots + n_saved
        matrices = (n_all, *batch, config.value_heads, config.key_dim, config.value_dim)
        past = (n_all, *batch, config.taps - 1, config.channels)
        of_matrices = [torch.zeros(matrices, dtype=torch.float32, device=device) for _ in config.layers]
        of_past = [torch.zeros(past, dtype=dtype, device=device) for _ in config.layers]
        self.matrices = [tensor[: self.n_slots] for tensor in of_matrices]
        self.past = [tensor[: self.n_slots] for tensor in of_past]
        # Of a batch nothing: an empty view would hold on to all that `select` lets go of.
        self._beside = [tensor[self.n_slots :] for tensor in (*of_matrices, *of_past)] if n_saved else []

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.matrices, *self.past, *self._beside))

    def read(self, layer: int, length: int) -> DeltaState | None:
        """The state of a layer after `length` tokens, as views; None after 0."""
        if length == 0:
            return None
        slot = self.slot(length)
        return DeltaState(self.matrices[layer][slot], self.past[layer][slot])

    def write(self, layer: int, length: int, states: Sequence[DeltaState]) -> None:
        """Put the last states of a layer up to that after `length` tokens where they belong; they are known once those
        of all layers are (`hold`)."""
        for before, state in enumerate(reversed(states)):
            slot = self.slot(length - before)
            self.matrices[layer][slot] = state.matrices
            self.past[layer][slot] = state.past

    def tensors_of(self, length: int) -> list[Tensor]:
        """All that is kept of the first `length` tokens, as views."""
        slot = self.slot(length)
        return [tensor[slot] for tensor in (*self.matrices, *self.past)]

    def slot(self, length: int) -> int:
        return length % self.n_slots

    def n_written(self, n_tokens: int) -> int:
        """The states that a pass over so many tokens leaves: those after the last of them."""
        return min(n_tokens, self.n_slots) if n_tokens <= MOST_ROWS else 1

    def begin(self, start: int, n_tokens: int) -> None:
        """A pass over `n_tokens` tokens after `start` others begins, which writes over what its states' slots held."""
        assert self.has(start)
        self._mark(start + n_tokens, n_tokens, None)

    def hold(self, length: int, n_tokens: int) -> None:
        """The pass is over, and the states that it leaves are there, in all layers. length: with its tokens."""
        self._mark(length, n_tokens, length)

    def _mark(self, end: int, n_tokens: int, last: int | None) -> None:
        for before in range(self.n_written(n_tokens)):
            self.positions[self.slot(end - before)] = None if last is None else last - before

    def fall_short(self, end: int, n_behind: int) -> None:
        """A step ended after `end` tokens, earlier than `hold` was told, and so the step of `n_behind` tokens that is
        held behind it began there."""
        self._forget_after(end)
        self.hold(end + n_behind, n_behind)

    def has(self, length: int) -> bool:
        return length == 0 or self.positions[self.slot(length)] == length

    def save(self, length: int) -> None:
        """Keep the state after `length` tokens, which a slot has, until the text before it changes, or it is the oldest
        and another one is saved."""
        assert self.has(length)
        if length in self.saved or not self.saved:
            return
        place = min(range(len(self.saved)), key=lambda i: self.saved[i] or 0)
        torch._foreach_copy_(self._saved_at(place), self.tensors_of(length))
        self.saved[place] = length

    def keep(self, length: int) -> int:
        """Go back to the first `length` tokens, or else to the most of them whose state is saved: how many these are, 0
        where none is."""
        saved = (at for at in self.saved if at is not None and at <= length)
        kept = length if self.has(length) else max(saved, default=0)
        if not self.has(kept):
            torch._foreach_copy_(self.tensors_of(kept), self._saved_at(self.saved.index(kept)))
            self.positions[self.slot(kept)] = kept
        self._forget_after(kept)
        return kept

    def _saved_at(self, place: int) -> list[Tensor]:
        """Views, as those of `tensors_of`."""
        return [tensor[place] for tensor in self._beside]

    def _forget_after(self, length: int) -> None:
        for known in (self.positions, self.saved):
            known[:] = [at if at is not None and at <= length else None for at in known]

    def select(self, sequences: Tensor) -> None:
        """Keep these sequences of a batch, by their indices, and forget the others."""
        for tensors in (self.matrices, self.past):
            tensors[:] = [tensor[:, sequences] for tensor in tensors]

    def release(self) -> None:
        """Give the memory back; nothing is held then."""
        self.positions, self.saved = [None] * self.n_slots, [None] * len(self.saved)
        for tensors in (self.matrices, self.past, self._beside):
            tensors[:] = [tensor[:0].clone() for tensor in tensors]


def state_bytes(config: DeltaConfig | None, dtype: torch.dtype, *, n_slots: int = SLOTS + SAVED) -> int:
    """What the states of one sequence take."""
    if config is None:
        return 0
    matrices = torch.float32.itemsize * config.value_heads * config.key_dim * config.value_dim
    past = dtype.itemsize * (config.taps - 1) * config.channels
    return len(config.layers) * n_slots * (matrices + past)
