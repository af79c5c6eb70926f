"""A Hugging Face tokenizer.json as runner's Tokenizer: byte-level BPE, and SentencePiece with byte fallback.

Text to ids is the tokenizers library's work; the bytes of a single token are worked out here, since a token may be
part of a character. It knows nothing of templates or of weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as HfTokenizer

from runner.backends.native.model_files import read_config, tokenizer_path
from runner.errors import BadModelFile, UnsupportedModel
from runner.quant.json_file import DAMAGED, opened_json
from runner.quant.special_tokens import around_text, read_special_tokens

_SPACE = "\u2581"  # SentencePiece writes a space as this character
_LONG = 2**15  # characters: they take hundredths of a second
_SENTENCEPIECE_DECODERS = frozenset({"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})


class HuggingFaceTokenizer:
    """See Tokenizer in backends/base.py. The ids from the vocabulary's end to `vocab_size` are the model's padding.

    Raises BadModelFile for a file that is not a tokenizer, UnsupportedModel for a kind of tokenizer that is not known.
    """

    def __init__(self, path: Path, vocab_size: int) -> None:
        with opened_json(path):  # which tells what hinders better than the library
            try:
                self._tokenizer = HfTokenizer.from_file(str(path))
            except Exception as error:  # the library raises plain Exception
                raise BadModelFile(f"{path} is not a tokenizer: {error}.", hint=DAMAGED) from error
        # What a training cut its texts to, and filled them up to, stays in the file: it is not for texts here.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        every_added = self._tokenizer.get_added_tokens_decoder()
        # Gemma's text models have the tokenizer of their multimodal ones, and no row for its image token.
        ids = {
            text: number
            for text, number in self._tokenizer.get_vocab(with_added_tokens=True).items()
            if number < vocab_size or number not in every_added or not every_added[number].special
        }
        if (top := max(ids.values(), default=0)) >= vocab_size:
            raise BadModelFile(
                f"The tokenizer has token id {top}, beyond the model's vocabulary of {vocab_size}.",
                hint="tokenizer.json and config.json do not belong together.",
            )
        self.vocab_size = vocab_size
        self._texts: list[str | None] = [None] * vocab_size
        for text, number in ids.items():
            self._texts[number] = text
        self._added = {
            number: (token.content, bool(token.special)) for number, token in every_added.items() if number < vocab_size
        }
        self.control_tokens = frozenset(text for text, is_special in self._added.values() if is_special)
        self._read_pieces()
        self._read_special_tokens(path.parent, ids)

    def _read_pieces(self) -> None:
        decoders = _flat(_described(self._tokenizer.decoder), "decoders")
        kinds = {str(decoder.get("type")) for decoder in decoders}
        before = _flat(_described(self._tokenizer.pre_tokenizer), "pretokenizers")
        if "ByteLevel" in kinds:
            self._is_byte_level = True
            self.strips_leading_space = any(p.get("type") == "ByteLevel" and p.get("add_prefix_space") for p in before)
        elif kinds and kinds <= _SENTENCEPIECE_DECODERS:
            self._is_byte_level = False
            self.strips_leading_space = any(map(_strips_space, decoders))
        else:
            raise UnsupportedModel(
                f"tokenizer.json: decoder = {', '.join(sorted(kinds)) or 'none'} is not supported.",
                hint="Use a GGUF of the model with --backend llamacpp.",
            )

    def _read_special_tokens(self, directory: Path, ids: Mapping[str, int]) -> None:
        first, last = around_text({"post_processor": _described(self._tokenizer.post_processor)})
        # A SentencePiece model was trained with BOS in front; byte-level ones say so when they were.
        special = read_special_tokens(
            directory, ids, self.vocab_size, first=first, last=last, adds_bos_unasked=not self._is_byte_level
        )
        self.bos_id = special.bos_id
        self.eos_id = special.eos_id
        self.add_bos = special.add_bos
        self.stop_ids = frozenset(special.end_ids)

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        self._tokenizer.encode_special_tokens = not parse_special
        clean = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates become "?"
        if len(clean) < _LONG:
            return list(self._tokenizer.encode(clean, add_special_tokens=False).ids)
        # It lets other threads run meanwhile: the engine's heartbeat, and who hears that it is to stop.
        (found,) = self._tokenizer.encode_batch_fast([clean], add_special_tokens=False)
        return list(found.ids)

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        if not 0 <= token < self.vocab_size:
            raise IndexError(f"token {token} is outside the vocabulary of {self.vocab_size}")
        if (added := self._added.get(token)) is not None:
            text, is_special = added
            if is_special:
                return text.encode() if special else b""
            return text.encode() if self._is_byte_level else _sentencepiece(text)  # as Gemma adds runs of spaces
        piece = self._texts[token]
        if piece is None:
            return b""
        return _byte_level(piece) if self._is_byte_level else _sentencepiece(piece)


def open_tokenizer(directory: Path) -> HuggingFaceTokenizer:
    """That of the model whose files are there. Raises BadModelFile, UnsupportedModel."""
    return HuggingFaceTokenizer(tokenizer_path(directory), read_config(directory).vocab_size)


def _described(part: Any) -> object:
    """A part of the tokenizer as tokenizer.json has it, or None: the rest of that file, megabytes, need not be read."""
    return None if part is None else json.loads(part.__getstate__())


def _flat(part: object, inner: str) -> list[Mapping[str, Any]]:
    """A decoder or pre-tokenizer of tokenizer.json as a list: a Sequence is taken apart."""
    if not isinstance(part, Mapping):
        return []
    if part.get("type") == "Sequence":
        return [one for child in part.get(inner) or [] for one in _flat(child, inner)]
    return [part]


def _strips_space(decoder: Mapping[str, Any]) -> bool:
    if decoder.get("type") == "Metaspace":
        return bool(decoder.get("prepend_scheme", "always") != "never" and decoder.get("add_prefix_space", True))
    return bool(decoder.get("type") == "Strip" and decoder.get("content") == " " and decoder.get("start"))


def _byte_level_alphabet() -> dict[str, int]:
    """The character that byte-level BPE writes for each byte, inverted (GPT-2's bytes_to_unicode)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_level_alphabet()


def _byte_level(piece: str) -> bytes:
    return b"".join(bytes([_BYTES[char]]) if char in _BYTES else char.encode() for char in piece)


def _sentencepiece(piece: str) -> bytes:
    """ "<0xE2>" is a byte; anything else is text, with spaces written as U+2581."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes([int(piece[3:5], 16)])
        except ValueError:
            pass
    return piece.replace(_SPACE, " ").encode()
