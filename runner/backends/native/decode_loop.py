"""A decode loop that the host follows one step behind: while it takes a token, the step after that runs already.

A step emits one token or, where it drafts by itself and verifies that, several. The loop knows when a step may begin
and what the KV cache is to hold at the end, and nothing of what a step computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

import torch

from runner.backends.native.kv_cache import KvCache
from runner.kernels.advance import SLOT_SIZE
from runner.kernels.values import MOST_ROWS
from runner.sampling import bad_logits
from runner.speculative.costs import LEAST_STRIDE
from runner.speculative.rounds import Stride
from runner.types import CancelToken

STRIDES: Final = (LEAST_STRIDE, 7, 15)
"""Tokens that a step may draft by itself: few numbers of rows are worth a graph each."""

_SLOTS: Final = 2  # a step that the host waits for, and the one after it


class Steps(Protocol):
    """The device's part: each step begins where the one before it ends, and what it emits goes to the mailbox.

    lengths: how many tokens a step may draft by itself; none if it cannot.
    """

    lengths: Sequence[int]

    def begin(self, n_rows: int) -> None:
        """Begin a step for the token that lies on the device and a draft of n_rows - 1 tokens, which it makes itself.

        The cache's length becomes what it is if all of the draft stands.
        """
        ...

    def fill(self, text: Sequence[int]) -> None:
        """All that was known when the first step began: what drafts are made of, beside what steps have emitted."""
        ...

    def end(self, n_known: int) -> None:
        """No step follows. n_known: ids of the text by now."""
        ...


class DecodeLoop:
    """Tokens until it is closed, told to finish or cancelled, or until the cache is full: see speculative.Stretch.

    The cache lacks one token when the loop is made. Once closed it holds that one and those that were taken, but for
    the last where no step has computed it.
    """

    def __init__(self, steps: Steps, mailbox: Mailbox, cache: KvCache, cancel: CancelToken) -> None:
        self._steps = steps
        self._mailbox = mailbox
        self._cache = cache
        self._cancel = cancel
        self._n_first = self._n_known = cache.length + 1  # ids of the text when the loop was made, and by now
        self._rows: deque[int] = deque()  # of the steps whose tokens were not taken yet
        self._n_rows = 1  # of the next one
        self._is_finishing = self._is_closed = self._is_filled = self._is_bad = False

    def __iter__(self) -> DecodeLoop:
        return self

    def __next__(self) -> Stride:
        if self._is_closed or self._cancel.is_cancelled:
            self.close()
            raise StopIteration
        if self._is_bad:
            raise bad_logits()  # before a step begins: the device is further than the cache's length says
        self.begin()
        if not self._rows:
            self.close()
            raise StopIteration
        n_rows = self._rows.popleft()
        taken = self._mailbox.take(n_rows)
        if min(taken.tokens) < 0:  # what was chosen before it stands
            self._is_bad = True
            taken = taken._replace(tokens=taken.tokens[: taken.tokens.index(-1)])
        self._cache.fall_short(n_rows - len(taken.tokens), sum(self._rows))
        if not taken.tokens:
            raise bad_logits()
        self._n_known += len(taken.tokens)
        return taken

    def begin(self) -> None:
        """Begin the step that is waited for next, and the one after it, where there is room for them."""
        cache = self._cache
        while len(self._rows) < _SLOTS and not self._is_finishing and cache.length + 1 < cache.n_ctx:
            n_rows = self._n_rows if cache.length + self._n_rows < cache.n_ctx else 1
            self._steps.begin(n_rows)
            self._mailbox.expect()
            self._rows.append(n_rows)

    @property
    def lengths(self) -> Sequence[int]:
        return self._steps.lengths

    def draft(self, n_tokens: int, text: Sequence[int]) -> None:
        assert not n_tokens or n_tokens in self.lengths
        if n_tokens and not self._is_filled:
            self._steps.fill(text[: self._n_first])
            self._is_filled = True
        self._n_rows = 1 + n_tokens

    def finish(self) -> None:
        """Begin no step any more: the tokens of those that have begun are still to come."""
        self._is_finishing = True

    def close(self) -> None:
        """Drop what was not taken. Calling it twice is harmless."""
        if not self._is_closed:
            self._is_closed = True
            self._mailbox.forget()
            self._cache.truncate(min(self._n_known, self._cache.length))
            self._steps.end(self._n_known)


class Mailbox:
    """What steps emit on its way to the host, in order: a step writes it into a slot, and the host waits for the step.

    slots: int64 [n, SLOT_SIZE], in pinned memory on a GPU, one after the other: see kernels/advance.py. No more than n
    steps may be on their way when one is taken.
    """

    def __init__(self, device: torch.device) -> None:
        is_gpu = device.type == "cuda"
        self.slots = torch.zeros(_SLOTS, SLOT_SIZE, dtype=torch.int64, pin_memory=is_gpu)
        self._read = self.slots.numpy()
        self._events = [torch.cuda.Event() for _ in range(_SLOTS)] if is_gpu else []  # type: ignore[no-untyped-call]
        self._stream = torch.cuda.current_stream(device) if is_gpu else None
        self._n_sent = self._n_taken = 0

    def begin(self) -> None:
        """The next step is the first, on the stream of now: the device counts from 0 too."""
        self._n_sent = self._n_taken = 0
        if self._stream is not None:  # asked for here, since it takes as long as a launch
            self._stream = torch.cuda.current_stream(self._stream.device)

    def expect(self) -> None:
        """A step was begun."""
        if self._events:
            self._events[self._n_sent % _SLOTS].record(self._stream)
        self._n_sent += 1

    def take(self, n_rows: int) -> Stride:
        """What the first step that was not taken emitted, which had so many rows; waits for it."""
        slot = self._n_taken % _SLOTS
        self._n_taken += 1
        if self._events:
            self._events[slot].synchronize()
        if n_rows == 1:
            return Stride((int(self._read[slot, 1]),))
        found = self._read[slot].tolist()
        return Stride(tuple(found[1 : 1 + found[0]]), tuple(found[MOST_ROWS + 1 : MOST_ROWS + n_rows]))

    def forget(self) -> None:
        """Drop what was not taken, once it has arrived."""
        for event in self._events:
            event.synchronize()
        self._n_taken = self._n_sent
