"""What a drafter is: something that guesses the next tokens of a sequence, cheaply.

The protocols and values of speculation. They know nothing of how a guess is made, or of how it is verified.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import index
from typing import Literal, Protocol

from runner.config import LONGEST_DRAFT, SamplingParams

Clock = Callable[[], float]
DrafterName = Literal["suffix", "model", "self", "mtp", "eagle3", "scripted"]


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed to follow a history, and for each the bucket in which its acceptance is counted.

    A bucket is the drafter's own class of guesses, from 0 (the poorest) up: a range of match lengths, or of
    confidences. Both tuples have one length.
    """

    tokens: tuple[int, ...] = ()
    buckets: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)


NO_DRAFT = Draft()


def sound(draft: Draft, most: int, n_buckets: int, vocab_size: int) -> Draft:
    """As much of what a drafter gave as can be verified and counted: it may be wrong in any way, and too long.

    Raises TypeError or AttributeError for what is no draft of whole numbers.
    """
    if draft is NO_DRAFT:
        return draft
    tokens, buckets = (tuple(map(index, islice(ids, most))) for ids in (draft.tokens, draft.buckets))
    n = min(len(tokens), len(buckets))
    unknown = (i for i in range(n) if not (0 <= tokens[i] < vocab_size and 0 <= buckets[i] < n_buckets))
    n = next(unknown, n)
    return Draft(tokens[:n], buckets[:n])


class Gate(Protocol):
    """Says how long a draft is to become. Made anew for each draft."""

    @property
    def is_open(self) -> bool:
        """Whether guessing a token more is worth its time, whatever it is: to ask where guessing takes any."""
        ...

    @property
    def reach(self) -> int:
        """How many tokens to guess where all are guessed before any is seen: asked once, and in place of `is_open`.

        So many are then admitted, whatever they are: they were paid for when they were begun.
        """
        ...

    def admits(self, bucket: int) -> bool:
        """Whether the token that was guessed, of this bucket, is worth verifying. After a False the draft is over."""
        ...


class Drafter(Protocol):
    """One source of drafts, for one loaded target. Not thread-safe.

    n_buckets: how many buckets it uses. is_host_only: drafting costs no time of the device that runs the target.
    is_quoting: it guesses what followed before in the history itself: a target that can look for that itself need not
    wait for it (see rounds.Stretch). n_given: tokens of texts that it was given to quote. longest_draft: tokens that it
    can guess and forget again. nbytes: memory that it holds on the target's device.
    """

    name: DrafterName
    n_buckets: int
    is_host_only: bool
    is_quoting: bool = False
    n_given: int = 0
    longest_draft: int = LONGEST_DRAFT

    @property
    def nbytes(self) -> int: ...

    def may_guess(self, history: Sequence[int]) -> bool:
        """Whether `propose` might guess anything after `history`: asked before most steps, so it takes next to no time.

        A drafter that works on the host has then read what it has to; others are asked to guess without it.
        """
        del history
        return True

    def propose(self, history: Sequence[int], params: SamplingParams, gate: Gate) -> Draft:
        """Guess what follows `history`, one token after the other, as long as the gate admits.

        history: prompt and completion so far, never empty. It need not go on from the last call's: the drafter finds
        what it can keep by itself. It can only be read; its slices are lists. Tokens may be wrong in any way; those
        outside the vocabulary are never accepted, and what is longer than was asked for, or of no bucket that there is,
        is cut (`sound`). What it raises, or gives that is no draft, is logged, and ends the drafts of that answer.
        """
        ...

    def close(self) -> None:
        """Give back what it holds. Calling it twice is harmless."""
        ...


def clock_for(drafter: Drafter) -> Clock:
    """What a drafter's time is measured by, in seconds.

    On the host the processor's time of this thread: that others hold it up is no fault of the drafter's, and befalls
    plain decoding too. Time of the device passes while the thread waits.
    """
    return time.thread_time if drafter.is_host_only else time.perf_counter
