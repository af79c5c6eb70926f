"""What a step of few rows reads: tokens, where they begin, the position of what is chosen after them, and its turn.

They lie in one tensor, which the host fills with one copy: a verified draft waits for its step, so each further copy
would be waited for too. It knows nothing of what a step computes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runner.kernels.values import MOST_ROWS

# Each begins at a multiple of 16 bytes, which compiled kernels rely on.
_POSITION, _START, _TURN, _SIZE = MOST_ROWS, MOST_ROWS + 2, MOST_ROWS + 4, MOST_ROWS + 6


class StepInputs:
    """tokens [MOST_ROWS] int64, start [1] int32, position and turn [1] int64 stay where they are: graphs may read them.

    turn: steps since the last put that have ended by themselves (kernels/advance.py).
    """

    def __init__(self, device: torch.device) -> None:
        placed = torch.zeros(_SIZE, dtype=torch.int64, device=device)
        self.tokens = placed[:MOST_ROWS]
        self.position = placed[_POSITION : _POSITION + 1]
        self.turn = placed[_TURN : _TURN + 1]
        self.start = placed[_START : _START + 1].view(torch.int32)[:1]  # the low half, as everything here counts
        self._placed = placed
        self._sent = torch.zeros(_SIZE, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._written = self._sent.numpy()

    def put(self, tokens: Sequence[int], start: int) -> None:
        """Steps that begin from here on read `tokens` from position `start` on, and choose for the one after it.

        The last put must have arrived, or nothing may read it: what is on its way is written over.
        """
        self._written[: len(tokens)] = tokens
        self._written[_START], self._written[_POSITION], self._written[_TURN] = start, start + 1, 0
        self._placed.copy_(self._sent, non_blocking=True)
