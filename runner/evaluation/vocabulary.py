"""Whether the distributions of two models can be compared: those with the same tokens can. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from runner.backends.vocabulary import first_difference, shown
from runner.errors import UsageError


def shared_size(reference: Sequence[str], model: Sequence[str]) -> int:
    """How many ids both models have. Those that only one has must be padding; distributions are taken over the shared.

    Raises UsageError, naming the first token that differs.
    """
    size = min(len(reference), len(model))
    if (token := first_difference(reference, model)) is not None:
        raise _different(
            f"Token {token} is {shown(model[token])} to the model and {shown(reference[token])} to the reference."
        )
    for who, more in (("reference", reference[size:]), ("model", model[size:])):
        extra = next((token for token, piece in enumerate(more, size) if piece), None)
        if extra is not None:
            raise _different(f"Only the {who} has token {extra}, {shown(more[extra - size])}.")
    return size


def _different(what: str) -> UsageError:
    return UsageError(
        f"The two models have different vocabularies. {what}",
        hint="Only models with the same tokenizer can be compared: give the model that this one was made from.",
    )
