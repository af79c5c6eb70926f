"""Drafts from the text itself: what followed most often when the sequence ended before as it does now.

A suffix automaton (Blumer et al., 1985) knows every repeated part of what it was given, and holds the longest suffix
that occurred before as a state: finding it costs nothing. It needs no model and no memory of a device. It knows token
ids only, and neither what a draft costs nor whether it pays.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from runner.config import SamplingParams
from runner.speculative.drafter import NO_DRAFT, Draft, Drafter, DrafterName, Gate
from runner.speculative.history import common_prefix

SHORTEST_MATCH: Final = 3
"""Tokens that must have occurred before; shorter matches are mostly chance."""

_COUNTED_SUFFIXES = 8  # a longer chain of suffixes is one token repeated, where counts tell nothing
_OPTIONS = 32  # that are compared, of what followed: the last new ones, so that a table of thousands takes no longer
_RANGES = (SHORTEST_MATCH, 4, 8, 16)  # the least match length of each bucket but the first
_CONTEXT = 32  # tokens of what is held already that are given again, so that matches reach across a seam
_TAIL = 8  # tokens by which a sequence that goes on is known
_NEW_TURN = 64  # tokens more than the last time
_LIMIT = 65_536

MOST_GIVEN: Final = 1 << 14
"""Places of the texts that a drafter is given to quote: their tokens, and the end of each."""


def ending(texts: Sequence[Sequence[int]], most: int) -> list[Sequence[int]]:
    """What of `texts` takes `most` places, each token one and the end of each text one: the last of them."""
    kept: list[Sequence[int]] = []
    for text in reversed(texts):
        if most < 2:
            break
        kept.append(text[-(most - 1) :])
        most -= len(kept[-1]) + 1
    return kept[::-1]


class SuffixAutomaton:
    """Every part of some sequences of ids, in at most 2 states and 3 transitions a token; grows by a token in O(1).

    State 0 stands for the empty text. Each state stands for parts of the text that end at the same places, the
    longest of which has `_length` tokens; `_link` is the state of its longest suffix that ends at more places.
    """

    def __init__(self) -> None:
        self._length = [0]
        self._link = [-1]
        self._next: list[dict[int, int]] = [{}]
        self._count = [0]  # how often a state was seen again, where it counts: see extend
        self._last = 0
        self._n_sequences = 1

    def __len__(self) -> int:
        """Tokens given so far, separators included."""
        return self._length[self._last]

    def separate(self) -> None:
        """End a sequence: nothing matches across its end."""
        self.extend((-self._n_sequences,))  # an id of its own, which no token has
        self._n_sequences += 1

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens, none negative."""
        lengths, links, transitions, counts, last = self._length, self._link, self._next, self._count, self._last
        for token in tokens:
            new, state = len(lengths), last
            lengths.append(lengths[last] + 1)
            transitions.append({})
            counts.append(0)
            while state >= 0 and token not in transitions[state]:
                transitions[state][token] = new
                state = links[state]
            if state < 0:
                links.append(0)
            else:
                suffix = transitions[state][token]
                if lengths[suffix] > lengths[state] + 1:
                    links.append(0)
                    suffix = self._split(state, token, suffix)
                    links[new] = suffix
                else:
                    links.append(suffix)
                left = _COUNTED_SUFFIXES
                while left and lengths[suffix] >= SHORTEST_MATCH:
                    counts[suffix] += 1
                    suffix, left = links[suffix], left - 1
            last = new
        self._last = last

    def _split(self, state: int, token: int, target: int) -> int:
        """A state of its own for those parts in `target` that end at more places than the others do now."""
        split = len(self._length)
        self._length.append(self._length[state] + 1)
        self._link.append(self._link[target])
        self._next.append(self._next[target].copy())
        self._count.append(self._count[target])
        while state >= 0 and self._next[state].get(token) == target:
            self._next[state][token] = split
            state = self._link[state]
        self._link[target] = split
        return split

    def repeat(self) -> tuple[int, int]:
        """The state of the longest suffix that occurred before, and its length."""
        state = self._link[self._last]
        return (state, self._length[state]) if state > 0 else (0, 0)

    def advance(self, state: int, length: int, token: int) -> tuple[int, int]:
        """The longest suffix of (a part of `length` tokens in `state`, then `token`) that occurs here."""
        while state and token not in self._next[state]:
            state = self._link[state]
            length = self._length[state]
        found = self._next[state].get(token)
        return (0, 0) if found is None else (found, length + 1)

    def continuation(self, state: int) -> Iterator[tuple[int, bool]]:
        """What followed most often, token after token, and whether something else ever did up to there.

        At the end of the text it goes on after the longest suffix that occurred before, as in a text that repeats.
        """
        is_contested = False
        while True:
            options = self._next[state]
            if len(options) == 1:
                ((token, target),) = options.items()
            elif options:
                is_contested = True
                counts = self._count
                latest = islice(reversed(options.items()), _OPTIONS)
                token, target = max(latest, key=lambda option: counts[option[1]])
            else:
                state = self._link[state]
                if self._length[state] < SHORTEST_MATCH:
                    return
                continue
            if token < 0:
                return
            yield token, is_contested
            state = target


class SuffixDrafter(Drafter):
    """Drafts from what was said before: prompt, answers, earlier chats, and `texts`, which it never forgets.

    Bucket 0: something else has followed before, too. Above it: nothing else ever did, by the length of the match.

    Holds `limit` tokens at most, 450 bytes a token, 30 MB with the default: a third of them the end of the texts, the
    others in two parts that are forgotten wholly, the oldest first. Measured on an AMD EPYC (Zen 4, one core;
    `benchmarks/suffix_drafter.py`): a prompt of 8192 tokens takes 8 ms when it is read, 1 us a token; after it a step
    takes 2.5 us without a match and 8 us with a draft of 15. What follows a step of the target finds cold caches, and
    takes about three times as long.
    """

    name: DrafterName = "suffix"
    n_buckets = 1 + len(_RANGES)
    is_host_only = True
    is_quoting = True
    nbytes = 0

    def __init__(self, texts: Sequence[Sequence[int]] = (), *, limit: int = _LIMIT) -> None:
        self._part = limit // 3
        self._given = SuffixAutomaton()
        given = ending(texts, self._part)
        for text in given:
            self._given.separate()
            self._given.extend(text)
        self.n_given = sum(map(len, given))
        self._forget()

    def _forget(self) -> None:
        self._live = SuffixAutomaton()
        self._older: _Match | None = None
        self._quoted = _Match(self._given) if self.n_given else None
        self._held: list[int] = []

    def propose(self, history: Sequence[int], params: SamplingParams, gate: Gate) -> Draft:
        del params
        self._read(history)
        automaton = self._live
        state, length = automaton.repeat()
        for match in (self._older, self._quoted):
            if match is not None and match.length > length:
                automaton, state, length = match.automaton, match.state, match.length
        if length < SHORTEST_MATCH:
            return NO_DRAFT
        return _admitted(automaton.continuation(state), length, gate)

    def close(self) -> None:
        self._forget()

    def _read(self, history: Sequence[int]) -> None:
        """Take in what `history` has more than the last one; if it is another, what it does not share with it."""
        held = self._held
        new = len(history) - len(held)
        # From look to look the end will do; a new turn is compared wholly.
        known = held[-_TAIL:] if 0 <= new < _NEW_TURN else held
        if new >= 0 and list(history[len(held) - len(known) : len(held)]) == known:
            tokens = history[len(held) :]
            held.extend(tokens)
        else:
            shared = common_prefix(held, history)
            self._live.separate()
            tokens = history[max(0, shared - _CONTEXT) :]
            self._held = list(history)
        self._grow(tokens)

    def _grow(self, tokens: Sequence[int]) -> None:
        if len(tokens) > self._part:
            tokens = tokens[-self._part :]
        if len(self._live) + len(tokens) > self._part:
            self._older = _Match(self._live)
            self._live = SuffixAutomaton()
            self._live.extend(self._held[-len(tokens) - _CONTEXT : -len(tokens)])
        self._live.extend(tokens)
        for match in (self._older, self._quoted):
            if match is not None:
                match.advance(tokens)


class _Match:
    """The longest suffix of what was written that occurs in an automaton of something else."""

    def __init__(self, automaton: SuffixAutomaton) -> None:
        self.automaton = automaton
        self.state = self.length = 0

    def advance(self, tokens: Sequence[int]) -> None:
        if len(tokens) > _CONTEXT:  # a whole turn: what counts is how it ends
            tokens, self.state, self.length = tokens[-_CONTEXT:], 0, 0
        for token in tokens:
            self.state, self.length = self.automaton.advance(self.state, self.length, token)


def _admitted(continuation: Iterator[tuple[int, bool]], length: int, gate: Gate) -> Draft:
    """As much as the gate admits, and at most twice as much as the match is long."""
    bucket_alone = bisect(_RANGES, length)
    tokens: list[int] = []
    buckets: list[int] = []
    for token, is_contested in continuation:
        bucket = 0 if is_contested else bucket_alone
        if len(tokens) == 2 * length or not gate.admits(bucket):
            break
        tokens.append(token)
        buckets.append(bucket)
    return Draft(tuple(tokens), tuple(buckets))
