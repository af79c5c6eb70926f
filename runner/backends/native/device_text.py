"""The ids of the text on the device, and of others before it: where steps that draft by themselves look.

Prompts are put there as they are computed, and a step that ends on the device adds what it emits (kernels/advance.py);
what the host chose is filled in when somebody is to look. Before the first position lie texts that were given, and
before those the earlier ones that another took the place of. It knows nothing of how a draft is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from runner.speculative.suffix import MOST_GIVEN

_KEPT: Final = 1 << 14  # ids of earlier texts, 64 KiB
_CONTEXT: Final = 32  # ids before those that are lost are kept with them, so that matches reach across the seam
_WORTH_KEEPING: Final = 32  # fewer are what was cut from an answer's end
_GIVEN: Final = MOST_GIVEN + 4  # an end before the first as well; compiled kernels rely on multiples of 16 bytes
_END: Final = -2  # and less: of no token, and of none that could not be chosen, which is -1


class DeviceText:
    """ids: int32 [n_ctx], by position; other texts end before it. begin: int32 [1], their first place, 0 or less.

    Both stay where they are, so graphs may read them.
    """

    def __init__(self, n_ctx: int, device: torch.device) -> None:
        self._all = torch.zeros(_KEPT + _GIVEN + n_ctx, dtype=torch.int32, device=device)
        self.ids = self._all[_KEPT + _GIVEN :]
        self.begin = torch.zeros(1, dtype=torch.int32, device=device)
        self._n_given = 0  # places, with the ends of the texts
        self._n_kept = 0
        self._n_known = 0  # positions from the first on that hold what the text says

    def give(self, texts: Sequence[Sequence[int]]) -> None:
        """Know `texts`, of MOST_GIVEN places, in place of those given before; of others nothing is known any more."""
        placed = [_END]
        for number, text in enumerate(texts, 1):  # each end is of its own: nothing matches across it
            placed += [*text, _END - number]
        self._n_given = n = len(placed) if texts else 0
        assert n <= MOST_GIVEN + 1
        self._all[_KEPT + _GIVEN - n : _KEPT + _GIVEN].copy_(torch.tensor(placed[:n], dtype=torch.int32))
        self.forget()

    def put(self, first: int, ids: Tensor) -> None:
        """`ids` [n], which are on the device, stand at the positions from `first` on, and nothing behind them."""
        self._keep(first)
        self.ids[first : first + len(ids)] = ids
        self.lose(first)
        self.grow(first, first + len(ids))

    def _keep(self, first: int) -> None:
        """Keep what stands from `first` on."""
        start = max(0, first - _CONTEXT)
        n_new = min(self._n_known - start, _KEPT)
        if self._n_known - first < _WORTH_KEEPING:
            return
        kept = self._all[_GIVEN - self._n_given :][:_KEPT]
        kept[: _KEPT - n_new] = kept[n_new:].clone()
        kept[_KEPT - n_new :] = self.ids[self._n_known - n_new : self._n_known]
        self._n_kept = min(self._n_kept + n_new, _KEPT)
        self.begin.fill_(-self._n_given - self._n_kept)

    def grow(self, first: int, stop: int) -> None:
        """The positions from `first` to `stop` hold what the text says."""
        if first <= self._n_known:
            self._n_known = stop

    def lose(self, first: int) -> None:
        """The positions from `first` on hold something else."""
        self._n_known = min(self._n_known, first)

    def forget(self) -> None:
        """Know nothing any more of this text and of earlier ones; those that were given stay."""
        self._n_known = self._n_kept = 0
        self.begin.fill_(-self._n_given)

    def fill(self, text: Sequence[int]) -> None:
        """Put what is not there yet of `text`, which stands at the positions from 0 on."""
        first = self._n_known
        if first < len(text):
            # Or it would wait for all steps that have begun.
            self.ids[first : len(text)].copy_(torch.tensor(text[first:], dtype=torch.int32), non_blocking=True)
            self._n_known = len(text)
