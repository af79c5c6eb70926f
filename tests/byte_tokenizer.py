"""A vocabulary of bytes and a few control tokens, for tests that need a tokenizer and no model."""

from __future__ import annotations

from collections.abc import Sequence


class ByteTokenizer:
    """See Tokenizer in backends/base.py. Ids below 256 are bytes; `texts` follow, then `controls`, then padding.

    stops: which of `texts` and `controls` end an answer.
    """

    bos_id = None
    add_bos = False
    strips_leading_space = False

    def __init__(
        self,
        controls: Sequence[str] = ("<|start|>", "<|end|>"),
        stops: Sequence[str] = ("<|end|>",),
        texts: Sequence[str] = (),
        n_padding: int = 3,
    ) -> None:
        self._texts = [bytes([byte]) for byte in range(256)] + [text.encode() for text in texts]
        self._names = [*self._texts, *(name.encode() for name in controls)]
        self.vocab_size = len(self._names) + n_padding
        self.control_tokens = frozenset(controls)
        self.stop_ids = frozenset(self._names.index(stop.encode()) for stop in stops)

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        ids: list[int] = []
        data = text.encode()
        known = self._names if parse_special else self._texts
        while data:
            piece = max((name for name in known if data.startswith(name)), key=len)
            ids.append(known.index(piece))
            data = data[len(piece) :]
        return ids

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        if not 0 <= token < self.vocab_size:
            raise IndexError(token)
        names = self._names if special else self._texts
        return names[token] if token < len(names) else b""

    def text(self, ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode()
