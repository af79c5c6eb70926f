"""Which characters of an answer come from tokens that a drafter had guessed right.

It follows the characters from the tokens through what holds them back (an unfinished character, a marker that may come,
a stop string that may come) to the text that is shown, by counting them. It reads no text.
"""

from __future__ import annotations

Ranges = tuple[tuple[int, int], ...]
"""Ranges [start, end) of a text, in order, that do not touch."""


class DraftedMarks:
    """A mark for each character on its way: 1 when every token that has a byte of it was drafted."""

    def __init__(self) -> None:
        self._is_rest_drafted = True  # all tokens of the unfinished character were
        self._has_rest = False
        self._read = bytearray()  # characters that are text, and perhaps part of a marker
        self._passed = bytearray()  # characters of the answer, perhaps part of a stop string

    def read(self, n: int, is_drafted: bool, *, has_rest: bool) -> None:
        """A token brought `n` characters; has_rest: its last bytes belong to a character that is not finished yet."""
        if n:
            first = is_drafted and (self._is_rest_drafted or not self._has_rest)
            self._read += bytes([first]) + bytes([is_drafted]) * (n - 1)
            self._is_rest_drafted = is_drafted
        elif has_rest:
            self._is_rest_drafted = is_drafted and (self._is_rest_drafted or not self._has_rest)
        self._has_rest = has_rest

    def flush(self, n: int) -> None:
        """The unfinished character became `n` characters after all."""
        self._read += bytes([self._is_rest_drafted]) * n

    def passed(self, n: int, *, n_held: int) -> None:
        """Of what was read, the last `n_held` characters are still held back, and the `n` before them are answer.

        What was read before those is no part of the answer: a marker, a thought. n may count characters that nobody
        read, such as a blank line between messages: they are not drafted.
        """
        end = len(self._read) - n_held
        marks = self._read[max(0, end - n) : end]
        self._passed += bytes(n - len(marks)) + marks
        del self._read[:end]

    def shown(self, n: int) -> Ranges:
        """The drafted ranges of the next `n` characters of the answer, which are shown now."""
        marks, self._passed = self._passed[:n], self._passed[n:]
        return ranges_of(marks)


def ranges_of(marks: bytearray) -> Ranges:
    """The ranges of a text whose characters are marked with 1."""
    if not any(marks):
        return ()
    found: list[tuple[int, int]] = []
    start = marks.find(1)
    while start >= 0:
        end = marks.find(0, start)
        end = len(marks) if end < 0 else end
        found.append((start, end))
        start = marks.find(1, end)
    return tuple(found)


def joined(pieces: list[tuple[str, Ranges]]) -> tuple[str, Ranges]:
    """Pieces of a text, one after the other, as one."""
    found: list[tuple[int, int]] = []
    length = 0
    for text, ranges in pieces:
        for start, end in ranges:
            if found and found[-1][1] == length + start:
                found[-1] = (found[-1][0], length + end)
            else:
                found.append((length + start, length + end))
        length += len(text)
    return "".join(text for text, _ in pieces), tuple(found)
