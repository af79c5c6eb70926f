"""A tokenizer's vocabulary as GGUF stores it: tokens, types, scores, merges, special ids, chat templates.

Values, and reading the files that say which tokens are special. How text becomes tokens is known to the two readers
(byte_level_bpe, sentencepiece_vocabulary) alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gguf import TokenType

from runner.errors import BadModelFile, UnsupportedModel
from runner.quant.json_file import read_json_if_there


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """The ids with a role, and whether BOS and EOS are put around a text. end_ids: every id that ends an answer."""

    bos_id: int | None
    eos_id: int
    unk_id: int | None
    pad_id: int | None
    end_ids: tuple[int, ...]
    add_bos: bool
    add_eos: bool


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


def read_special_tokens(
    directory: Path,
    ids: Mapping[str, int],
    vocab_size: int,
    *,
    first: str | None,
    last: str | None,
    adds_bos_unasked: bool,
) -> SpecialTokens:
    """The roles of tokens, from tokenizer_config.json, generation_config.json and config.json, in this order.

    ids: token text -> id. vocab_size: ids from there on are nobody's and are passed over. first, last: the tokens that
    tokenizer.json's post-processor puts around a text, which count where add_bos_token and add_eos_token are not
    given. adds_bos_unasked: what holds when no file says anything.

    Raises UnsupportedModel when no token ends an answer: a GGUF without one would end at a token of llama.cpp's choice.
    """
    config = read_json_if_there(directory / "config.json")
    generation = read_json_if_there(directory / "generation_config.json")
    tokenizer = read_json_if_there(directory / "tokenizer_config.json")

    def id_of(text: str | None) -> int | None:
        return ids.get(text) if text else None  # a vocabulary may have an empty piece

    def role(name: str) -> int | None:
        named = id_of(_token_text(tokenizer.get(f"{name}_token")))
        if named is not None:
            return named
        return _first_id(generation, config, key=f"{name}_token_id", vocab_size=vocab_size)

    bos, eos = role("bos"), role("eos")
    bos = bos if bos is not None else id_of(first)
    end_ids = _end_ids(eos, generation, config, vocab_size=vocab_size)
    if not end_ids:
        raise UnsupportedModel(
            "No file of the model says which token ends an answer.",
            hint='Write "eos_token_id" into its generation_config.json.',
        )
    return SpecialTokens(
        bos_id=bos,
        eos_id=end_ids[0],
        unk_id=role("unk"),
        pad_id=role("pad"),
        end_ids=end_ids,
        add_bos=_adds(tokenizer.get("add_bos_token"), bos, id_of(first), unasked=adds_bos_unasked),
        add_eos=_adds(tokenizer.get("add_eos_token"), eos, id_of(last), unasked=False),
    )


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


def around_text(tokenizer: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The special tokens that tokenizer.json's post-processor puts before and after a single text."""
    processor = tokenizer.get("post_processor")
    if not isinstance(processor, Mapping):
        return None, None
    for part in processor.get("processors") or [processor]:
        if part.get("type") == "TemplateProcessing":
            template = part.get("single") or []
            names = [entry.get("SpecialToken", {}).get("id") for entry in template]
            return (names[0], names[-1]) if len(names) > 1 else (None, None)
    return None, None


def _adds(said: object, role_id: int | None, around_id: int | None, *, unasked: bool) -> bool:
    """Whether a token goes around a text: the flag decides, then the post-processor, then what is usual."""
    if role_id is None:
        return False
    if isinstance(said, bool):
        return said
    return around_id == role_id or unasked


def _end_ids(eos: int | None, *sources: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    found = [] if eos is None else [eos]
    for source in sources:
        value = source.get("eos_token_id")
        found += [
            item
            for item in (value if isinstance(value, list) else [value])
            if type(item) is int and 0 <= item < vocab_size
        ]
    return tuple(dict.fromkeys(found))


def _token_text(value: object) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _first_id(*sources: Mapping[str, Any], key: str, vocab_size: int) -> int | None:
    for source in sources:
        value = source.get(key)
        if isinstance(value, list) and value:
            value = value[0]
        if type(value) is int and 0 <= value < vocab_size:
            return value
    return None
