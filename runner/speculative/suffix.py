"""Drafts from the text itself: what followed the last time that the sequence ended as it does now.

Where its last tokens stood before is kept in hash chains, so that a token which repeats nothing takes one look into a
dict; of the places that are found the one with the longest match counts, as on a device (kernels/repeats.py). It needs
no model and no memory of a device. It knows token ids only, and neither what a draft costs nor whether it pays.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from runner.config import SamplingParams
from runner.speculative.drafter import NO_DRAFT, Draft, Drafter, DrafterName, Gate
from runner.speculative.history import common_prefix

SHORTEST_MATCH: Final = 3
"""Tokens that must have occurred before; shorter matches are mostly chance."""

LONGEST_MATCH: Final = 16
"""Tokens that are compared at most: of longer matches the latest counts."""

_CANDIDATES = 32  # places that are compared, the latest ones: a table of thousands of rows takes no longer
_ID_BITS = 20  # of a token's in the key of an n-gram
_KEY_MASK = (1 << SHORTEST_MATCH * _ID_BITS) - 1
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


class Match(NamedTuple):
    """Where the last tokens stood before: `length` of them, up to `place`, at which what followed begins.

    n_alone: tokens from there on in which all equally long matches that were looked at went on alike.
    """

    length: int
    place: int
    n_alone: int


class HashChains:
    """Some sequences of ids, one behind the other, and the places at which each n-gram of theirs ends, latest first.

    As in deflate: a dict has the latest place of an n-gram, and each place the one before it. The dict's keys are
    hashes, so whoever finds a place compares. A place is the number of tokens up to there, and 0 is none.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.key = 0  # of the last n-gram
        self._latest: dict[int, int] = {}
        self._before: list[int] = []
        self._n_sequences = 0

    def __len__(self) -> int:
        """Tokens given so far, separators included."""
        return len(self.tokens)

    def separate(self) -> None:
        """End a sequence: nothing matches across its end."""
        self._n_sequences += 1
        self.extend((-self._n_sequences,))  # an id of its own, which no token has

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens, none negative."""
        given, latest, before, key = self.tokens, self._latest, self._before, self.key
        for token in tokens:
            given.append(token)
            key = (key << _ID_BITS | token) & _KEY_MASK
            before.append(latest.get(key, 0))
            latest[key] = len(given)
        self.key = key

    def repeated(self) -> int:
        """The latest place before the end where the last n-gram stands."""
        return self._before[-1] if self._before else 0

    def place(self, key: int) -> int:
        """The latest place of an n-gram of other sequences."""
        return self._latest.get(key, 0)

    def longest(self, place: int, ending: Sequence[int]) -> Match | None:
        """The longest match of `ending` at `place` or at one before it with the same n-gram; of equals the latest."""
        tokens, length, at, n_alone = self.tokens, SHORTEST_MATCH - 1, 0, 0
        for _ in range(_CANDIDATES):
            if not place:
                break
            most, n = min(len(ending), place), 0
            while n < most and tokens[place - 1 - n] == ending[-1 - n]:
                n += 1
            if n > length:
                length, at, n_alone = n, place, LONGEST_MATCH
                if n == LONGEST_MATCH:
                    break
            elif n == length and n_alone:
                alike, n_alone = min(n_alone, len(tokens) - at), 0
                while n_alone < alike and tokens[at + n_alone] == tokens[place + n_alone]:
                    n_alone += 1
            place = self._before[place - 1]
        return Match(length, at, n_alone) if at else None

    def continuation(self, place: int, n_tokens: int) -> list[int]:
        """Up to `n_tokens` from `place` to the end of that sequence; one that is not ended goes round, as a text that
        repeats does."""
        found = self.tokens[place : place + n_tokens]
        while found and len(found) < n_tokens:
            found += self.tokens[place : place + n_tokens - len(found)]
        return found[: next((i for i, token in enumerate(found) if token < 0), n_tokens)]


class SuffixDrafter(Drafter):
    """Drafts from what was said before: prompt, answers, earlier chats, and `texts`, which it never forgets.

    Bucket 0: something else has followed before, too. Above it: nothing else that was looked at, by the length of the
    match.

    Holds `limit` tokens at most, 90 bytes a token: a third of them the end of the texts, the others in two parts
    that are forgotten wholly, the oldest first. It reads as it is asked whether it may guess. A prompt of 8192
    tokens takes 2 ms when it is read (AMD EPYC, Zen 4, one core; `benchmarks/suffix_drafter.py`), after it a step
    without a match 4 us and one with a draft 15 us. What follows a step of the target finds cold caches, and takes
    about three times as long.
    """

    name: DrafterName = "suffix"
    n_buckets = 1 + len(_RANGES)
    is_host_only = True
    is_quoting = True
    nbytes = 0

    def __init__(self, texts: Sequence[Sequence[int]] = (), *, limit: int = _LIMIT) -> None:
        self._part = limit // 3
        self._given = HashChains()
        given = ending(texts, self._part)
        for text in given:
            self._given.extend(text)
            self._given.separate()
        self.n_given = sum(map(len, given))
        self._forget()

    def _forget(self) -> None:
        self._live = HashChains()
        self._others = [self._given] if self.n_given else []
        self._held: list[int] = []

    def may_guess(self, history: Sequence[int]) -> bool:
        self._read(history)
        live = self._live
        return bool(live.repeated() or (self._others and any(other.place(live.key) for other in self._others)))

    def propose(self, history: Sequence[int], params: SamplingParams, gate: Gate) -> Draft:
        del params
        self._read(history)
        live = self._live
        end = live.tokens[-LONGEST_MATCH:]
        places = [(live, live.repeated()), *((other, other.place(live.key)) for other in self._others)]
        matches = [(chains, match) for chains, place in places if (match := chains.longest(place, end)) is not None]
        if not matches:
            return NO_DRAFT
        chains, match = max(matches, key=lambda found: found[1].length)
        tokens = chains.continuation(match.place, min(gate.reach, 2 * match.length))
        n_alone = min(match.n_alone, len(tokens))
        buckets = (bisect(_RANGES, match.length),) * n_alone + (0,) * (len(tokens) - n_alone)
        return Draft(tuple(tokens), buckets)

    def close(self) -> None:
        self._forget()

    def _read(self, history: Sequence[int]) -> None:
        """Take in what `history` has more than the last one; if it is another, what it does not share with it."""
        held = self._held
        n_held = len(held)
        tokens = history[n_held:]
        # From look to look the end will do; a new turn is compared wholly.
        known = held[-_TAIL:] if len(tokens) < _NEW_TURN else held
        if list(history[n_held - len(known) : n_held]) == known:
            held.extend(tokens)
        else:
            shared = common_prefix(held, history)
            self._live.separate()
            tokens = history[max(0, shared - _CONTEXT) :]
            self._held = list(history)
        if tokens:
            if len(self._live) + len(tokens) > self._part:
                tokens = self._make_room(tokens)
            self._live.extend(tokens)

    def _make_room(self, tokens: Sequence[int]) -> Sequence[int]:
        """Forget the older part; gives what of `tokens` has room."""
        tokens = tokens[-self._part :]
        self._live.separate()
        self._others = [*self._others[: bool(self.n_given)], self._live]
        self._live = HashChains()
        self._live.extend(self._held[-len(tokens) - _CONTEXT : -len(tokens)])
        return tokens
