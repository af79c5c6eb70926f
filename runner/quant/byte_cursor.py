"""A position in a header's bytes: reads forward, and refuses every step that would leave the file.

Sizes read from the file are compared with what is left before anything is taken, so that a lie costs no memory. It
knows nothing of what the bytes mean.
"""

from __future__ import annotations

import struct
from typing import Any


class CutShort(Exception):
    """Something in the header would end outside the file."""


class NotHere(Exception):
    """The header goes on beyond the bytes at hand, which are the file's first. wanted: how many are needed at least."""

    def __init__(self, wanted: int) -> None:
        super().__init__(f"the first {wanted} bytes are needed")
        self.wanted = wanted


class ByteCursor:
    """Reads little-endian values one after the other from `view`, the first bytes of a file of `size` bytes."""

    def __init__(self, view: memoryview, size: int) -> None:
        self._view = view
        self._size = size
        self.position = 0

    def need(self, count: int) -> None:
        """Raise CutShort unless the file has `count` more bytes, NotHere unless they are at hand."""
        if count > self._size - self.position:
            raise CutShort(f"{count} bytes wanted at {self.position}, {self._size - self.position} left")
        if self.position + count > len(self._view):
            raise NotHere(self.position + count)

    def skip(self, count: int) -> None:
        self.need(count)
        self.position += count

    def take(self, count: int) -> bytes:
        start = self.position
        self.skip(count)
        return bytes(self._view[start : self.position])

    def between(self, start: int) -> bytes:
        """The bytes from `start` to here, copied."""
        return bytes(self._view[start : self.position])

    def number(self, code: str) -> Any:
        """One value of a struct format code."""
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self, limit: int | None = None) -> bytes:
        """A string with its length in 8 bytes before it, at most `limit` long."""
        length = self.number("Q")
        if limit is not None and length > limit:
            raise CutShort(f"a name of {length} bytes")
        return self.take(length)

    def skip_strings(self, count: int) -> None:
        """Pass over `count` strings."""
        self.need(8 * count)
        length_at, view, position = struct.Struct("<Q").unpack_from, self._view, self.position
        end = min(self._size, len(view)) - 8
        for _ in range(count):
            if position > end:
                if position + 8 > self._size:
                    raise CutShort(f"{count} strings")
                raise NotHere(position + 8)
            position += 8 + length_at(view, position)[0]
        self.skip(position - self.position)
