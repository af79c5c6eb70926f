"""The rotary positions of a head's rows. Only distances between rows matter: the first row in a cache is at 0."""

from __future__ import annotations

import torch
from torch import Tensor

from runner.backends.native.rope import inverse_frequencies, rotations
from runner.model_config import Rope


class RotaryRows:
    """n_ctx: see rope.inverse_frequencies. The frequencies are computed where rows are first asked for."""

    def __init__(self, rope: Rope, n_ctx: int) -> None:
        self._rope = rope
        self._n_ctx = n_ctx
        self._frequencies: Tensor | None = None

    def __call__(self, start: int | Tensor, n_rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin [n_rows, R/2] float32 of the rows from `start` on, a number or [1] on the device."""
        if self._frequencies is None or self._frequencies.device != device:
            self._frequencies = inverse_frequencies(self._rope, self._n_ctx).to(device)
        if isinstance(start, Tensor):
            from runner.kernels.angles import angles  # only where there are kernels is a position on the device

            return angles(start, n_rows, self._frequencies, self._rope.attention_factor)
        positions = torch.arange(n_rows, dtype=torch.float32, device=device) + start
        return rotations(positions, self._frequencies, self._rope.attention_factor)
