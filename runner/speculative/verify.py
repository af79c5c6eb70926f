"""Whether drafted tokens stand: the target's own choices decide, so the text is the target's for every drafter.

Pure functions. Sample-and-match (`accepted`) emits at each position what the target chooses there and goes on as long
as the draft said the same. With position-seeded noise (runner.sampling) that choice depends on the text before it and
on nothing else: the text is the same for every drafter, every draft length, and without any. They know no backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runner.config import SamplingParams
from runner.sampling import Constraint, sample


@dataclass(frozen=True, slots=True)
class Verdict:
    """The tokens that a round emits: n_accepted drafted ones, then one of the target's own."""

    tokens: tuple[int, ...]
    n_accepted: int


def accepted(draft: Sequence[int], choices: Iterable[int]) -> Verdict:
    """Match a draft with the target's choices, which are read only as far as they count.

    choices: the target's token at each position of the draft and at the one after it, each valid if all drafted
    tokens before it were the target's: at least as many as are read. Exact for greedy and sampled decoding alike.
    """
    tokens: list[int] = []
    for drafted, chosen in zip((*draft, None), choices, strict=False):
        tokens.append(chosen)
        if chosen != drafted:
            break
    return Verdict(tuple(tokens), len(tokens) - 1)


def choice_after(
    history: Sequence[int], row: NDArray[np.float32], params: SamplingParams, constraint: Constraint | None
) -> int:
    """The token that follows `history`. row: its logits [V] float32. Raises what `sample` and `constraint` raise."""
    allowed = None if constraint is None else constraint.allowed(history)
    return sample(row, params, history, len(history), allowed)


def choices_of(
    rows: Iterable[NDArray[np.float32]],
    draft: Sequence[int],
    params: SamplingParams,
    history: Sequence[int],
    constraint: Constraint | None = None,
) -> Iterator[int]:
    """The target's choice at each position of a draft and after it, sampled when it is asked for.

    rows: len(draft) + 1 times logits [V] float32; row 0 follows `history`, row i the first i drafted tokens too.
    Penalties and the constraint see what they would have seen without speculation: a drafted token that a grammar
    forbids is never the target's choice, and what follows it is never asked for.
    """
    sequence = history
    for i, row in enumerate(rows):
        yield choice_after(sequence, row, params, constraint)
        if i < len(draft):
            sequence = [*sequence, draft[i]]
