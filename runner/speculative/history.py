"""Sequences of token ids, compared, and shown to who may not change them. It knows nothing of what the ids mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids the two sequences share from their start.

    Halves are compared whole, which is fast: this is asked each time that tokens are drafted.
    """
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if list(a[low:middle]) == list(b[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low


class ReadOnly(Sequence[int]):
    """A list as it is at any time, for those who read it alone."""

    __slots__ = ("_ids",)

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        return self._ids[at]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)
