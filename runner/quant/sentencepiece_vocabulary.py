"""Reads a SentencePiece BPE tokenizer (Llama 2's and Mistral's kind) from tokenizer.json or tokenizer.model.

tokenizer.json comes first: it is what transformers uses, and needs no other package. It knows nothing of weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from gguf import TokenType

from runner.errors import BackendUnavailable, BadModelFile, UnsupportedModel
from runner.quant.chat_templates import read_chat_templates
from runner.quant.json_file import read_json_if_there
from runner.quant.origin import called
from runner.quant.special_tokens import around_text, read_special_tokens
from runner.quant.vocabulary import (
    AddedToken,
    Vocabulary,
    added_token,
    added_tokens,
    fill_ids,
    limits_of,
)

SPACE: Final = "▁"
_BYTE: Final = re.compile(r"<0x[0-9A-F]{2}>")
_UNREACHABLE: Final = -1e9  # below every merged piece: llama.cpp joins neighbours by score alone


def is_sentencepiece(tokenizer: Mapping[str, Any]) -> bool:
    """Whether tokenizer.json describes a SentencePiece BPE: one that falls back to bytes."""
    model = tokenizer.get("model")
    return isinstance(model, Mapping) and model.get("type") == "BPE" and bool(model.get("byte_fallback"))


def read_from_json(directory: Path, tokenizer: Mapping[str, Any], vocab_size: int) -> Vocabulary:
    """The vocabulary of `tokenizer` (tokenizer.json's contents), filled up to vocab_size ids.

    Raises UnsupportedModel for steps that llama.cpp does not have, BadModelFile for malformed contents.
    """
    model = tokenizer["model"]
    pieces = model.get("vocab")
    if not isinstance(pieces, dict) or not all(type(number) is int and number >= 0 for number in pieces.values()):
        raise BadModelFile("tokenizer.json has no readable vocabulary.")
    added = added_tokens(tokenizer)
    unk = model.get("unk_token")
    types = {number: _type(text, number, added, unk) for text, number in pieces.items()}
    scores = _scores(pieces, model.get("merges"))
    first, last = around_text(tokenizer)
    templates = read_chat_templates(directory)
    return _vocabulary(
        directory,
        vocab_size,
        texts={number: text for text, number in pieces.items()},
        types=types,
        scores={pieces[text]: score for text, score in scores.items()},
        added=added,
        first=first,
        last=last,
        add_space_prefix=_adds_space(tokenizer, has_template="default" in templates),
    )


def read_from_model(directory: Path, path: Path, vocab_size: int) -> Vocabulary:
    """The vocabulary of a tokenizer.model, and of tokenizer_config.json's added tokens, filled up to vocab_size ids.

    Raises BackendUnavailable without the sentencepiece package, UnsupportedModel for a kind that llama.cpp's
    SentencePiece tokenizer does not equal, BadModelFile when it cannot be read.
    """
    try:
        import sentencepiece
    except ImportError as error:
        raise BackendUnavailable(
            f"{called(directory)} has only a tokenizer.model, which the sentencepiece package reads.",
            hint="pip install sentencepiece, or fetch the model's tokenizer.json.",
        ) from error
    try:
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError) as error:
        raise BadModelFile(f"{path.name} cannot be read: {error}.", hint="Fetch the file again.") from error
    numbers = range(processor.vocab_size())
    types = {number: _type_in_model(processor, number) for number in numbers}
    scores = {number: float(processor.get_score(number)) for number in numbers}
    normal = [scores[number] for number in numbers if types[number] is TokenType.NORMAL]
    if any(score != int(score) for score in normal):
        raise UnsupportedModel(f"{path.name} is a unigram model; only BPE models of SentencePiece can be converted.")
    _check_normalization(processor, path)
    return _vocabulary(
        directory,
        vocab_size,
        texts={number: processor.id_to_piece(number) for number in numbers},
        types=types,
        scores=scores,
        added=_added_in_config(directory),
        first=None,
        last=None,
        add_space_prefix=processor.encode("a", out_type=str)[0].startswith(SPACE),
    )


def _vocabulary(
    directory: Path,
    vocab_size: int,
    *,
    texts: dict[int, str],
    types: dict[int, TokenType],
    scores: dict[int, float],
    added: Mapping[int, AddedToken],
    first: str | None,
    last: str | None,
    add_space_prefix: bool,
) -> Vocabulary:
    for token in added.values():
        texts.setdefault(token.id, token.text)
        if types.get(token.id) in (None, TokenType.NORMAL):
            types[token.id] = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
    ids = {text: number for number, text in texts.items()}
    # A user-defined token is looked for in the text as it was typed, with spaces.
    shown = {
        number: text.replace(SPACE, " ") if types[number] is TokenType.USER_DEFINED else text
        for number, text in texts.items()
    }
    tokens, kinds = fill_ids(shown, types, vocab_size)
    return Vocabulary(
        model="llama",
        pre="default",
        tokens=tokens,
        types=kinds,
        scores=[
            scores.get(number, _UNREACHABLE) if kind == TokenType.NORMAL else _UNREACHABLE
            for number, kind in enumerate(kinds)
        ],
        special=read_special_tokens(directory, ids, vocab_size, first=first, last=last, adds_bos_unasked=True),
        add_space_prefix=add_space_prefix,
        chat_templates=read_chat_templates(directory),
        limits=limits_of(added),
    )


def _type(text: str, number: int, added: Mapping[int, AddedToken], unk: object) -> TokenType:
    if text == unk:
        return TokenType.UNKNOWN
    if number in added:
        return TokenType.CONTROL if added[number].special else TokenType.USER_DEFINED
    return TokenType.BYTE if _BYTE.fullmatch(text) else TokenType.NORMAL


def _scores(pieces: Mapping[str, int], merges: object) -> dict[str, float]:
    """Scores by merge rank: a piece that is merged earlier scores higher, as SentencePiece numbers its BPE."""
    if not isinstance(merges, list):
        raise BadModelFile("tokenizer.json has no merges.", hint="Fetch the model's tokenizer files again.")
    scores: dict[str, float] = {}
    for rank, merge in enumerate(merges):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not (isinstance(parts, list) and len(parts) == 2 and all(isinstance(part, str) for part in parts)):
            raise BadModelFile("tokenizer.json has merges of an unknown form.")
        scores.setdefault(parts[0] + parts[1], -float(rank))
    lowest = -float(len(merges))
    # A single character is where merging starts; its own score decides nothing.
    return scores | {text: lowest if len(text) == 1 else _UNREACHABLE for text in pieces if text not in scores}


def _adds_space(tokenizer: Mapping[str, Any], *, has_template: bool) -> bool:
    """Whether a space goes before a text, from the normalizer and the pre-tokenizer of tokenizer.json."""
    adds, escapes = False, False
    for step in _steps(tokenizer.get("normalizer"), "normalizers"):
        if step == {"type": "Prepend", "prepend": SPACE}:
            adds = True
        elif step == {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}:
            escapes = True
        else:
            raise _unknown_step("normalizer", step)
    for step in _steps(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        if step.get("type") != "Metaspace" or step.get("replacement") != SPACE or step.get("split", True):
            raise _unknown_step("pre-tokenizer", step)
        escapes = True
        scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
        # llama.cpp adds the space after every special token as well. "first" means the very start of the prompt,
        # which in a chat is a special token: without the space, chats get the same ids as in transformers.
        adds = scheme == "always" or (scheme == "first" and not has_template)
    if not escapes:
        raise UnsupportedModel("The tokenizer does not turn spaces into '▁' as SentencePiece does.")
    return adds


def _steps(value: object, list_name: str) -> Iterator[Mapping[str, Any]]:
    if not isinstance(value, Mapping):
        return
    if value.get("type") == "Sequence":
        for part in value.get(list_name) or []:
            yield from _steps(part, list_name)
    else:
        yield value


def _unknown_step(kind: str, step: Mapping[str, Any]) -> UnsupportedModel:
    return UnsupportedModel(
        f"The tokenizer's {kind} {dict(step)} does not exist in llama.cpp's SentencePiece.",
        hint="Look for a ready GGUF of the model.",
    )


def _type_in_model(processor: Any, number: int) -> TokenType:
    if processor.is_unknown(number):
        return TokenType.UNKNOWN
    if processor.is_control(number):
        return TokenType.CONTROL
    if processor.is_unused(number):
        return TokenType.UNUSED
    return TokenType.BYTE if processor.is_byte(number) else TokenType.NORMAL


def _check_normalization(processor: Any, path: Path) -> None:
    """llama.cpp leaves the text as it is: refuse a model that joins spaces or folds compatibility characters."""
    for text in ("a  b", "ﬁ Ａ ①"):
        if processor.decode(processor.encode(text)).lstrip(" ") != text:
            raise UnsupportedModel(f"{path.name} changes {text!r} before splitting it, which llama.cpp does not.")


def _added_in_config(directory: Path) -> dict[int, AddedToken]:
    found: dict[int, AddedToken] = {}
    entries = read_json_if_there(directory / "tokenizer_config.json").get("added_tokens_decoder")
    for number, entry in entries.items() if isinstance(entries, dict) else ():
        if number.isdecimal() and isinstance(entry, dict) and isinstance(entry.get("content"), str):
            token = added_token(int(number), entry["content"], entry)
            found[token.id] = token
    for text, value in read_json_if_there(directory / "added_tokens.json").items():
        if type(value) is int and value >= 0:
            found.setdefault(value, AddedToken(id=value, text=text, special=False))
    return found
