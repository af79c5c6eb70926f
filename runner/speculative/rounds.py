"""The decode loop where the host sees every token: draft, verify, emit, cut the cache; without a draft, a plain step.

One loop for greedy and sampled decoding, with speculation and without. It knows its target by the protocol below.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from runner.config import SamplingParams
from runner.speculative.drafter import NO_DRAFT, Draft
from runner.speculative.record import Round
from runner.speculative.speculator import Speculator
from runner.speculative.verify import accepted


class Target(Protocol):
    """The model whose tokens count. n_ctx: the positions that its cache holds."""

    n_ctx: int
    vocab_size: int

    def choices(self, draft: Sequence[int], params: SamplingParams, history: Sequence[int]) -> Iterator[int] | None:
        """Compute the last token of `history` and a draft after it in one step.

        Gives the target's choice after each, as far as it is read; None when the request was cancelled. The cache,
        which held all of `history` but its last token, then holds that and the draft too.
        """
        ...

    def keep(self, length: int) -> None:
        """Cut the cache to its first `length` positions."""
        ...


def decode(
    target: Target,
    params: SamplingParams,
    history: list[int],
    speculator: Speculator | None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[tuple[int, int, Round]]:
    """Emit tokens after `history`, which grows with them, until the context is full, cancelled or closed.

    The last token of `history` is the only one that the cache lacks; so it is again whenever a token is yielded or
    the iterator is closed. Yields each token, its index among its round's, and the round.
    """
    while len(history) < target.n_ctx:
        began = clock()
        # A round emits a token more than its draft at most, and must leave room for it.
        room = target.n_ctx - len(history) - 1
        draft = _sound(speculator.draft(history, params, room), room, target.vocab_size) if speculator else NO_DRAFT
        drafted = clock()
        choices = target.choices(draft.tokens, params, history)
        if choices is None:
            return
        computed = clock()
        verdict = accepted(draft.tokens, choices)
        done = Round(
            draft=draft,
            n_accepted=verdict.n_accepted,
            tokens=verdict.tokens,
            draft_s=drafted - began,
            verify_s=computed - drafted,
            sample_s=clock() - computed,
        )
        if speculator:
            speculator.learn(done)
        n_held = len(history)
        try:
            for index, token in enumerate(verdict.tokens):
                history.append(token)
                yield token, index, done
        finally:
            if len(draft) and len(history) - 1 < n_held + len(draft):
                target.keep(len(history) - 1)


def _sound(draft: Draft, room: int, vocab_size: int) -> Draft:
    """As much of a draft as a target can compute: a drafter may be wrong in any way."""
    n = next((i for i, token in enumerate(draft.tokens[:room]) if not 0 <= token < vocab_size), min(room, len(draft)))
    return draft if n == len(draft) else Draft(draft.tokens[:n], draft.buckets[:n])
