"""A head unrolled over texts as it drafts: what it loses against the target at each depth, and what would be accepted.

At depth s a row has drafted s tokens, taken its own states for the target's, and guesses the next ("training-time
test", arXiv:2503.01840). As a draft counts only as far as all tokens before were accepted, the text's own tokens stand
for the drafted ones. It knows nothing of optimizers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from runner.backends.native.blocks import Decoder
from runner.backends.native.heads.eagle3 import Eagle3Head
from runner.draft_training.batches import Batch
from runner.draft_training.states import Seen


@dataclass(frozen=True)
class Depth:
    """One depth of drafting. states: [B, R, hidden], for head.logits. counts: [B, R] bool, the rows whose guess and all
    tokens that it goes on from lie in an answer. first: the position that row 0 guesses."""

    states: Tensor
    counts: Tensor
    first: int


def depths(head: Eagle3Head, seen: Seen, batch: Batch, n_steps: int) -> Iterator[Depth]:
    """The head on a batch, depth by depth, as far as the texts go."""
    length = batch.ids.shape[1]
    follows = batch.is_answer[:, 1:]  # row i goes on from the token at i + 1
    for step, states in enumerate(head.unroll(seen.captured, seen.embeddings, n_steps)):
        n_rows = length - 2 - step
        if n_rows < 1:
            return
        yield Depth(states[:, :n_rows], follows[:, :n_rows] & batch.is_answer[:, 2 + step :], 2 + step)


@dataclass(frozen=True)
class Lesson:
    """What the target would write at each id of an answer.

    place: [B, T] int64, the row of the others. wanted: [n, draft vocabulary], its distribution over the ids that can be
    drafted. is_drafted: [n] bool, whether its likeliest id is one of them: else there is nothing to learn.
    """

    place: Tensor
    wanted: Tensor
    is_drafted: Tensor


@torch.no_grad()
def lesson_of(decoder: Decoder, head: Eagle3Head, seen: Seen, batch: Batch) -> Lesson:
    is_written = batch.is_answer[:, 1:]
    place = torch.zeros_like(batch.ids)
    place[:, 1:][is_written] = torch.arange(int(is_written.sum()), device=place.device)
    logits = decoder.logits(seen.final[:, :-1][is_written])
    return Lesson(place, logits[:, head.target_ids].softmax(-1), head.t2d[logits.argmax(-1)])


def loss_of(found: Depth, head: Eagle3Head, lesson: Lesson) -> Tensor:
    """The mean cross-entropy against the target's distribution, a scalar."""
    rows = lesson.place[:, found.first :][found.counts]
    is_drafted = lesson.is_drafted[rows]
    guessed = head.logits(found.states[found.counts][is_drafted]).log_softmax(-1)
    return -(lesson.wanted[rows[is_drafted]] * guessed).sum() / max(1, len(guessed))


class Acceptance:
    """Counts what greedy drafts come to. Added up on the device: reading makes it wait."""

    def __init__(self, n_steps: int, device: torch.device) -> None:
        self._accepted = torch.zeros(n_steps, dtype=torch.int64, device=device)
        self._places = torch.zeros(n_steps, dtype=torch.int64, device=device)
        self._alive: Tensor | None = None

    def begin(self) -> None:
        """Another batch."""
        self._alive = None

    @torch.no_grad()
    def add(self, step: int, found: Depth, head: Eagle3Head, batch: Batch) -> None:
        """The next depth of the batch."""
        guessed = head.target_ids[head.logits(found.states).argmax(-1)]
        hits = (guessed == batch.ids[:, found.first :]) & found.counts
        alive = hits if self._alive is None else hits & self._alive[:, : hits.shape[1]]
        self._accepted[step] += alive.sum()
        self._places[step] += found.counts.sum()
        self._alive = alive

    @property
    def shares(self) -> tuple[float, ...]:
        """For each depth: of the places where the answer goes on that far, those whose draft is accepted up to it."""
        return tuple(
            accepted / places if places else 0.0
            for accepted, places in zip(self._accepted.tolist(), self._places.tolist(), strict=True)
        )

    @property
    def places(self) -> int:
        """Where drafts began."""
        return int(self._places[0])

    @property
    def length(self) -> float:
        """AL: the tokens that a round emits on average, the target's own one included."""
        return 1 + sum(self.shares)
