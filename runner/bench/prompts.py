"""The token ids that a benchmark gives to a model: prefixes that are the same each time, and prompts that never are.

All are slices of one text's ids, so that one hash tells whether two runs read the same. It knows nothing of measuring.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from runner.backends.base import Tokenizer
from runner.bench.prose import prose

_N_CHARACTERS: Final = 40_000
_STRIDE: Final = 101  # between the starts of two fresh prompts, so that they are not nearly the same


class Prompts:
    """Slices of `ids`, which go round and round. bos: what the model wants before any text, or None."""

    def __init__(self, ids: Sequence[int], bos: int | None = None) -> None:
        self._ids = tuple(ids)
        self._bos = () if bos is None else (bos,)
        self._starts: list[int] = []  # of the fresh prompts, as far as they were asked for
        self._firsts = list(self.prefix(1))

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Prompts:
        ids = tokenizer.encode(prose(_N_CHARACTERS), parse_special=False)
        return cls(ids, tokenizer.bos_id if tokenizer.add_bos else None)

    @property
    def md5(self) -> str:
        """Of the ids that all prompts are made of, BOS first, as little-endian 32-bit numbers."""
        data = np.asarray((*self._bos, *self._ids), "<i4").tobytes()
        return hashlib.md5(data, usedforsecurity=False).hexdigest()

    def prefix(self, length: int) -> tuple[int, ...]:
        """The first `length` ids of the text, BOS included: the same each time, so that the KV cache keeps it."""
        return (self._bos + self._slice(0, length))[:length]

    def fresh(self, length: int, number: int) -> tuple[int, ...]:
        """`length` ids that begin otherwise than the prefix, and than the fresh prompts of all lower numbers.

        Nothing of them is found in a KV cache that holds one of those. In a vocabulary too small for so many
        beginnings only the ones of neighbours differ.
        """
        while len(self._starts) <= number:
            start = self._next_start(len(self._starts) * _STRIDE)
            self._starts.append(start)
            self._firsts.append(self._ids[start % len(self._ids)])
        return self._slice(self._starts[number], length)

    def _next_start(self, earliest: int) -> int:
        size = len(self._ids)
        places = range(earliest, earliest + size)
        for taken in (set(self._firsts), {self._firsts[0], self._firsts[-1]}):
            found = next((place for place in places if self._ids[place % size] not in taken), None)
            if found is not None:
                return found
        return earliest

    def _slice(self, start: int, length: int) -> tuple[int, ...]:
        size = len(self._ids)
        return tuple(self._ids[(start + i) % size] for i in range(length))
