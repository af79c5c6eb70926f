"""The other exact way to verify: rejection sampling (Leviathan et al., 2023), in pure functions.

The product verifies by sample-and-match (verify.py) and uses none of this: rejection needs the drafter's whole
distribution, and a text that it wrote depends on what was drafted. It is kept, tested, as what sample-and-match is
compared with (`python benchmarks/speculation_acceptance.py`). It knows no backend and no drafter.

p and q are the target's and the drafter's probabilities over the vocabulary, [V] float64, each summing to 1. Random
numbers are runner.sampling's: one of a (seed, position) is computed, not drawn, so that a text can be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from runner.sampling import gumbel, uniform
from runner.speculative.verify import Verdict

Probabilities = NDArray[np.float64]

# Drafting, accepting and replacing at one position must be independent of each other and of plain sampling: each
# takes the random numbers of ids that no vocabulary has.
_DRAFT, _REPLACE, _ACCEPT = 1 << 30, 2 << 30, 3 << 30


def dense(ids: NDArray[np.intp], probabilities: Probabilities, vocab_size: int) -> Probabilities:
    """The candidates that runner.sampling.distribution gives, over the whole vocabulary."""
    found = np.zeros(vocab_size)
    found[ids] = probabilities
    return found


def drafted(q: Probabilities, seed: int, position: int) -> int:
    """A token of q, as a drafter whose drafts are verified by rejection samples it."""
    return _drawn(q, seed, position, _DRAFT)


def verified(
    draft: Sequence[int], p: Sequence[Probabilities], q: Sequence[Probabilities], seed: int, position: int
) -> Verdict:
    """The tokens that a round emits, distributed as the target's own if each drafted one was sampled from its q.

    p: len(draft) + 1 rows, of which row i follows the first i drafted tokens; q: len(draft) rows. position: the
    index of the first. A drafted token x is accepted with probability min(1, p(x) / q(x)); the first that is not is
    replaced by a sample of max(p - q, 0), normalized.
    """
    tokens: list[int] = []
    for i, token in enumerate(draft):
        chance = float(uniform(seed, position + i, np.array([_ACCEPT]))[0])
        if chance * q[i][token] >= p[i][token]:
            left = np.maximum(p[i] - q[i], 0.0)
            # Rounding may leave nothing where p and q are equal: then p itself is as good.
            tokens.append(_drawn(left if left.sum() > 0 else p[i], seed, position + i, _REPLACE))
            return Verdict(tuple(tokens), i)
        tokens.append(token)
    tokens.append(_drawn(p[len(draft)], seed, position + len(draft), _REPLACE))
    return Verdict(tuple(tokens), len(draft))


def optimum(p: Probabilities, q: Probabilities) -> float:
    """The largest probability with which any exact verification can accept a sample of q: sum(min(p, q))."""
    return float(np.minimum(p, q).sum())


def _drawn(weights: Probabilities, seed: int, position: int, stream: int) -> int:
    """A token with a probability in proportion to its weight: the Gumbel-max trick."""
    ids = weights.nonzero()[0]
    return int(ids[(np.log(weights[ids]) + gumbel(seed, position, ids + stream)).argmax()])
