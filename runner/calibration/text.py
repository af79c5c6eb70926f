"""The token ids that a model is calibrated on: written by the model itself, or read from a file.

Half of what it writes begins as a chat does, before the user's first word; the other half begins with a random token,
which leads a model to all kinds of text (LLM-QAT, arXiv:2305.17888). Sampled at temperature 1, without filters: the
text has the distribution that the model has. It knows nothing of rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from runner.backends.base import Tokenizer
from runner.backends.native.blocks import Decoder
from runner.backends.native.writing import OnTokens, write_batch
from runner.errors import TemplateError, UnsupportedModel, UsageError
from runner.templates import render
from runner.types import Message

_MAX_TEXT_BYTES: Final = 2**26
_PLACEHOLDER: Final = "calibration-placeholder"  # stands for the user's message; what comes before it begins a chat


def write_text(
    decoder: Decoder,
    starts: Sequence[Sequence[int]],
    length: int,
    *,
    vocab_size: int,
    seed: int,
    on_tokens: OnTokens = lambda _done, _total: None,
) -> Tensor:
    """See write_batch, whose errors say here how to do without a text that the model writes."""
    try:
        return write_batch(decoder, starts, length, vocab_size=vocab_size, seed=seed, on_tokens=on_tokens)
    except UnsupportedModel as error:
        raise not_calibrated(error.message) from error


def text_starts(
    tokenizer: Tokenizer, template: str | None, bos: str, eos: str, count: int, seed: int
) -> list[list[int]]:
    """The first ids of `count` texts: a chat before the user's first word, and a random token, in turns.

    A model without a usable chat template starts all with a random token.
    """
    first = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    chat = _chat_start(tokenizer, template, bos, eos)
    ordinary = [token for token in range(tokenizer.vocab_size) if tokenizer.token_bytes(token)]
    drawn = torch.randint(len(ordinary), (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return [
        chat if chat is not None and index % 2 == 0 else [*first, ordinary[number]]
        for index, number in enumerate(drawn)
    ]


def _chat_start(tokenizer: Tokenizer, template: str | None, bos: str, eos: str) -> list[int] | None:
    if template is None:
        return None
    try:
        rendered = render(
            template,
            [Message(role="user", content=_PLACEHOLDER)],
            bos_token=bos,
            eos_token=eos,
            think="off",
            control_tokens=tokenizer.control_tokens,
        )
    except TemplateError:
        return None
    before, found, _ = rendered.text.partition(_PLACEHOLDER)
    return tokenizer.encode(before, parse_special=True) or None if found else None


@dataclass(frozen=True, kw_only=True)
class GivenText:
    """A user's text. sha256: of the file; ids: [B, length] int64, windows of it."""

    name: str
    sha256: str
    ids: Tensor


def read_text(path: Path, tokenizer: Tokenizer, length: int, count: int) -> GivenText:
    """Up to `count` windows of `length` ids, evenly spread over a UTF-8 text.

    Raises UsageError for a file that cannot be read, or is shorter than one window.
    """
    try:
        if path.stat().st_size > _MAX_TEXT_BYTES:
            raise UsageError(
                f"{path} has more than {_MAX_TEXT_BYTES >> 20} MiB.",
                hint="Give a shorter text to --calibrate: a few hundred kB of the right kind are enough.",
            )
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{path} cannot be read: {reason}.", hint="Give a text file to --calibrate.") from error
    first = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    ids = tokenizer.encode(text, parse_special=True)
    width = max(1, length - len(first))
    windows = min(count, len(ids) // width)
    if windows < 1:
        raise UsageError(
            f"{path} has {len(ids)} tokens, and calibration needs {width} at least, better 50,000.",
            hint="Give a longer text, or leave --calibrate out: the model then writes its own.",
        )
    spots = [index * (len(ids) - width) // max(1, windows - 1) for index in range(windows)]
    found = torch.tensor([[*first, *ids[spot : spot + width]] for spot in spots])
    return GivenText(name=path.name, sha256=hashlib.sha256(data).hexdigest(), ids=found)


def not_calibrated(what: str) -> UnsupportedModel:
    """The error for a model whose numbers calibration cannot work with."""
    return UnsupportedModel(
        what, hint="Give --no-calibrate: it rounds without running the model, and names weights that are damaged."
    )
