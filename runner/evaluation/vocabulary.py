"""Whether two models speak of the same tokens, so that their distributions can be compared. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runner.backends.base import Tokenizer
from runner.errors import UsageError

_PADDING = re.compile(r"\[PAD\d+\]")  # how GGUF files name the rows of an embedding that no token uses


def pieces(tokenizer: Tokenizer) -> tuple[str, ...]:
    """What every token id stands for: its bytes as Latin-1, so that they fit into JSON; "" for padding."""
    found = (tokenizer.token_bytes(token, special=True).decode("latin-1") for token in range(tokenizer.vocab_size))
    return tuple("" if _PADDING.fullmatch(piece) else piece for piece in found)


def shared_size(reference: Sequence[str], model: Sequence[str]) -> int:
    """How many ids both models have. Those that only one has must be padding; distributions are taken over the shared.

    Raises UsageError, naming the first token that differs.
    """
    size = min(len(reference), len(model))
    for token, (ours, theirs) in enumerate(zip(reference, model, strict=False)):
        if ours != theirs:
            raise _different(f"Token {token} is {_text(theirs)} to the model and {_text(ours)} to the reference.")
    for who, more in (("reference", reference[size:]), ("model", model[size:])):
        extra = next((token for token, piece in enumerate(more, size) if piece), None)
        if extra is not None:
            raise _different(f"Only the {who} has token {extra}, {_text(more[extra - size])}.")
    return size


def _different(what: str) -> UsageError:
    return UsageError(
        f"The two models have different vocabularies. {what}",
        hint="Only models with the same tokenizer can be compared: give the model that this one was made from.",
    )


def _text(piece: str) -> str:
    return repr(piece.encode("latin-1").decode("utf-8", "replace")) if piece else "padding"
