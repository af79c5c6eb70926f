from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from runner.backends.native.tokenizer import HuggingFaceTokenizer
from runner.errors import BadModelFile, UnsupportedModel
from tests.backends.native.tiny_models import byte_tokenizer

TRICKY = [
    "",
    " ",
    "  \n\n\t x",
    "Hello, world! It's 3.14159 o'clock.",
    " leading and trailing ",
    "naïve café — “quotes”",
    "東京 の 天気は？",
    "👩‍👩‍👧 🇵🇪 ☕️",
    "i̇ e\u0301 \u200d\ufeff",
    "\x00\x01\x7f",
    "<|im_start|>user\nhi<|im_end|>",
    "<s>not</s> <unk> <0x0A>",
    "a" * 300,
    "١٢٣ ४५६ 1234567890",
    "def f(x):\n    return x**2  # ok\r\n",
]


def whole(tokenizer: HuggingFaceTokenizer, ids: list[int], *, special: bool = False) -> bytes:
    return b"".join(tokenizer.token_bytes(token, special=special) for token in ids)


@pytest.fixture(scope="module")
def qwen3(shared_data: Path) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(shared_data / "tokenizers" / "qwen3" / "tokenizer.json", 151936)


@pytest.fixture(scope="module")
def llama3(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceTokenizer:
    directory = tmp_path_factory.mktemp("llama3")
    shutil.copy(shared_data / "tokenizers" / "llama3" / "tokenizer.json", directory)
    (directory / "generation_config.json").write_text('{"eos_token_id": [128001, 128008, 128009]}')
    return HuggingFaceTokenizer(directory / "tokenizer.json", 128256)


@pytest.fixture(scope="module")
def stories(shared_data: Path) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(shared_data / "stories260K" / "hf" / "tokenizer.json", 512)


@pytest.fixture(scope="module")
def demo(demo_directory: Path) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(demo_directory / "tokenizer.json", 8192)


@pytest.mark.parametrize(("name", "vectors"), [("qwen3", "qwen2"), ("llama3", "llama-bpe")])
def test_the_47_vectors_of_llama_cpp(
    name: str, vectors: str, shared_data: Path, request: pytest.FixtureRequest
) -> None:
    tokenizer: HuggingFaceTokenizer = request.getfixturevalue(name)
    stem = shared_data / "vectors" / f"ggml-vocab-{vectors}.gguf"
    texts = Path(f"{stem}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = Path(f"{stem}.out").read_text().split("\n")
    assert len(texts) == 47
    for text, line in zip(texts, lines, strict=False):
        ids = tokenizer.encode(text, parse_special=False)
        assert ids == [int(number) for number in line.split()], text
        assert whole(tokenizer, ids).decode() == text


@pytest.mark.parametrize("name", ["qwen3", "llama3", "stories", "demo"])
def test_ids_equal_transformers(
    name: str, shared_data: Path, demo_directory: Path, request: pytest.FixtureRequest
) -> None:
    files = {
        "qwen3": shared_data / "tokenizers" / "qwen3",
        "llama3": shared_data / "tokenizers" / "llama3",
        "stories": shared_data / "stories260K" / "hf",
        "demo": demo_directory,
    }
    ours: HuggingFaceTokenizer = request.getfixturevalue(name)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(files[name] / "tokenizer.json"))
    for text in TRICKY:
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text) == ids, text
        assert whole(ours, ids, special=True).removeprefix(b" " if ours.strips_leading_space else b"") == (
            theirs.decode(ids, clean_up_tokenization_spaces=False).encode()
        )


@pytest.mark.parametrize("name", ["llama3", "stories", "demo"])
@given(text=st.text(st.characters(blacklist_categories=["Cs"]), max_size=40))
@settings(max_examples=60)
def test_the_bytes_of_the_tokens_are_the_text(name: str, text: str, request: pytest.FixtureRequest) -> None:
    tokenizer: HuggingFaceTokenizer = request.getfixturevalue(name)
    data = whole(tokenizer, tokenizer.encode(text, parse_special=False))
    if tokenizer.strips_leading_space and text:
        assert data.startswith(b" ")
        data = data[1:]
    assert data.decode() == text


def test_roles_of_tokens_come_from_all_files(
    qwen3: HuggingFaceTokenizer,
    llama3: HuggingFaceTokenizer,
    stories: HuggingFaceTokenizer,
    demo: HuggingFaceTokenizer,
) -> None:
    assert (demo.add_bos, demo.bos_id, demo.stop_ids, demo.strips_leading_space) == (False, None, {0, 2}, False)
    assert (stories.add_bos, stories.bos_id, stories.stop_ids, stories.strips_leading_space) == (True, 1, {2}, True)
    assert (llama3.add_bos, llama3.bos_id, llama3.stop_ids) == (True, 128000, {128001, 128008, 128009})
    assert (qwen3.add_bos, qwen3.stop_ids) == (False, {151645})
    assert "<|im_end|>" in qwen3.control_tokens
    assert demo.control_tokens == {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}


def test_stop_ids_are_those_of_generation_config_config_and_tokenizer_config(tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 256, 263], "bos_token_id": [5, 6]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 4, "bos_token_id": 7}')
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|end|>"}}')
    tokenizer = HuggingFaceTokenizer(tmp_path / "tokenizer.json", 263)
    assert tokenizer.stop_ids == {3, 4, 256, 258}
    assert (tokenizer.eos_id, tokenizer.bos_id) == (258, 5)
    (tmp_path / "generation_config.json").write_text('{"bos_token_id": 263}')  # which is nobody's
    assert HuggingFaceTokenizer(tmp_path / "tokenizer.json", 263).bos_id == 7


def test_a_role_that_no_file_names_is_not_the_empty_pieces(tmp_path: Path) -> None:
    description = json.loads(byte_tokenizer().to_str())
    description["model"]["vocab"][""] = 259
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 258}')
    tokenizer = HuggingFaceTokenizer(tmp_path / "tokenizer.json", 263)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.stop_ids) == (None, 258, {258})


def test_rows_that_no_token_uses_add_nothing_to_the_text(qwen3: HuggingFaceTokenizer) -> None:
    assert qwen3.token_bytes(151935) == b""
    for outside in (-1, 151936):
        with pytest.raises(IndexError):
            qwen3.token_bytes(outside)


def test_tokens_that_are_added_but_not_special_are_text(qwen3: HuggingFaceTokenizer) -> None:
    (think,) = qwen3.encode("<think>")
    assert qwen3.token_bytes(think) == b"<think>"
    assert "<think>" not in qwen3.control_tokens


def test_bytes_of_byte_fallback_tokens(stories: HuggingFaceTokenizer) -> None:
    assert whole(stories, stories.encode("🙂")) == " 🙂".encode()
    assert b"\xf0" in [stories.token_bytes(token) for token in stories.encode("🙂")]


def test_spaces_of_an_added_piece_are_spaces(tmp_path: Path) -> None:
    """Gemma's files add its runs of spaces, and of line ends, to what the vocabulary has."""
    pieces = ("<eos>", "▁", "▁▁", "a", *(f"<0x{byte:02X}>" for byte in range(256)))
    saved = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [("▁", "▁")], byte_fallback=True))
    saved.normalizer = normalizers.Replace(" ", "▁")
    saved.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    saved.add_tokens([AddedToken("▁▁", normalized=False)])
    saved.add_special_tokens(["<eos>"])
    saved.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 0}')
    tokenizer = HuggingFaceTokenizer(tmp_path / "tokenizer.json", len(pieces))
    ids = tokenizer.encode("a  a\n")
    assert 2 in ids
    assert whole(tokenizer, ids) == saved.decode(ids).encode() == b"a  a\n"


def test_lone_surrogates_become_question_marks(demo: HuggingFaceTokenizer) -> None:
    assert whole(demo, demo.encode("a\ud800b")) == b"a?b"


@pytest.mark.parametrize("parse_special", [True, False])
def test_a_long_text_has_the_ids_of_a_short_one(
    demo: HuggingFaceTokenizer, monkeypatch: pytest.MonkeyPatch, parse_special: bool
) -> None:
    short = [demo.encode(text, parse_special=parse_special) for text in TRICKY]
    monkeypatch.setattr("runner.backends.native.tokenizer._LONG", 0)
    assert [demo.encode(text, parse_special=parse_special) for text in TRICKY] == short


def test_what_a_training_cut_and_filled_texts_up_to_is_not_done_to_texts_here(tmp_path: Path) -> None:
    """Files of models that were trained further have its "truncation" and "padding"."""
    saved = byte_tokenizer()
    saved.enable_truncation(8)
    saved.enable_padding(length=20, pad_id=256)
    saved.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 258}')
    tokenizer = HuggingFaceTokenizer(tmp_path / "tokenizer.json", 263)
    for text in ("short", "longer than eight, and than twenty"):
        assert whole(tokenizer, tokenizer.encode(text), special=True) == text.encode()


def test_a_vocabulary_beyond_the_models_is_refused(demo_directory: Path) -> None:
    with pytest.raises(BadModelFile, match="beyond the model's vocabulary"):
        HuggingFaceTokenizer(demo_directory / "tokenizer.json", 8000)


def test_a_control_token_beyond_the_models_vocabulary_is_passed_over(demo_directory: Path, tmp_path: Path) -> None:
    """Gemma 3 1B has the tokenizer of its multimodal siblings, whose image token it has no row for."""
    path = tmp_path / "tokenizer.json"
    description = json.loads((demo_directory / "tokenizer.json").read_text())
    image = {"id": 8192, "content": "<image>", "special": True}
    image |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    path.write_text(json.dumps({**description, "added_tokens": [*description["added_tokens"], image]}))
    shutil.copy(demo_directory / "generation_config.json", tmp_path)
    tokenizer = HuggingFaceTokenizer(path, 8192)
    assert "<image>" not in tokenizer.control_tokens
    assert whole(tokenizer, tokenizer.encode("an <image>", parse_special=False)) == b"an <image>"
    description["added_tokens"].append({**image, "special": False})
    path.write_text(json.dumps(description))
    with pytest.raises(BadModelFile, match="token id 8192"):
        HuggingFaceTokenizer(path, 8192)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": "1.0", "model": {"type": "Nonsense"}}'])
def test_what_is_no_tokenizer_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(BadModelFile):
        HuggingFaceTokenizer(tmp_path / "tokenizer.json", 100)


def test_an_unknown_kind_of_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsupportedModel, match="decoder = WordPiece"):
        HuggingFaceTokenizer(tmp_path / "tokenizer.json", 2)


def test_a_metaspace_tokenizer_says_whether_it_puts_a_space_first(tmp_path: Path, shared_data: Path) -> None:
    shutil.copy(shared_data / "stories260K" / "hf" / "tokenizer.json", tmp_path)
    path = tmp_path / "tokenizer.json"
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 2}')
    description = json.loads(path.read_text())
    for scheme, strips in (("always", True), ("never", False)):
        space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
        description |= {"normalizer": None, "pre_tokenizer": space}
        description["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, space]}
        path.write_text(json.dumps(description))
        tokenizer = HuggingFaceTokenizer(path, 512)
        assert tokenizer.strips_leading_space is strips
        assert whole(tokenizer, tokenizer.encode("Once upon")) == b" " * strips + b"Once upon"
