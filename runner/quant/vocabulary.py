"""A tokenizer's vocabulary as GGUF stores it: tokens, types, scores, merges, special ids, chat templates.

Values alone. How text becomes tokens is known to the two readers (byte_level_bpe, sentencepiece_vocabulary).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gguf import TokenType

from runner.errors import BadModelFile, UnsupportedModel
from runner.quant.special_tokens import SpecialTokens


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What a GGUF says about its tokenizer. tokens, types and scores have one entry an id.

    model: "gpt2" (byte-level BPE) or "llama" (SentencePiece). pre: the pre-tokenizer's name in llama.cpp.
    scores: SentencePiece alone, else empty. merges: byte-level BPE alone, "left right" each.
    add_space_prefix: a space goes before the text, as SentencePiece models mostly want.
    chat_templates: by name; "default" is the one that chats use.
    limits: where llama.cpp's tokenizer differs from the model's own, for people.
    """

    model: str
    pre: str
    tokens: Sequence[str]
    types: Sequence[int]
    special: SpecialTokens
    scores: Sequence[float] = ()
    merges: Sequence[str] = ()
    add_space_prefix: bool | None = None
    chat_templates: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    limits: str = ""


@dataclass(frozen=True, kw_only=True)
class AddedToken:
    """A token that is found in the text before anything else is. special: not part of an answer's text.

    is_picky: it takes in the spaces beside it, or is found only as a whole word, which llama.cpp knows nothing of.
    """

    id: int
    text: str
    special: bool
    is_picky: bool = False


def added_tokens(tokenizer: Mapping[str, Any]) -> dict[int, AddedToken]:
    """tokenizer.json's added tokens, by id. Raises BadModelFile when they are malformed."""
    found: dict[int, AddedToken] = {}
    for entry in tokenizer.get("added_tokens") or []:
        number, text = (entry.get("id"), entry.get("content")) if isinstance(entry, dict) else (None, None)
        if type(number) is not int or not isinstance(text, str):
            raise BadModelFile(f"tokenizer.json has a malformed added token: {entry!r}.")
        found[number] = added_token(number, text, entry)
    return found


def added_token(number: int, text: str, entry: Mapping[str, Any]) -> AddedToken:
    """The token whose properties tokenizer.json, or tokenizer_config.json, gives in `entry`."""
    return AddedToken(
        id=number,
        text=text,
        special=bool(entry.get("special")),
        is_picky=any(entry.get(key) is True for key in ("lstrip", "rstrip", "single_word")),
    )


def limits_of(added: Mapping[int, AddedToken]) -> str:
    """What llama.cpp's tokenizers cannot do of these tokens, for people, or ""."""
    picky = [token.text for token in added.values() if token.is_picky]
    if not picky:
        return ""
    shown = ", ".join(repr(text) for text in picky[:3]) + (f" and {len(picky) - 3} more" if len(picky) > 3 else "")
    return (
        f"The tokenizer takes in the spaces beside {shown}, or finds it only as a whole word; llama.cpp does neither, "
        "so the ids differ there."
    )


def fill_ids(
    texts: Mapping[int, str], types: Mapping[int, TokenType], vocab_size: int, highest: int = 2**24
) -> tuple[list[str], list[int]]:
    """Tokens and types for the ids 0 to vocab_size - 1; ids without a token become unused "[PADn]".

    Raises UnsupportedModel when a token's id is beyond the model's vocabulary.
    """
    if texts and (top := max(texts)) >= vocab_size:
        raise UnsupportedModel(
            f"The tokenizer has token id {top}, beyond the model's vocabulary of {vocab_size}.",
            hint="The tokenizer and config.json do not belong together.",
        )
    if vocab_size > highest:
        raise BadModelFile(f"A vocabulary of {vocab_size} tokens is not plausible.")
    tokens = [texts.get(number) or f"[PAD{number}]" for number in range(vocab_size)]
    kinds = [int(types[number] if texts.get(number) else TokenType.UNUSED) for number in range(vocab_size)]
    if len(set(tokens)) != len(tokens):
        twice = Counter(tokens).most_common(1)[0][0]
        raise BadModelFile(f"The tokenizer gives two ids to the token {twice!r}.")
    return tokens, kinds
