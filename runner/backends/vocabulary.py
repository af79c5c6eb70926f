"""Whether two models speak of the same tokens: what their ids stand for, compared. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runner.backends.base import Tokenizer

_PADDING = re.compile(r"\[PAD\d+\]")  # how GGUF files name the rows of an embedding that no token uses


def pieces(tokenizer: Tokenizer, *, special: bool = True) -> tuple[str, ...]:
    """What every token id stands for: its bytes as Latin-1, so that they fit into JSON; "" for padding.

    special: control tokens by their names; else they are "" too.
    """
    found = (tokenizer.token_bytes(token, special=special).decode("latin-1") for token in range(tokenizer.vocab_size))
    return tuple("" if _PADDING.fullmatch(piece) else piece for piece in found)


def first_difference(ours: Sequence[str], theirs: Sequence[str]) -> int | None:
    """The first id that stands for something else in the other's pieces, of those that both have."""
    if len(ours) == len(theirs) and ours == theirs:
        return None
    return next((token for token, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)


def mismatch(drafted: Sequence[str], written: Sequence[str]) -> str:
    """Where the vocabularies of a draft model and its target differ, as a sentence; "" where they do not."""
    token = first_difference(drafted, written)
    if token is None:
        return ""
    words = f"{shown(drafted[token])} to the one and {shown(written[token])} to the other"
    return f"their vocabularies differ. Token {token} is {words}."


def shown(piece: str) -> str:
    """A piece for people."""
    return repr(piece.encode("latin-1").decode("utf-8", "replace")) if piece else "padding"
