"""The work that one rendering may do: counted in units, so that the same template always ends the same way.

Every loop round, operation, filter and call spends from it before it runs, in proportion to the size of what it
touches. It knows nothing of Jinja: sandbox.py and operations.py decide what costs what.

    work       one unit is about a microsecond: a loop round, an operation, an element looked at, 16 characters made
               or 256 characters read. MAX_WORK of them bounds both the time and the memory (80 MB of text made).
    values     no value holds more than MAX_CHARS characters, MAX_ITEMS elements and MAX_DEPTH levels in all, shared
               parts counted as often as they occur: nested repetition is refused before anything expands it.
    numbers    MAX_INT_BITS bits, so that no arithmetic is long.
    seconds    the same bound in processor time, looked at with each spending, for a slow machine. A busy one may
               take longer: what else runs must not decide whether a template is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

MAX_WORK = 5_000_000
MAX_SECONDS = 2.0
MAX_CHARS = 8 * 2**20
MAX_ITEMS = 200_000
MAX_DEPTH = 64
MAX_INT_BITS = 4096

_VIEWS = (KeysView, ValuesView, ItemsView)


class LimitExceeded(Exception):
    """A rendering went over one of the limits above; the text says which."""


class Budget:
    """What is left for one rendering. `clock` gives seconds of the thread that renders."""

    __slots__ = ("_clock", "_deadline", "_left")

    def __init__(self, *, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._left = MAX_WORK
        self._deadline = clock() + MAX_SECONDS

    def spend(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            raise LimitExceeded(f"it does more than {MAX_WORK} steps of work")
        if self._clock() > self._deadline:
            raise LimitExceeded(f"it runs for more than {MAX_SECONDS:g} s")

    def make_text(self, chars: int) -> None:
        """Spend for a text of so many characters that is about to be made."""
        if chars > MAX_CHARS:
            raise LimitExceeded(f"it makes a text of more than {MAX_CHARS} characters")
        self.spend(1 + (chars >> 4))

    def make_items(self, count: int) -> None:
        """Spend for a sequence of so many elements that is about to be made."""
        if count > MAX_ITEMS:
            raise LimitExceeded(f"it makes a list of more than {MAX_ITEMS} elements")
        self.spend(1 + count)

    def measure(self, value: Any) -> tuple[int, int]:
        """The (elements, characters) of all that `value` holds; spends for reading it, refuses what is too large."""
        if type(value) is str:
            self.spend(1 + (len(value) >> 8))
            return 0, len(value)
        items, chars, depth, level = 0, 0, 0, [value]
        while level:
            below: list[Any] = []
            for part in level:
                if isinstance(part, str):
                    chars += len(part)
                elif isinstance(part, (list, tuple)):
                    items += len(part)
                    below.extend(part)
                elif isinstance(part, dict):
                    items += 2 * len(part)
                    below.extend(part)
                    below.extend(part.values())
                elif isinstance(part, range):
                    items += len(part)
                elif isinstance(part, int):
                    check_int(part)
                elif isinstance(part, _VIEWS):
                    items += 2 * len(part)
                    below.extend(part)
                if items > MAX_ITEMS or chars > MAX_CHARS:
                    raise LimitExceeded(f"it holds more than {MAX_ITEMS} elements or {MAX_CHARS} characters at once")
            level, depth = below, depth + 1
            if depth > MAX_DEPTH:
                raise LimitExceeded(f"it nests values more than {MAX_DEPTH} levels deep")
        self.spend(1 + items + (chars >> 8))
        return items, chars


def check_int(value: int) -> None:
    if value.bit_length() > MAX_INT_BITS:
        raise LimitExceeded(f"it makes a number of more than {MAX_INT_BITS} bits")


_CURRENT: ContextVar[Budget] = ContextVar("budget")


def current_budget() -> Budget:
    """The budget of the rendering that runs in this context. LookupError when none does (Jinja folding constants)."""
    return _CURRENT.get()


@contextmanager
def spending(budget: Budget) -> Iterator[None]:
    """Make `budget` the current one."""
    token = _CURRENT.set(budget)
    try:
        yield
    finally:
        _CURRENT.reset(token)
