"""What a draft would cost and bring, in plain steps and tokens, by all that was measured so far.

It puts acceptance, the costs of steps and those of guessing together. It decides nothing and keeps no account.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from runner.config import LONGEST_DRAFT
from runner.speculative.acceptance import Acceptance, Length, best_length, shortest_length
from runner.speculative.costs import DraftCosts, StepCosts
from runner.speculative.drafter import Draft, Drafter
from runner.speculative.history import common_prefix

_FREE_PRIOR, _PAID_PRIOR = 0.5, 0.7  # acceptance before evidence: where looking on takes time, trying is how to learn
_RATE_WEIGHT = 1 / 16  # of a round in the rate of tokens
_WINDOW = 16  # rounds that are judged together


class Shadow:
    """A guess to compare with what is written; n_right tokens of it were."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.n_right = 0


class Outlook:
    """What is expected of drafts of one drafter, of at most `draft_max` tokens."""

    def __init__(self, drafter: Drafter, draft_max: int) -> None:
        self.steps = StepCosts(max(draft_max, LONGEST_DRAFT) + 1)  # a target may draft more by itself
        self.guessing = DraftCosts(drafter.is_host_only)
        prior = _FREE_PRIOR if drafter.is_host_only else _PAID_PRIOR
        self.acceptance = Acceptance(drafter.n_buckets, draft_max, prior)
        self._draft_max = draft_max
        self._tokens_now = self._cost_now = 1.0

    @property
    def token_cost(self) -> float:
        """Plain steps that guessing one token takes."""
        return self.guessing.token(self.steps.plain_s)

    def call_cost(self, n_unread: int) -> float:
        """Plain steps that asking takes until a first guess is there, and that the step after it takes longer.

        n_unread: tokens that the drafter did not see.
        """
        return self.guessing.call(self.steps.plain_s, n_unread) + self.token_cost + self.steps.unseen

    def failing(self, n_tokens: int) -> float:
        """Plain steps lost, beside those for guessing, when a draft of so many tokens is wrong from the first on."""
        return self.steps.worst[n_tokens + 1] - 1 + self.steps.refill

    @property
    def worst_loss(self) -> float:
        """Plain steps that the longest draft may lose."""
        return self.failing(self._draft_max) + self._draft_max * self.token_cost

    def best(self, buckets: Sequence[int], n_guessed: int, spent: float, least: int = 0) -> Length:
        """The length that leaves most of a draft with these buckets; see best_length.

        n_guessed: its tokens that are there already; they took `spent` plain steps, which are gone in any case. Those
        behind them, of the acceptance's any_bucket mostly, are still to be paid.
        """
        costs = self._costs(len(buckets), n_guessed, spent)
        return best_length(self.acceptance.chances(buckets), costs, self.rate, least)

    def shortest(self, buckets: Sequence[int], spent: float) -> int:
        """The shortest start of a draft that is there, with these buckets, that pays; 0 if none does."""
        costs = self._costs(len(buckets), len(buckets), spent)
        return shortest_length(self.acceptance.chances(buckets), costs, self.rate)

    def _costs(self, n_tokens: int, n_guessed: int, spent: float) -> list[float]:
        """Plain steps that a round costs with a draft of so many tokens, for each up to n_tokens; see best."""
        token, begun = self.token_cost, spent + self.steps.refill
        costs = [spent + 1.0, *[begun + step for step in self.steps.likely[2 : n_tokens + 2]]]
        for n in range(n_guessed + 1, n_tokens + 1):
            costs[n] += (n - n_guessed) * token
        return costs

    @property
    def rate(self) -> float:
        """Tokens in the time of a plain step now; never below one: a draft that beats plain steps pays however slow
        the last rounds were."""
        return max(1.0, self._tokens_now / self._cost_now)

    def compare(self, shadow: Shadow, tokens: Sequence[int]) -> bool:
        """Learn of a guess by what was written; whether there is no more to compare."""
        draft, first = shadow.draft, shadow.n_right
        n_there = min(len(draft) - first, len(tokens))
        n_right = common_prefix(draft.tokens[first : first + n_there], tokens)
        self.acceptance.learn(first, draft.buckets[first : first + n_there], n_right)
        shadow.n_right += n_right
        return n_right < n_there or shadow.n_right == len(draft)

    def learn_rate(self, n_tokens: int, cost: float, n_rounds: int = 1) -> None:
        """Rounds alike emitted so many tokens together and cost so many plain steps."""
        weight = 1 - (1 - _RATE_WEIGHT) ** n_rounds
        self._tokens_now += weight * (n_tokens / n_rounds - self._tokens_now)
        self._cost_now += weight * (cost / n_rounds - self._cost_now)


class RecentRounds:
    """What the last rounds for drafts cost and brought, guesses since the one before included."""

    def __init__(self) -> None:
        self._rounds: deque[tuple[int, int, float]] = deque()
        self._tokens, self._cost = 0, 0.0  # of all of them

    def __len__(self) -> int:
        return len(self._rounds)

    @property
    def is_full(self) -> bool:
        return len(self._rounds) == _WINDOW

    def add(self, n_drafted: int, n_tokens: int, cost: float) -> None:
        """A round: tokens drafted, tokens emitted, plain steps."""
        if self.is_full:
            _, left_tokens, left_cost = self._rounds.popleft()
            self._tokens, self._cost = self._tokens - left_tokens, self._cost - left_cost
        self._rounds.append((n_drafted, n_tokens, cost))
        self._tokens, self._cost = self._tokens + n_tokens, self._cost + cost

    def clear(self) -> None:
        self._rounds.clear()
        self._tokens, self._cost = 0, 0.0

    @property
    def gain(self) -> float:
        """How many times as fast as plain decoding; there must be a round."""
        return self._tokens / self._cost

    def __str__(self) -> str:
        drafted, emitted, cost = (sum(column) / len(self._rounds) for column in zip(*self._rounds, strict=True))
        return f"drafts of {drafted:.1f} cost {cost:.1f} plain steps and bring {emitted:.1f} tokens"
