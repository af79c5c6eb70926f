"""Whether two models speak of the same tokens."""

from __future__ import annotations

import pytest

from runner.backends.fake import FakeTokenizer
from runner.backends.vocabulary import pieces
from runner.errors import UsageError
from runner.evaluation.vocabulary import shared_size


def test_every_token_stands_for_its_bytes_and_control_tokens_for_their_names() -> None:
    found = pieces(FakeTokenizer())
    assert found[0xE4] == "ä"  # byte 0xE4, whatever character it is part of
    assert found[256] == "<|im_start|>"


def test_padding_has_no_name_and_no_partner() -> None:
    class Padded(FakeTokenizer):
        vocab_size = 260

        def token_bytes(self, token: int, *, special: bool = False) -> bytes:
            return b"[PAD%d]" % token if token >= 258 else super().token_bytes(token, special=special)

    padded, plain = pieces(Padded()), pieces(FakeTokenizer())
    assert padded[258:] == ("", "")
    assert shared_size(plain, padded) == shared_size(padded, plain) == 258
    assert shared_size(padded, padded) == 260


@pytest.mark.parametrize(
    ("reference", "model", "words"),
    [
        (("a", "b"), ("a", "c"), "Token 1 is 'c' to the model and 'b' to the reference"),
        (("a", "b"), ("a", "b", "c"), "Only the model has token 2, 'c'"),
        (("a", "b", "", "d"), ("a", "b"), "Only the reference has token 3, 'd'"),
        (("a", "\xc3\xa4"), ("a", ""), "Token 1 is padding to the model and 'ä' to the reference"),
    ],
)
def test_the_first_difference_is_named(reference: tuple[str, ...], model: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        shared_size(reference, model)
