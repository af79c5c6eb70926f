"""Reads a byte-level BPE tokenizer (GPT-2's kind: Llama 3, Qwen, SmolLM, ...) from tokenizer.json into a Vocabulary.

It knows nothing of the model's weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf import TokenType

from runner.errors import BadModelFile, UnsupportedModel
from runner.quant import pre_tokenizers
from runner.quant.chat_templates import read_chat_templates
from runner.quant.special_tokens import around_text, read_special_tokens
from runner.quant.vocabulary import (
    Vocabulary,
    added_tokens,
    fill_ids,
    limits_of,
)


def is_byte_level(tokenizer: Mapping[str, Any]) -> bool:
    """Whether tokenizer.json describes a byte-level BPE."""
    model = tokenizer.get("model")
    return isinstance(model, Mapping) and model.get("type") == "BPE" and not model.get("byte_fallback")


def read_byte_level_bpe(directory: Path, tokenizer: Mapping[str, Any], vocab_size: int) -> Vocabulary:
    """The vocabulary of `tokenizer` (tokenizer.json's contents), filled up to vocab_size ids.

    Raises UnsupportedModel for a pre-tokenizer or normalizer that llama.cpp does not have, BadModelFile when malformed.
    """
    model = tokenizer["model"]
    pieces = model.get("vocab")
    if not isinstance(pieces, dict) or not all(type(number) is int and number >= 0 for number in pieces.values()):
        raise BadModelFile("tokenizer.json has no readable vocabulary.")
    _refuse_unknown_steps(tokenizer)
    pre = pre_tokenizers.find(tokenizer.get("pre_tokenizer"), ignore_merges=bool(model.get("ignore_merges")))
    added = added_tokens(tokenizer)
    texts = {number: text for text, number in pieces.items()} | {token.id: token.text for token in added.values()}
    types = dict.fromkeys(texts, TokenType.NORMAL) | {
        token.id: TokenType.CONTROL if token.special else TokenType.USER_DEFINED for token in added.values()
    }
    tokens, kinds = fill_ids(texts, types, vocab_size)
    first, last = around_text(tokenizer)
    ids = pieces | {token.text: token.id for token in added.values()}
    return Vocabulary(
        model="gpt2",
        pre=pre.name,
        tokens=tokens,
        types=kinds,
        merges=_merges(model.get("merges")),
        special=read_special_tokens(directory, ids, vocab_size, first=first, last=last, adds_bos_unasked=False),
        chat_templates=read_chat_templates(directory),
        limits=" ".join(filter(None, (pre.limits, limits_of(added)))),
    )


def _merges(value: object) -> list[str]:
    """Merges in GGUF's form, from "a b" strings or [a, b] pairs; a space inside a part is written as Ġ."""
    if not isinstance(value, list) or not value:
        raise BadModelFile("tokenizer.json has no merges.", hint="Fetch the model's tokenizer files again.")
    if all(isinstance(merge, str) for merge in value):
        return value
    try:
        return [f"{left.replace(' ', 'Ġ')} {right.replace(' ', 'Ġ')}" for left, right in value]
    except (TypeError, ValueError, AttributeError) as error:
        raise BadModelFile("tokenizer.json has merges of an unknown form.") from error


def _refuse_unknown_steps(tokenizer: Mapping[str, Any]) -> None:
    # llama.cpp has no normalizer for byte-level BPE. NFC leaves almost every text as it is, and it is what all GGUFs
    # of such models (Qwen) do without; anything else changes ordinary text.
    normalizer = tokenizer.get("normalizer")
    parts = normalizer.get("normalizers") or [normalizer] if isinstance(normalizer, Mapping) else []
    for part in parts:
        if part.get("type") != "NFC":
            raise UnsupportedModel(
                f"The tokenizer's normalizer {part.get('type')!r} does not exist in llama.cpp.",
                hint="Look for a ready GGUF of the model.",
            )
    model = tokenizer["model"]
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise UnsupportedModel(f"The tokenizer's option {key!r} does not exist in llama.cpp.")
