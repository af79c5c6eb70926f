"""The vocabulary inside a GGUF file, through llama.cpp's own tokenizer.

It implements the Tokenizer protocol and knows nothing of templates or of the model's weights.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import llama_cpp

from runner.backends.llamacpp.library import open_model
from runner.backends.vocabulary import pieces
from runner.config import LoadOptions
from runner.errors import RunnerError
from runner.quant.gguf_file import read_header
from runner.types import CancelToken, ReadyModel

_PART: Final = 2**14  # characters


def read_pieces(model: ReadyModel) -> tuple[str, ...]:
    """What the ids in a GGUF file stand for; its weights are not loaded. Raises BadModelFile."""
    path = model.weights[0]
    opened = open_model(path, LoadOptions(n_gpu_layers=0), lambda _: None, CancelToken(), vocab_only=True)
    try:
        vocab = llama_cpp.llama_model_get_vocab(opened)
        return pieces(LlamaCppTokenizer(vocab, read_header(path).metadata, model.stop_ids), special=False)
    finally:
        llama_cpp.llama_model_free(opened)


class LlamaCppTokenizer:
    """See Tokenizer in backends/base.py. vocab: a llama_vocab pointer; the model must outlive this object.

    metadata: the GGUF file's. stop_ids: tokens that end an answer, beside those that llama.cpp knows of.
    llama.cpp invents a BOS where a file names none of its tokens (token 11 for BPE): here there is none. eos_id: what
    the file calls its EOS, None likewise. It also takes control tokens of gpt-oss ("<|channel|>") for text that it
    finds in everything, so that who writes one in a message would begin a message: here they are control tokens.
    """

    def __init__(self, vocab: Any, metadata: Mapping[str, Any], stop_ids: Sequence[int] = ()) -> None:
        self._vocab = vocab
        self._bytes: dict[tuple[int, bool], bytes] = {}
        self.vocab_size = int(llama_cpp.llama_vocab_n_tokens(vocab))
        self.bos_id, self.eos_id = (self._named(metadata, name) for name in ("bos", "eos"))
        self.add_bos = self.bos_id is not None and bool(llama_cpp.llama_vocab_get_add_bos(vocab))
        is_eog = llama_cpp.llama_vocab_is_eog
        ends = {token for token in range(self.vocab_size) if is_eog(vocab, token)}
        self.stop_ids = frozenset(ends | {token for token in stop_ids if token < self.vocab_size})
        # The unknown token's name is found in a text as control tokens are.
        wanted = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
        attributes = llama_cpp.llama_vocab_get_attr
        control = {token for token in range(self.vocab_size) if attributes(vocab, token) & wanted}
        types = enumerate(metadata.get("tokenizer.ggml.token_type") or ())
        self._retyped = {token for token, kind in types if kind == llama_cpp.LLAMA_TOKEN_TYPE_CONTROL} - control
        self.control_tokens = self._texts(control | self._retyped)
        # Cut behind its first character, such a name is found no more.
        cuts = (f"(?<={re.escape(name[0])})(?={re.escape(name[1:])})" for name in self._texts(self._retyped))
        self._inside_retyped = re.compile("|".join(cuts) or "(?!)")
        is_sentencepiece = llama_cpp.llama_vocab_type(vocab) == llama_cpp.LLAMA_VOCAB_TYPE_SPM
        adds_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
        self.strips_leading_space = is_sentencepiece and adds_space

    def _named(self, metadata: Mapping[str, Any], name: str) -> int | None:
        value = metadata.get(f"tokenizer.ggml.{name}_token_id")
        return value if type(value) is int and 0 <= value < self.vocab_size else None

    def _texts(self, tokens: Iterable[int]) -> frozenset[str]:
        names = (self.token_bytes(token, special=True).decode("utf-8", "replace") for token in tokens)
        return frozenset(name for name in names if name)

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        if parse_special:
            parts = self._parts(text) if len(text) > _PART else [text]
        else:
            parts = self._inside_retyped.split(text)
        return [token for part in parts for token in self._encode(part, parse_special)]

    def _parts(self, text: str) -> Iterator[str]:
        """`text`, cut before some of its control tokens: its ids are theirs, one after the other.

        After each control token llama.cpp looks for all of them in all of the rest: ten thousand take it 5 s. Some
        take the spaces before them away, so there is no cut behind a space.
        """
        begin = 0
        for found in self._control.finditer(text):
            cut = found.start()
            if cut - begin >= _PART and not text[cut - 1].isspace():
                yield text[begin:cut]
                begin = cut
        yield text[begin:]

    @cached_property
    def _control(self) -> re.Pattern[str]:
        """The control tokens, the longest first, as llama.cpp looks for them."""
        names = sorted(self.control_tokens, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or "(?!)")

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        data = text.encode("utf-8", "replace")
        room = len(data) + 2
        while True:
            ids = (llama_cpp.llama_token * room)()
            n = llama_cpp.llama_tokenize(self._vocab, data, len(data), ids, room, False, parse_special)
            if n >= 0:
                return list(ids[:n])
            if -n <= room:
                raise RunnerError(f"llama.cpp could not tokenize a text of {len(data)} bytes.")
            room = -n

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        key = (token, special)
        piece = self._bytes.get(key)
        if piece is None:
            piece = self._bytes[key] = b"" if token in self._retyped and not special else self._piece(token, special)
        return piece

    def _piece(self, token: int, special: bool) -> bytes:
        if not 0 <= token < self.vocab_size:
            raise IndexError(f"token {token} is outside the vocabulary of {self.vocab_size}")
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            n = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, room, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            room = -n
