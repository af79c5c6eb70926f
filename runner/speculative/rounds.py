"""The decode loop where the host sees every token: draft, verify, emit, cut the cache; without a draft, a plain step.

One loop for greedy and sampled decoding, with speculation and without. It knows its target by the protocols below.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, Protocol, runtime_checkable

from runner.config import SamplingParams
from runner.speculative.drafter import NO_DRAFT, Draft
from runner.speculative.history import ReadOnly
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

        Gives the target's choice after each, as far as it is read; None, or nothing at all, when the request was
        cancelled. The cache, which held all of `history` but its last token, then holds that and the draft too.
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
    def lengths(self) -> Sequence[int]:
        """How many tokens its steps can draft by themselves, by what the text repeats, the least first; empty: none."""
        ...

    def draft(self, n_tokens: int, history: Sequence[int]) -> None:
        """Steps that begin from here on draft so many tokens, one of `lengths` or 0.

        history: what the last step that was taken left.
        """
        ...

    def begin(self) -> None:
        """Begin what may begin now, and wait for nothing."""
        ...

    def finish(self) -> None:
        """Begin no step any more: the tokens of steps that have begun are still to come."""
        ...

    def close(self) -> None:
        """Drop what was not taken. Calling it twice is harmless."""
        ...


@runtime_checkable
class Pipelined(Protocol):
    """A target that can begin a step before the host has seen the token before it.

    overlaps: `choices` begins a step of this request and returns; it is waited for where the first choice is read.
    """

    @property
    def overlaps(self) -> bool: ...

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

    The last token of `history` is the only one that the cache lacks; so it is again when the iterator is closed, but
    that a stretch may have computed it already. `history` then ends with what was taken; before that it has all that
    the last round emitted, which is taken while the next step goes on, where the target overlaps.

    The seconds of a round are those that this loop took. Where steps overlap they are all that passed since the round
    before, but for what learning of that took: those of the caller too, whose work a device hides.
    """
    loop = _Loop(target, params, history, speculator, clock)
    try:
        while len(history) < target.n_ctx:
            if not loop.overlaps:
                yield from loop.emit()
            if not (yield from loop.go_on()):
                break
        yield from loop.emit()
    except Exception:
        yield from loop.emit()  # what was written before it stands
        raise
    finally:
        loop.drop()


class _Asked(NamedTuple):
    """What is to be verified next, when that was known, and the seconds of the round so far: for asking, and before."""

    draft: Draft
    at: float
    draft_s: float
    before_s: float


@dataclass(slots=True)
class _UntilFailure:
    """Choices up to one that could not be made: what was chosen before it stands, as it would without a draft."""

    choices: Iterator[int]
    error: Exception | None = None

    def __iter__(self) -> Iterator[int]:
        try:
            yield from self.choices
        except Exception as error:
            self.error = error


@dataclass(slots=True)
class _Loop:
    """What both kinds of steps share; see decode for the fields.

    shown: the history, as drafters see it. pipelined: the target, if it is one; asking that takes as long as a look
    for drafts. waiting: what was emitted and nobody has taken yet, the first last. is_ahead: the cache holds what may
    have to go. over: when the last round was over, where steps overlap; None where they do not. learning_s: seconds of
    what has passed since then in which that round was learnt of.
    """

    target: Target
    params: SamplingParams
    history: list[int]
    speculator: Speculator | None
    clock: Callable[[], float]
    shown: ReadOnly = field(init=False)
    pipelined: Pipelined | None = None
    overlaps: bool = False
    waiting: list[Emitted] = field(default_factory=list)
    is_ahead: bool = False
    over: float | None = None
    learning_s: float = 0.0

    def __post_init__(self) -> None:
        self.shown = ReadOnly(self.history)
        self.pipelined = self.target if isinstance(self.target, Pipelined) else None
        self.overlaps = self.pipelined is not None and self.pipelined.overlaps

    def emit(self) -> Iterator[Emitted]:
        """What is waiting; what was given is taken."""
        while self.waiting:
            yield self.waiting.pop()

    def drop(self) -> None:
        """Forget what nobody took."""
        if self.waiting:
            del self.history[-len(self.waiting) :]
        if self.waiting or self.is_ahead:
            self.target.keep(len(self.history) - 1)
        self.waiting.clear()

    def go_on(self) -> Generator[Emitted, None, bool]:
        """A round, or a stretch; False when the request was cancelled."""
        stretch = self._stretch() if self.speculator is not None and self.speculator.drafter.is_quoting else None
        if stretch is not None and stretch.lengths:
            return (yield from self._stride(stretch))
        asked = self._ask()
        if asked.draft:
            if stretch is not None:
                stretch.close()
            return (yield from self._verify(asked))
        stretch = stretch or self._stretch()
        return (yield from self._verify(asked) if stretch is None else self._follow(stretch, asked))

    def _stretch(self) -> Stretch | None:
        """Steps that need no host; None where there are none."""
        return None if self.pipelined is None else self.pipelined.stretch(self.params, self.history)

    def _ask(self) -> _Asked:
        began = self.clock()
        draft = self._draft()
        at = self.clock()
        return _Asked(draft, at, at - began, 0.0 if self.over is None else began - self.over)

    def _draft(self) -> Draft:
        """What the speculator wants verified."""
        # A round emits a token more than its draft at most, and must leave room for it.
        room = self.target.n_ctx - len(self.history) - 1
        if self.speculator is None or room <= 0:
            return NO_DRAFT
        return self.speculator.draft(self.shown, self.params, room, self.target.vocab_size)

    def _learn(self, done: Round, *, may_wait: bool = False) -> None:
        if self.speculator is not None:
            self.speculator.learn(done, may_wait=may_wait)

    def _catch_up(self) -> None:
        if self.speculator is not None:
            self.speculator.catch_up()

    def _verify(self, asked: _Asked) -> Generator[Emitted, None, bool]:
        """One step for a draft and the token before it; False when the request was cancelled."""
        draft, n_held = asked.draft, len(self.history)
        choices = self.target.choices(draft.tokens, self.params, self.history)
        computed = self.clock()
        self.is_ahead = choices is not None
        self._catch_up()
        yield from self.emit()
        first = None if choices is None else next(choices, None)
        if choices is None or first is None:
            return False
        if self.overlaps:
            computed = self.clock()
        until_failure = _UntilFailure(choices)
        verdict = accepted(draft.tokens, chain((first,), until_failure))
        done = Round(
            draft=draft,
            n_accepted=verdict.n_accepted,
            tokens=verdict.tokens,
            draft_s=asked.draft_s,
            verify_s=asked.before_s - self.learning_s + computed - asked.at,
            sample_s=self.clock() - computed,
            overlaps=self.overlaps,
        )
        self._learn(done, may_wait=self.overlaps)
        self.over, self.learning_s = (self.clock() if self.overlaps else None), 0.0
        self.history.extend(verdict.tokens)
        self.waiting = [(token, index, done) for index, token in enumerate(verdict.tokens)][::-1]
        if len(draft) and len(self.history) - 1 < n_held + len(draft):
            self.target.keep(len(self.history) - 1)
        self.is_ahead = False
        if until_failure.error is not None:
            raise until_failure.error
        return True

    def _follow(self, stretch: Stretch, asked: _Asked) -> Generator[Emitted, None, bool]:
        """Steps that begin early, until a draft is wanted; False when there are no more.

        What is wanted comes too late for the step that has begun: its tokens are taken, and the speculator is asked
        again for what follows them.
        """
        is_wanted = is_ahead = False
        try:
            stretch.begin()
            self._catch_up()
            yield from self.emit()
            for stride in stretch:
                taken = self.clock()
                done = Round(
                    draft=NO_DRAFT,
                    n_accepted=0,
                    tokens=stride.tokens,
                    draft_s=asked.draft_s,
                    verify_s=asked.before_s + taken - asked.at,
                    sample_s=0.0,
                    is_ahead=is_ahead,
                    overlaps=True,
                )
                self.over, is_ahead = taken, True  # the next step goes on while this one is learnt of
                self._learn(done)
                self.learning_s = self.clock() - taken
                yield from self._taken(done)
                if not is_wanted:
                    asked = self._ask()
                    is_wanted = len(asked.draft) > 0
                if is_wanted:
                    stretch.finish()
        finally:
            stretch.close()
        return is_wanted

    def _stride(self, stretch: Stretch) -> Generator[Emitted, None, bool]:
        """Steps that begin early and draft by themselves, until there are no more."""
        speculator, lengths = self.speculator, stretch.lengths
        assert speculator is not None
        over, is_ahead = self.clock(), False
        wish = speculator.wish(self.shown, lengths)
        begun = deque((wish, wish))  # a step that is waited for, and the one after it
        try:
            stretch.draft(wish.n_tokens, self.history)
            stretch.begin()
            self._catch_up()
            yield from self.emit()
            for stride in stretch:
                taken = self.clock()
                kind = begun.popleft().kind
                done = Round(
                    draft=Draft(stride.draft, (kind,) * len(stride.draft)) if stride.draft else NO_DRAFT,
                    n_accepted=len(stride.tokens) - 1,
                    tokens=stride.tokens,
                    draft_s=0.0,
                    verify_s=taken - over,
                    sample_s=0.0,
                    is_ahead=is_ahead,
                    overlaps=True,
                )
                over, is_ahead = taken, True
                speculator.learn_stride(done)
                yield from self._taken(done)
                begun.append(speculator.wish(self.shown, lengths))
                stretch.draft(begun[-1].n_tokens, self.history)
        finally:
            stretch.close()
        return False

    def _taken(self, done: Round) -> Iterator[Emitted]:
        """Its tokens, one after the other, each in the history when it is given."""
        for index, token in enumerate(done.tokens):
            self.history.append(token)
            yield token, index, done
