"""The token ids that a model is calibrated on: written by the model itself, or read from a file.

Half of what it writes begins as a chat does, before the user's first word; the other half begins with a random token,
which leads a model to all kinds of text (LLM-QAT, arXiv:2305.17888). Sampled at temperature 1, without filters: the
text has the distribution that the model has. It knows nothing of rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from runner.backends.base import Tokenizer
from runner.backends.native.blocks import Decoder
from runner.backends.native.kv_cache import KvCache
from runner.errors import TemplateError, UsageError
from runner.templates import render
from runner.types import Message

OnTokens = Callable[[int, int], None]


def write_text(
    decoder: Decoder,
    starts: Sequence[Sequence[int]],
    length: int,
    *,
    vocab_size: int,
    seed: int,
    on_tokens: OnTokens = lambda _done, _total: None,
) -> Tensor:
    """Continue each of `starts` to `length` ids, all in one batch: [len(starts), length] int64 on the decoder's device.

    vocab_size: ids from there on are padding of the vocabulary and are not sampled. on_tokens(done, total).
    """
    weight = decoder.model.norm.weight
    config = decoder.config
    ids = torch.zeros(len(starts), length, dtype=torch.int64, device=weight.device)
    known = torch.zeros_like(ids, dtype=torch.bool)
    for row, start in enumerate(starts):
        ids[row, : len(start)] = torch.tensor(start)
        known[row, : len(start)] = True
    cache = KvCache(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        n_ctx=length,
        dtype=weight.dtype,
        device=weight.device,
        batch=(len(starts),),
    )
    cache.reserve(length)
    generator = torch.Generator(weight.device).manual_seed(seed)
    for position in range(1, length):
        hidden = decoder(ids[:, position - 1 : position], cache, _go_on)
        probs = decoder.logits(hidden[:, 0])[:, :vocab_size].softmax(-1)
        sampled = torch.multinomial(probs, 1, generator=generator)[:, 0]
        ids[:, position] = torch.where(known[:, position], ids[:, position], sampled)
        on_tokens(position * len(starts), length * len(starts))
    return ids


def _go_on() -> None:
    return None


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
            [Message(role="user", content="?")],
            bos_token=bos,
            eos_token=eos,
            think="off",
            control_tokens=tokenizer.control_tokens,
        )
    except TemplateError:
        return None
    ids: list[int] = []
    for piece in rendered.pieces:
        if piece.is_content:
            break
        ids.extend(tokenizer.encode(piece.text, parse_special=True))
    return ids or None


def read_text(path: Path, tokenizer: Tokenizer, length: int, count: int) -> Tensor:
    """Up to `count` windows of `length` ids, evenly spread over a UTF-8 text: [B, length] int64.

    Raises UsageError for a file that cannot be read, or is shorter than one window.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{path} cannot be read: {reason}.", hint="Give a text file to --calibrate.") from error
    first = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    ids = tokenizer.encode(text, parse_special=True)
    width = length - len(first)
    windows = min(count, len(ids) // width)
    if windows < 1:
        raise UsageError(
            f"{path} has {len(ids)} tokens, and calibration needs {width} at least, better 50,000.",
            hint="Give a longer text, or leave --calibrate out: the model then writes its own.",
        )
    spots = [index * (len(ids) - width) // max(1, windows - 1) for index in range(windows)]
    return torch.tensor([[*first, *ids[spot : spot + width]] for spot in spots])
