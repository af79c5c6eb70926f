"""Finding words in text regardless of case and of how accents are encoded, and the excerpt that shows where.

Pure functions of strings. They know nothing of where the text is kept.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from runner.safe_text import safe_line

EXCERPT_LENGTH = 80


def fold(text: str) -> str:
    """The form in which two texts that read alike are equal: "É" as one character or two, "ß" as "ss", "Ａ" as "a"."""
    return text.lower() if text.isascii() else unicodedata.normalize("NFKD", text).casefold()


def fold_terms(query: str) -> tuple[str, ...]:
    """The words of a query, folded. All of them must occur."""
    return tuple(fold(word) for word in query.split())


def excerpt(text: str, terms: Sequence[str], length: int = EXCERPT_LENGTH) -> str:
    """About `length` characters of `text` around the first of the folded `terms`, on one line and safe to print."""
    folded = fold(text)
    found = [position for term in terms if (position := folded.find(term)) >= 0]
    at = _unfolded_position(text, min(found, default=0))
    start = max(0, min(at - length // 3, len(text) - length))
    end = min(len(text), start + length)
    middle = " ".join(safe_line(text[start:end]).split())
    return ("…" if start > 0 else "") + middle + ("…" if end < len(text) else "")


def _unfolded_position(text: str, folded_position: int) -> int:
    """The index in `text` of the character that stands at `folded_position` once it is folded."""
    if text.isascii():
        return folded_position
    length = 0
    for index, character in enumerate(text):
        length += len(fold(character))
        if length > folded_position:
            return index
    return len(text)
