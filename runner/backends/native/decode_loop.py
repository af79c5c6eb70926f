"""A decode loop that the host follows one step behind: while it takes a token, the step after that runs already.

It knows when a step may begin and what the KV cache is to hold at the end, and nothing of what a step computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import torch

from runner.backends.native.kv_cache import KvCache
from runner.sampling import bad_logits
from runner.types import CancelToken

_SLOTS: Final = 2  # a step that the host waits for, and the one after it


class DecodeLoop:
    """Tokens until it is closed, told to finish or cancelled, or until the cache is full: see speculative.Stretch.

    launch: begins the step of the token that lies on the device, and puts what it leaves there into the mailbox. The
    cache lacks one token when the loop is made. Once closed it holds that one and those that were taken, but for the
    last where no step has computed it.
    """

    def __init__(self, launch: Callable[[], None], mailbox: Mailbox, cache: KvCache, cancel: CancelToken) -> None:
        self._launch = launch
        self._mailbox = mailbox
        self._cache = cache
        self._cancel = cancel
        self._n_held = cache.length + 1  # positions that the cache is to hold in the end
        self._n_begun = 0  # steps whose tokens were not taken yet
        self._is_finishing = self._is_closed = False

    def __iter__(self) -> DecodeLoop:
        return self

    def __next__(self) -> int:
        if self._is_closed or self._cancel.is_cancelled:
            self.close()
            raise StopIteration
        # The step that the next token is waited for, and one ahead of it where there is room for one.
        while self._n_begun < _SLOTS and not self._is_finishing and self._cache.length + 1 < self._cache.n_ctx:
            self._launch()
            self._n_begun += 1
        if not self._n_begun:
            self.close()
            raise StopIteration
        found = self._mailbox.take()
        self._n_begun -= 1
        if found < 0:
            raise bad_logits()
        self._n_held += 1
        return found

    def finish(self) -> None:
        """Begin no step any more: the tokens of those that have begun are still to come."""
        self._is_finishing = True

    def close(self) -> None:
        """Drop what was not taken. Calling it twice is harmless."""
        if not self._is_closed:
            self._is_closed = True
            self._mailbox.forget()
            self._cache.truncate(min(self._n_held, self._cache.length))


class Mailbox:
    """Tokens on their way to the host, in order: a step writes its token into a slot, and the host waits for the step.

    slots: int64, in pinned memory on a GPU: the token at a position belongs in slot position % len(slots). No more than
    that may be on their way when one is taken.
    """

    def __init__(self, device: torch.device) -> None:
        is_gpu = device.type == "cuda"
        self.slots = torch.zeros(_SLOTS, dtype=torch.int64, pin_memory=is_gpu)
        self._events = [torch.cuda.Event() for _ in range(_SLOTS)] if is_gpu else []  # type: ignore[no-untyped-call]
        self._positions: deque[int] = deque()  # of the tokens that were not taken

    def expect(self, position: int) -> None:
        """The step was begun that chooses the token at `position`."""
        self._positions.append(position)
        if self._events:
            self._events[position % _SLOTS].record()

    def take(self) -> int:
        slot = self._positions.popleft() % _SLOTS
        if self._events:
            self._events[slot].synchronize()
        return int(self.slots[slot])

    def forget(self) -> None:
        """Drop what was not taken, once it has arrived."""
        for event in self._events:
            event.synchronize()
        self._positions.clear()
