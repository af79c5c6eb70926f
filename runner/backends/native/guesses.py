"""Drafted tokens on their way from the device to the host: a whole draft is read at once.

It knows neither what guesses them nor what becomes of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runner.config import LONGEST_DRAFT

_SLOTS = LONGEST_DRAFT + 1


class Guesses:
    """The last few guesses, by their position in the text. They stay where they are: graphs may record `put`."""

    def __init__(self, device: torch.device) -> None:
        self._both = torch.zeros(2, _SLOTS, dtype=torch.int64, device=device)
        self._tokens, self._shares = self._both[0], self._both[1].view(torch.float64)

    def put(self, position: Tensor, token: Tensor, share: Tensor) -> None:
        """The guess at `position` int64, -1 for none, and its probability, [1] each."""
        slot = position % _SLOTS
        self._tokens.index_copy_(0, slot, token)
        self._shares.index_copy_(0, slot, share.double())

    def read(self, first: int, n: int) -> list[tuple[int, float]]:
        """Tokens and probabilities of the n guesses from the position `first` on; waits for the device."""
        both = self._both.cpu()
        tokens, shares = both[0].tolist(), both[1].view(torch.float64).tolist()
        return [(tokens[i % _SLOTS], shares[i % _SLOTS]) for i in range(first, first + n)]
