"""Bytes of tokens to text, and the end of a text at a stop string.

It knows nothing of thoughts and answers.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class Detokenizer:
    """Token ids to text, one at a time; bytes of an unfinished character wait for the rest of it.

    Bytes that are not UTF-8 become U+FFFD, as in bytes.decode(errors="replace"). strips_leading_space: one space at
    the very start is not part of the text (SentencePiece).
    """

    def __init__(self, token_bytes: Callable[[int], bytes], strips_leading_space: bool = False) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decode = self._decoder.decode
        self._strips_space = strips_leading_space

    @property
    def has_rest(self) -> bool:
        """Whether bytes of an unfinished character wait."""
        return bool(self._decoder.getstate()[0])

    def push(self, token: int) -> str:
        return self.push_bytes(self._token_bytes(token))

    def push_bytes(self, data: bytes) -> str:
        text = self._decode(data)
        if self._strips_space and text:
            self._strips_space = False
            return text[1:] if text[0] == " " else text
        return text

    def flush(self) -> str:
        """What never became complete, as U+FFFD."""
        return self._decode(b"", True)


def held_back(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of `text` that could be the start of one of `markers`."""
    longest = 0
    for marker in markers:
        at = text.find(marker[0], max(0, len(text) - len(marker) + 1))
        while at >= 0 and len(text) - at > longest:
            if marker.startswith(text[at:]):
                longest = len(text) - at
                break
            at = text.find(marker[0], at + 1)
    return longest


class StopMatcher:
    """Ends a text before the first stop string that is complete, and never shows a part of one.

    Of several that end at the same place the one that starts first counts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self._is_hit = False

    def push(self, text: str) -> tuple[str, bool]:
        """(what can be shown now, whether a stop string was found); nothing comes after one."""
        if self._is_hit:
            return "", True
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held, self._is_hit = "", True
            return text[: min(found)[1]], True
        keep = len(text) - held_back(text, self._stops)
        self._held = text[keep:]
        return text[:keep], False

    def flush(self) -> str:
        """What was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held
