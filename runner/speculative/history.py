"""Sequences of token ids, compared. It knows nothing of what the ids mean."""

from __future__ import annotations

from collections.abc import Sequence


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
