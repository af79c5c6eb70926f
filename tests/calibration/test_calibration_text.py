"""The text that a model is calibrated on: what it writes itself, and what is read from a file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from runner.backends.native.loader import load_model
from runner.backends.native.model_files import chat_template, tokenizer_path
from runner.backends.native.tokenizer import HuggingFaceTokenizer
from runner.calibration.text import read_text, text_starts, write_text
from runner.errors import UnsupportedModel, UsageError
from runner.types import CancelToken
from tests.quant.mq.packed_models import opened, tiny


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tiny(tmp_path / "model")


def decoder_of(directory: Path):  # type: ignore[no-untyped-def]
    weights, config = opened(directory)
    cpu = torch.device("cpu")
    return load_model(
        config, weights, dtype=torch.float32, device=cpu, on_progress=lambda _: None, cancel=CancelToken()
    )


def tokenizer_of(directory: Path) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(tokenizer_path(directory), opened(directory)[1].vocab_size)


@torch.inference_mode()
def test_texts_begin_as_asked_and_are_the_same_for_the_same_seed(directory: Path) -> None:
    decoder, starts = decoder_of(directory), [[5, 6, 7], [8], [9, 10]]
    told: list[tuple[int, int]] = []
    first = write_text(decoder, starts, 24, vocab_size=259, seed=3, on_tokens=lambda *at: told.append(at))
    assert first.shape == (3, 24)
    for row, start in zip(first.tolist(), starts, strict=True):
        assert row[: len(start)] == start
    assert torch.equal(first, write_text(decoder, starts, 24, vocab_size=259, seed=3))
    assert not torch.equal(first, write_text(decoder, starts, 24, vocab_size=259, seed=4))
    assert told[-1][0] <= told[-1][1] == 3 * 24


@torch.inference_mode()
def test_a_batch_writes_what_the_model_would(directory: Path) -> None:
    """Every id was drawn from the distribution after those before it: none is one that the model thinks impossible."""
    decoder = decoder_of(directory)
    with torch.no_grad():
        decoder.model.embed_tokens.weight *= 40  # tied: the logits are far apart, and few ids are possible
    ids = write_text(decoder, [[1], [2], [3]], 16, vocab_size=259, seed=0)
    from runner.calibration.moments import Side, run_layer

    x = decoder.model.embed_tokens(ids)
    for index, layer in enumerate(decoder.model.layers):
        x, _ = run_layer(decoder, Side(layer=layer, x=x), index)
    probs = decoder.logits(decoder.model.norm(x))[:, :-1, :259].softmax(-1)
    assert float(probs.gather(2, ids[:, 1:, None]).min()) > 1e-6


@torch.inference_mode()
def test_padding_of_the_vocabulary_is_never_written(directory: Path) -> None:
    ids = write_text(decoder_of(directory), [[token] for token in range(40)], 20, vocab_size=12, seed=0)
    assert int(ids[:, 1:].max()) < 12


def test_half_of_the_texts_begin_as_chats(demo_directory: Path) -> None:
    tokenizer = HuggingFaceTokenizer(tokenizer_path(demo_directory), 8192)
    template = chat_template(demo_directory)
    starts = text_starts(tokenizer, template, "", "<|im_end|>", 10, seed=0)
    assert starts[0] == tokenizer.encode("<|im_start|>user\n", parse_special=True)
    assert starts[0::2] == [starts[0]] * 5
    others = starts[1::2]
    assert all(len(start) == 1 and tokenizer.token_bytes(start[0]) for start in others)
    assert len({start[0] for start in others}) == 5
    assert starts == text_starts(tokenizer, template, "", "<|im_end|>", 10, seed=0)


@pytest.mark.parametrize("template", [None, "{{ raise_exception('no') }}"])
def test_without_a_usable_template_all_begin_with_a_random_token(directory: Path, template: str | None) -> None:
    starts = text_starts(tokenizer_of(directory), template, "", "", 6, seed=0)
    assert {len(start) for start in starts} == {1}


def test_windows_are_spread_over_the_file(directory: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(chr(97 + i % 26) for i in range(1000)))
    tokenizer = tokenizer_of(directory)
    whole = tokenizer.encode(text.read_text())
    found = read_text(text, tokenizer, 64, 3)
    ids = found.ids
    assert found.name == "text.txt"
    assert found.sha256 == hashlib.sha256(text.read_bytes()).hexdigest()
    assert ids.shape == (3, 64)
    bos = 1 if tokenizer.add_bos else 0
    assert ids[0, bos:].tolist() == whole[: 64 - bos]
    assert ids[2, bos:].tolist() == whole[-(64 - bos) :]
    assert len(read_text(text, tokenizer, 64, 1000).ids) == len(whole) // (64 - bos)


def test_a_mark_at_the_beginning_of_a_file_is_no_text(directory: Path, tmp_path: Path) -> None:
    plain, marked = tmp_path / "plain.txt", tmp_path / "marked.txt"
    plain.write_text("text " * 100)
    marked.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    tokenizer = tokenizer_of(directory)
    assert torch.equal(read_text(plain, tokenizer, 64, 3).ids, read_text(marked, tokenizer, 64, 3).ids)


def test_a_start_that_is_longer_than_the_context_is_cut(directory: Path) -> None:
    ids = write_text(decoder_of(directory), [[5, 6, 7, 8], [9]], 3, vocab_size=259, seed=0)
    assert ids.shape == (2, 3)
    assert ids[0].tolist() == [5, 6, 7]


@torch.inference_mode()
def test_a_model_that_gives_no_numbers_is_named_as_such(directory: Path) -> None:
    decoder = decoder_of(directory)
    decoder.model.norm.weight.fill_(float("nan"))
    with pytest.raises(UnsupportedModel, match="NaN") as caught:
        write_text(decoder, [[5]], 4, vocab_size=259, seed=0)
    assert "--no-calibrate" in caught.value.hint


def test_a_file_of_gigabytes_is_refused_before_it_is_read(directory: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    with text.open("wb") as file:
        file.truncate(2**33)
    with pytest.raises(UsageError, match="more than 64 MiB"):
        read_text(text, tokenizer_of(directory), 64, 3)


@pytest.mark.parametrize("content", [b"", b"short", b"\xff\xfe\x00bad", "Stra\xdfe ".encode("latin-1") * 99, None])
def test_a_file_that_cannot_serve_says_what_to_do(directory: Path, tmp_path: Path, content: bytes | None) -> None:
    text = tmp_path / "text.txt"
    if content is not None:
        text.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_text(text, tokenizer_of(directory), 64, 3)
    assert "--calibrate" in caught.value.hint
