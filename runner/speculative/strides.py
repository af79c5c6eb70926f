"""How much steps that draft by themselves are to draft, by what came of those before: see rounds.Stretch.

Such a step begins before the host knows what it will follow. What the host does know when it begins, whether the last
tokens stood before and how the last step that is over fared, makes its kind; acceptance is counted for each of these,
and the length that leaves most is asked for, if the loss account covers its failing. So nothing is guessed on the host,
and a text that is quoted, counted up or written in columns is drafted also where a match could not have been seen in
time. A kind that does not pay is tried now and then. It knows no text and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.config import LONGEST_DRAFT
from runner.speculative.account import LossAccount
from runner.speculative.outlook import Outlook, RecentRounds
from runner.speculative.record import Round

_FIRST_PRIOR = (0.2, 0.6)  # acceptance of a first token before evidence: where nothing stood before, and where it did
_LATER_PRIOR = 0.6  # and of a later one, if those before it stood; after a whole draft that did, as of the one before
_PRIOR_WEIGHT = 2.0  # tokens of evidence
_KEEP = 1 - 1 / 20  # of the evidence, by a token
_COST_WEIGHT, _FIRST_WEIGHT = 0.2, 0.5  # of a step in what those of its length cost, and of the first
_STALL = 3.0  # a step that takes so many times what it should was held up by something else
_REFRESHED = 16  # steps after which all lengths are chosen anew: costs and the rate of tokens have changed
_QUIET = 4  # one in so many quiet plain steps is measured
_TRIED_SHARE = 0.01  # of the time may go into kinds that do not pay
_MOST_TRIED = 1.0  # plain steps of that at once
_NONE, _SOME, _ALL, _PLAIN = range(4)  # of the last step's draft that stood; it had none

_KINDS = 2 * 4


@dataclass(frozen=True, slots=True)
class Wish:
    """What a step that begins now is to draft: so many tokens, and the kind that the outcome counts for."""

    n_tokens: int
    kind: int


class Strides:
    """One for a loaded target and drafter. It works after each step of a small model, so it does little at a time.

    draft_max: no longer drafts, but where steps have none that are as short. recent: the last steps that drafted.
    """

    def __init__(self, outlook: Outlook, account: LossAccount, draft_max: int) -> None:
        self.recent = RecentRounds()
        self._outlook, self._steps, self._account = outlook, outlook.steps, account
        self._seen = [[0.0] * LONGEST_DRAFT for _ in range(_KINDS)]  # by kind and position
        self._hits = [[0.0] * LONGEST_DRAFT for _ in range(_KINDS)]
        self._draft_max = draft_max
        self._cost: dict[int, float] = {}  # by length, in plain steps, as far as steps told of it
        self._best: dict[int, int] = {}  # by kind, since something was learnt of it
        self._outcome = _PLAIN
        self._n_flying = 0  # tokens that a step drafts which has begun and is not over
        self._n_learnt = self._n_quiet = 0
        self._to_try = 0.0  # plain steps that may go into trying

    def begin(self) -> None:
        """An answer begins."""
        self.recent.clear()
        self._best.clear()
        self._outcome, self._n_flying, self._n_quiet = _PLAIN, 0, 0

    def wish(self, is_known: bool, lengths: Sequence[int]) -> Wish:
        """For a step that begins while another one goes on, or two. is_known: the last tokens stood before.

        lengths: what steps can draft, the shortest first.
        """
        if not self._steps.is_fresh:  # plain steps now and then are what drafts are compared with
            self._n_flying = 0
            return Wish(0, 0)
        kind = 4 * is_known + self._outcome
        best = self._best.get(kind)
        if best is None:
            best = self._best[kind] = self._length(kind, lengths)
        n = best
        if not n and self._to_try >= min(self._loss(lengths[0]), _MOST_TRIED):
            n = lengths[0]
        if n:
            at_risk = self._loss(self._n_flying)
            while n and not self._account.covers(at_risk + self._loss(n)):
                n = max((length for length in lengths if length < n), default=0)
            if not best:
                self._to_try -= self._loss(n)
        self._n_flying = n
        return Wish(n, kind)

    def learn(self, done: Round) -> None:
        """A step is over; the buckets of its draft, if it had one, are its kind."""
        n_tokens = len(done.tokens)
        self._to_try = min(self._to_try + _TRIED_SHARE * n_tokens, _MOST_TRIED)
        if not done.draft:
            self._pass_by(done)
        elif self._steps.plain_s > 0:
            cost = self._learn_cost(len(done.draft), done.total_s)
            self._learn_outcome(done)
            self._outlook.learn_rate(n_tokens, cost)
            self._account.enter(n_tokens, cost)
            self.recent.add(len(done.draft), n_tokens, cost)
        self._n_learnt += 1
        if self._n_learnt % _REFRESHED == 0:
            self._best.clear()

    def _pass_by(self, done: Round) -> None:
        """A plain step: by what it takes all others are measured. After a draft it may take what that one brought."""
        if self._outcome == _PLAIN:
            if self._n_quiet % _QUIET == 0 or not self._steps.is_fresh:
                self._steps.learn_plain(done.total_s, is_ahead=done.is_ahead)
            self._n_quiet += 1
        self._outcome = _PLAIN
        self._outlook.learn_rate(1, 1.0)
        self._account.enter(1, 1.0)

    def _learn_cost(self, n_drafted: int, seconds: float) -> float:
        """Gives what the step counts as, in plain steps."""
        self._steps.pass_stride()
        known = self._expected(n_drafted)
        cost = min(seconds / self._steps.plain_s, _STALL * known)
        weight = _COST_WEIGHT if n_drafted in self._cost else _FIRST_WEIGHT
        self._cost[n_drafted] = known + weight * (cost - known)
        return cost

    def _learn_outcome(self, done: Round) -> None:
        n_drafted, n_right, kind = len(done.draft), done.n_accepted, done.draft.buckets[0]
        seen, hits = self._seen[kind], self._hits[kind]
        for n in range(min(n_right + 1, n_drafted)):
            seen[n] = seen[n] * _KEEP + 1
            hits[n] = hits[n] * _KEEP + (n < n_right)
        self._outcome = _NONE if not n_right else _ALL if n_right == n_drafted else _SOME
        self._best.pop(kind, None)

    def _expected(self, n_tokens: int) -> float:
        """Plain steps that one takes which drafts so many."""
        cost = self._cost.get(n_tokens)
        return self._steps.likely[n_tokens + 1] if cost is None else cost

    def _loss(self, n_tokens: int) -> float:
        """Plain steps lost when all of a draft is wrong."""
        return self._expected(n_tokens) - 1 if n_tokens else 0.0

    def _length(self, kind: int, lengths: Sequence[int]) -> int:
        """Which leaves most, when a plain step's time brings as many tokens as now: see best_length."""
        rate, hits, seen = self._outlook.rate, self._hits[kind], self._seen[kind]
        most = max(self._draft_max, lengths[0])
        best, value = 0, 1.0 - rate
        reach = tokens = 1.0
        prior, n = _FIRST_PRIOR[kind // 4], 0
        for length in lengths:
            if length > most:
                break
            while n < length:
                chance = (hits[n] + _PRIOR_WEIGHT * prior) / (seen[n] + _PRIOR_WEIGHT)
                prior = chance if kind % 4 == _ALL else _LATER_PRIOR
                reach *= chance
                tokens += reach
                n += 1
            if tokens - rate * self._expected(length) > value:
                best, value = length, tokens - rate * self._expected(length)
        return best
