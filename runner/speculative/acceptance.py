"""How likely drafted tokens are to stand, by position and bucket, and the draft length that follows from it.

Moving averages, so that they follow the text; cells with little evidence lean on their bucket's average, as SpecDec++
(Huang et al., 2024) decides by a trained head. Knows numbers alone: neither tokens nor what measures the costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_MEMORY = 20  # tokens that an average remembers; from 12 to 32 the traces of the benchmark gain the same
_KEEP = 1 - 1 / _MEMORY
_BUCKET_WEIGHT = 3.0  # tokens of evidence that a bucket's average counts for at each of its positions
_PRIOR_WEIGHT = 2.0  # and the prior at each bucket


class Acceptance:
    """p(bucket, position): how often a drafted token was accepted after all before it were.

    prior: what is expected of a bucket before anything is known. any_bucket stands for a token that is not there yet.
    """

    def __init__(self, n_buckets: int, draft_max: int, prior: float) -> None:
        self.any_bucket = n_buckets
        self._prior = prior
        self._seen = [0.0] * (n_buckets + 1)
        self._hits = [0.0] * (n_buckets + 1)
        self._seen_at = [[0.0] * draft_max for _ in range(n_buckets + 1)]
        self._hits_at = [[0.0] * draft_max for _ in range(n_buckets + 1)]

    def learn(self, first: int, buckets: Sequence[int], n_accepted: int) -> None:
        """Tokens of these buckets were judged one after the other, the first at that position of its draft.

        All before it were accepted, and n_accepted of these; what follows a wrong one was not judged.
        """
        seen, hits = self._seen, self._hits
        for n, bucket in enumerate(buckets[: n_accepted + 1]):
            position, hit = first + n, 1.0 if n < n_accepted else 0.0
            for each in (bucket, self.any_bucket):
                seen[each] = seen[each] * _KEEP + 1
                hits[each] = hits[each] * _KEEP + hit
                seen_at, hits_at = self._seen_at[each], self._hits_at[each]
                seen_at[position] = seen_at[position] * _KEEP + 1
                hits_at[position] = hits_at[position] * _KEEP + hit

    def chances(self, buckets: Sequence[int]) -> list[float]:
        """For each position of a draft: how likely it is to be accepted if all before it are."""
        leaning = {
            each: _BUCKET_WEIGHT * (self._hits[each] + _PRIOR_WEIGHT * self._prior) / (self._seen[each] + _PRIOR_WEIGHT)
            for each in set(buckets)
        }
        seen, hits = self._seen_at, self._hits_at
        return [
            (hits[bucket][position] + leaning[bucket]) / (seen[bucket][position] + _BUCKET_WEIGHT)
            for position, bucket in enumerate(buckets)
        ]


class Length(NamedTuple):
    """A draft's length, the tokens that its round is expected to emit, and what the round costs, in plain steps."""

    n: int
    tokens: float
    cost: float


def best_length(chances: Sequence[float], costs: Sequence[float], rate: float, least: int = 0) -> Length:
    """The draft length whose round leaves most when each plain step of its cost is worth `rate` tokens.

    chances: p at each position, given that all before it were accepted. costs[k]: the whole round with a draft of k,
    in plain steps, for k up to len(costs) - 1. rate: tokens that a plain step's time brings now. This is the rule
    "draft on while prod p >= rate * (the cost of one more)" for all lengths at once, so that it sees a long draft
    that pays behind a short one that does not. Lengths below `least` do not count. Among equals the shortest.
    """
    best_n, best_tokens, most = -1, 0.0, 0.0
    for n, (tokens, cost) in enumerate(zip(_expected(chances), costs, strict=False)):
        value = tokens - rate * cost
        if n >= least and (best_n < 0 or value > most):
            best_n, best_tokens, most = n, tokens, value
    assert best_n >= 0
    return Length(best_n, best_tokens, costs[best_n])


def shortest_length(chances: Sequence[float], costs: Sequence[float], rate: float) -> int:
    """The shortest draft whose round leaves more than a plain one; 0 if none does. See best_length."""
    plain = 1.0 - rate * costs[0]
    rounds = enumerate(zip(_expected(chances), costs, strict=False))
    return next((n for n, (tokens, cost) in rounds if tokens - rate * cost > plain), 0)


def _expected(chances: Sequence[float]) -> list[float]:
    """The tokens that a round is expected to emit, by the length of its draft, from none on."""
    reach, tokens, expected = 1.0, 1.0, [1.0]
    for chance in chances:
        reach *= chance
        tokens += reach
        expected.append(tokens)
    return expected
