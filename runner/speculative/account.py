"""What speculation may lose: the account behind the aim that no answer is slower than 0.97x plain decoding.

All sums are in plain steps. A round is entered with what it cost beyond the tokens it emitted; each emitted token
allows for a little loss; a round that could overdraw the account is not to be tried. So over any stretch of n tokens
the loss is at most ALLOWED_LOSS * n and what was left when it began, as far as costs are known: docs/SPECULATION.md has
what was measured. It knows neither drafts nor clocks.
"""

from __future__ import annotations

from typing import Final

ALLOWED_LOSS: Final = 0.016
"""Of a plain step, for each token emitted: 1 / 1.016 is 0.984x."""

INITIAL_ALLOWANCE: Final = 1.3
"""Plain steps that an answer may lose before it has earned anything: with 128 tokens 0.974x at worst.

What is tried at once can pay for what follows: of two ways to promise the same, that which begins with more gains more.
"""

_LARGEST_LOSS = 1 / 0.972 - 1
_LARGEST_DEBT = 1.0  # plain steps that an answer may begin with
_SHORT_ANSWER = 128  # tokens: the promise is made for answers of at least so many


class LossAccount:
    """balance: plain steps that may still be lost. most: what gains can bring it to. is_full: it has come to that."""

    def __init__(self) -> None:
        self.balance = self.most = INITIAL_ALLOWANCE
        self.is_full = False
        self._n_tokens = 0
        self._lost = 0.0

    def begin(self) -> None:
        """An answer begins: gains of the last one are spent on nothing, and losses stay in part.

        What is promised is promised of each answer; a surprise in one must not keep many others from drafting.
        """
        self.balance = min(max(self.balance, -_LARGEST_DEBT), INITIAL_ALLOWANCE)
        self._n_tokens, self._lost = 0, 0.0

    def enter(self, n_tokens: int, cost: float) -> None:
        """A round emitted so many tokens and cost so many plain steps."""
        self._n_tokens += n_tokens
        self._lost += cost - n_tokens
        earned = self.balance + n_tokens * (1 + ALLOWED_LOSS) - cost
        self.balance, self.is_full = min(earned, self.most), earned >= self.most

    def covers(self, loss: float) -> bool:
        """Whether so many plain steps can be lost now."""
        return loss <= self.balance

    def survives(self, surprise: float) -> bool:
        """Whether the promise would hold if a loss that nothing announces came now, beyond what the balance allows."""
        return self._lost + surprise <= _LARGEST_LOSS * max(self._n_tokens, _SHORT_ANSWER)
