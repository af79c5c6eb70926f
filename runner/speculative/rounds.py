"""The decode loop where the host sees every token: draft, verify, emit, cut the cache; without a draft, a plain step.

One loop for greedy and sampled decoding, with speculation and without. It knows its target by the protocols below.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from runner.config import SamplingParams
from runner.speculative.drafter import NO_DRAFT, Draft
from runner.speculative.record import Round
from runner.speculative.speculator import Speculator
from runner.speculative.verify import accepted

Emitted = tuple[int, int, Round]
"""A token, its index among its round's, and the round."""


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


class Stride(NamedTuple):
    """What a step of a stretch emitted: of `draft`, which it made itself, as much as stands, and one token more."""

    tokens: tuple[int, ...]
    draft: tuple[int, ...] = ()


class Stretch(Iterator[Stride], Protocol):
    """Steps one after another, of which the one after the next may have begun before the next is taken.

    It ends when the request is cancelled, when the context is full, or by `finish`; what it gave is then in the cache,
    but perhaps for the last token. Whoever took all that it gives, or closes it, may use its target again.
    """

    @property
    def n_drafting(self) -> int:
        """Tokens that the last step to have begun drafts."""
        ...

    def draft(self, n_tokens: int, history: Sequence[int]) -> bool:
        """Steps that begin from here on draft so many tokens themselves, or a few more, by what the text repeats.

        history: what the last step that was taken left. False: they cannot, and nothing changes; never for 0.
        """
        ...

    def finish(self) -> None:
        """Begin no step any more: the tokens of steps that have begun are still to come."""
        ...

    def close(self) -> None:
        """Drop what was not taken. Calling it twice is harmless."""
        ...


@runtime_checkable
class Pipelined(Protocol):
    """A target that can begin a step before the host has seen the token before it."""

    def stretch(self, params: SamplingParams, history: Sequence[int]) -> Stretch | None:
        """Tokens after `history`, which the caller lengthens by each; None where every step needs the host."""
        ...


def decode(
    target: Target,
    params: SamplingParams,
    history: list[int],
    speculator: Speculator | None,
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[Emitted, None, None]:
    """Emit tokens after `history`, which grows with them, until the context is full, cancelled or closed.

    The last token of `history` is the only one that the cache lacks; so it is again whenever a token is yielded or
    the iterator is closed, but that a stretch may have computed it already.

    The seconds of a round are those that this loop took. Where steps begin early they are all that passed since the
    round before, but for what learning of that took: those of the caller too, whose work a device hides while it goes
    on with the next step, and does not while it waits for the tokens of the host's draft to be taken.
    """
    loop = _Loop(target, params, history, speculator, clock)
    while len(history) < target.n_ctx:
        asked = loop.ask(0)
        stretch = loop.stretch(asked)
        if stretch is None:
            goes_on = yield from loop.verify(asked)
        else:
            goes_on = yield from loop.follow(stretch, asked)
        if not goes_on:
            return


class _Asked(NamedTuple):
    """What is to be verified next, when that was known, and the seconds of the round so far: for asking, and before."""

    draft: Draft
    at: float
    draft_s: float
    before_s: float


@dataclass(slots=True)
class _Loop:
    """What both kinds of steps share; see decode for the fields.

    over: when the last round was over, where steps begin early; None where they do not. learning_s: seconds of what has
    passed since then in which that round was learnt of.
    """

    target: Target
    params: SamplingParams
    history: list[int]
    speculator: Speculator | None
    clock: Callable[[], float]
    over: float | None = None
    learning_s: float = 0.0

    def stretch(self, asked: _Asked) -> Stretch | None:
        """Steps that need no host for what was asked; None where there are none, or where it is to verify a draft."""
        if not isinstance(self.target, Pipelined) or (asked.draft and not self._is_quoting):
            return None
        found = self.target.stretch(self.params, self.history)
        if found is None or self._goes_along(found, asked.draft):
            return found
        found.close()
        return None

    @property
    def _is_quoting(self) -> bool:
        return self.speculator is not None and self.speculator.drafter.is_quoting

    def _goes_along(self, stretch: Stretch, draft: Draft) -> bool:
        """Whether the steps of the stretch do what is wanted now."""
        return stretch.draft(len(draft) if self._is_quoting else 0, self.history) and (self._is_quoting or not draft)

    def ask(self, n_drafting: int) -> _Asked:
        """n_drafting: tokens that a step which has begun drafts by itself."""
        began = self.clock()
        draft = self._draft(n_drafting)
        at = self.clock()
        return _Asked(draft, at, at - began, 0.0 if self.over is None else began - self.over)

    def _draft(self, n_drafting: int) -> Draft:
        """What the speculator wants verified, as far as a target can compute it: a drafter may be wrong in any way."""
        # A round emits a token more than its draft at most, and must leave room for it.
        room = self.target.n_ctx - len(self.history) - 1
        if self.speculator is None or room <= 0:
            return NO_DRAFT
        draft = self.speculator.draft(self.history, self.params, room, n_drafting)
        known = range(self.target.vocab_size)
        n = next((i for i, token in enumerate(draft.tokens[:room]) if token not in known), min(room, len(draft)))
        return draft if n == len(draft) else Draft(draft.tokens[:n], draft.buckets[:n])

    def _learn(self, done: Round) -> None:
        if self.speculator is not None:
            self.speculator.learn(done)

    def verify(self, asked: _Asked) -> Generator[Emitted, None, bool]:
        """One step for a draft and the token before it; False when the request was cancelled."""
        draft = asked.draft
        choices = self.target.choices(draft.tokens, self.params, self.history)
        if choices is None:
            return False
        computed = self.clock()
        verdict = accepted(draft.tokens, choices)
        done = Round(
            draft=draft,
            n_accepted=verdict.n_accepted,
            tokens=verdict.tokens,
            draft_s=asked.draft_s,
            verify_s=asked.before_s - self.learning_s + computed - asked.at,
            sample_s=self.clock() - computed,
        )
        emitted = self.clock()
        if self.over is None:
            self._learn(done)
        n_held = len(self.history)
        try:
            for index, token in enumerate(verdict.tokens):
                self.history.append(token)
                yield token, index, done
        finally:
            if self.over is not None:
                self._learn(done._replace(verify_s=done.verify_s + self.clock() - emitted))
                self.over, self.learning_s = self.clock(), 0.0
            if len(draft) and len(self.history) - 1 < n_held + len(draft):
                self.target.keep(len(self.history) - 1)
        return True

    def follow(self, stretch: Stretch, asked: _Asked) -> Generator[Emitted, None, bool]:
        """Steps that begin early, until a draft is wanted that they cannot make; False when there are no more.

        What is wanted comes too late for the step that has begun: its tokens are taken, and the speculator is asked
        again for what follows them.
        """
        is_wanted = is_ahead = False
        try:
            for stride in stretch:
                taken = self.clock()
                done = Round(
                    draft=Draft(stride.draft, (0,) * len(stride.draft)) if stride.draft else NO_DRAFT,
                    n_accepted=len(stride.tokens) - 1,
                    tokens=stride.tokens,
                    draft_s=asked.draft_s,
                    verify_s=asked.before_s + taken - asked.at,
                    sample_s=0.0,
                    is_ahead=is_ahead,
                )
                self.over, is_ahead = taken, True  # the next step goes on while this one is learnt of
                self._learn(done)
                self.learning_s = self.clock() - taken
                for index, token in enumerate(stride.tokens):
                    self.history.append(token)
                    yield token, index, done
                if not is_wanted:
                    asked = self.ask(stretch.n_drafting)
                    is_wanted = not self._goes_along(stretch, asked.draft)
                if is_wanted:
                    stretch.finish()
        finally:
            stretch.close()
        return is_wanted
