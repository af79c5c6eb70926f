"""Texts in batches for training: of similar length together, in a random order that the seed and the step decide.

It knows token ids and nothing of what is computed from them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runner.draft_training.corpus import Text

_SORTED_TOGETHER = 16  # batches whose texts are sorted by length


@dataclass(frozen=True)
class Batch:
    """ids: [B, T] int64, 0 where a text is over. is_answer: [B, T] bool, where the answer's ids are."""

    ids: Tensor
    is_answer: Tensor


def batch_of(texts: Sequence[Text], device: torch.device) -> Batch:
    """`texts` side by side, filled up to the longest."""
    length = max(len(text.ids) for text in texts)
    ids = torch.zeros(len(texts), length, dtype=torch.int64)
    is_answer = torch.zeros(len(texts), length, dtype=torch.bool)
    for row, text in enumerate(texts):
        ids[row, : len(text.ids)] = torch.tensor(text.ids)
        is_answer[row, text.n_prompt : len(text.ids)] = True
    return Batch(ids.to(device), is_answer.to(device))


def in_order(texts: Sequence[Text], batch_tokens: int) -> list[list[Text]]:
    """All texts in batches of at most `batch_tokens` ids, filling included, but one text at least."""
    made: list[list[Text]] = []
    for text in texts:
        longest = max(len(text.ids), *(len(one.ids) for one in made[-1])) if made else 0
        if made and longest * (len(made[-1]) + 1) <= batch_tokens:
            made[-1].append(text)
        else:
            made.append([text])
    return made


def endless(texts: Sequence[Text], batch_tokens: int, seed: int) -> Iterator[list[Text]]:
    """Batches without end: all texts in a new order, then again."""
    epoch = 0
    while True:
        order = random.Random(f"{seed} {epoch}")
        mixed = list(texts)
        order.shuffle(mixed)
        average = max(1, sum(len(text.ids) for text in mixed) // len(mixed))
        n_sorted = _SORTED_TOGETHER * max(1, batch_tokens // average)
        batches: list[list[Text]] = []
        for start in range(0, len(mixed), n_sorted):
            batches += in_order(sorted(mixed[start : start + n_sorted], key=lambda text: len(text.ids)), batch_tokens)
        order.shuffle(batches)
        yield from batches
        epoch += 1
