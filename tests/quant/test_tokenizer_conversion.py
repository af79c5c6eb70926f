"""A converted tokenizer gives the same ids in llama.cpp as in Hugging Face tokenizers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import llama_cpp_oracle as oracle
import pytest
import sentencepiece
from gguf import GGUFWriter, TokenType
from hf_directories import edit_json
from tokenizers import Regex, Tokenizer, decoders, models, trainers
from tokenizers import pre_tokenizers as steps

from runner.errors import BadModelFile, UnsupportedModel
from runner.quant.chat_templates import read_chat_templates
from runner.quant.convert import read_vocabulary
from runner.quant.gguf_file import GgufHeader, read_header
from runner.quant.gguf_metadata import write_vocabulary
from runner.quant.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from runner.quant.vocabulary import Vocabulary

ASSORTED = [
    "",
    " ",
    "   leading and trailing   ",
    "tabs\tand\r\nlines\n\n\nand  double  spaces",
    "DON'T don't I'LL we'Ve",
    "1 12 123 1234 12345.67",
    "Ünïcödé ÀÉ ﬁ Ａ ①",
    "日本語 中文 한국어 العربية нещо",
    "👩‍👩‍👧 🦙.cpp 🏳️‍🌈",
    "foo_bar(baz) == '\"x\"' /*/ //\n/n",
    "\u0000\u0001\u007f",
    "a" * 300,
]


def vocabulary_file(vocabulary: Vocabulary, path: Path) -> Path:
    """A GGUF with the tokenizer alone."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(64)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    write_vocabulary(writer, vocabulary)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return path


def vectors(shared_data: Path, name: str) -> list[tuple[str, list[int]]]:
    directory = shared_data / "vectors"
    texts = (directory / f"ggml-vocab-{name}.gguf.inp").read_text().split("\n__ggml_vocab_test__\n")
    ids = (directory / f"ggml-vocab-{name}.gguf.out").read_text().split("\n")
    return [(text, [int(number) for number in line.split()]) for text, line in zip(texts, ids, strict=False)]


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


LARGE = [("llama3", "llama-bpe", 128_256), ("qwen3", "qwen2", 151_936)]


@pytest.fixture(scope="module", params=LARGE, ids=[case[0] for case in LARGE])
def large(
    request: pytest.FixtureRequest, shared_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path, llama_cpp.Llama, GgufHeader]]:
    """A tokenizer of the size that real models have: (its vectors' name, its directory, llama.cpp's, the header)."""
    name, pre, vocab_size = request.param
    directory = tmp_path_factory.mktemp(name)
    for file in (shared_data / "tokenizers" / name).iterdir():
        shutil.copyfile(file, directory / file.name)
    if name == "llama3":
        generation = {"bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009]}
        edit_json(directory / "generation_config.json", generation)
    path = vocabulary_file(read_vocabulary(directory, vocab_size), directory / "vocabulary.gguf")
    with oracle.vocabulary(path) as model:
        yield pre, directory, model, read_header(path)


def test_all_vectors_of_a_large_vocabulary(
    large: tuple[str, Path, llama_cpp.Llama, GgufHeader], shared_data: Path
) -> None:
    pre, _, model, header = large
    assert header.metadata["tokenizer.ggml.pre"] == pre
    cases = vectors(shared_data, pre)
    assert len(cases) == 47
    for text, expected in cases:
        assert oracle.encode(model, text, special=False) == expected


def test_a_large_vocabulary_splits_real_text_as_hugging_face_does(
    large: tuple[str, Path, llama_cpp.Llama, GgufHeader], shared_data: Path
) -> None:
    _, directory, model, _ = large
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    special = [token.content for token in tokenizer.get_added_tokens_decoder().values()][:24]
    lines = (shared_data / "text" / "valid_wikipedia.txt").read_text(encoding="utf-8")[:60_000].split("\n")
    for text in [*lines, *ASSORTED, "x".join(special), " ".join(special)]:
        assert oracle.encode(model, text) == ids_of(tokenizer, text)


def test_the_tokens_of_a_large_vocabulary_have_their_types_and_padding(
    large: tuple[str, Path, llama_cpp.Llama, GgufHeader],
) -> None:
    pre, directory, model, header = large
    described = json.loads((directory / "tokenizer.json").read_text())
    tokens, types = header.metadata["tokenizer.ggml.tokens"], header.metadata["tokenizer.ggml.token_type"]
    for token in described["added_tokens"]:
        assert tokens[token["id"]] == token["content"]
        assert types[token["id"]] == (TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED)
    known = {*described["model"]["vocab"].values(), *(token["id"] for token in described["added_tokens"])}
    padding = [number for number in range(len(tokens)) if number not in known]
    assert [tokens[number] for number in padding] == [f"[PAD{number}]" for number in padding]
    assert {types[number] for number in padding} <= {TokenType.UNUSED}
    ends = (128001, 128008, 128009) if pre == "llama-bpe" else (151645,)
    assert all(llama_cpp.llama_vocab_is_eog(model._model.vocab, number) for number in ends)
    assert model._model.add_bos_token() == (pre == "llama-bpe")


def json_step(step: str) -> steps.PreTokenizer:
    if step == "digits":
        return steps.Digits(individual_digits=True)
    if step in ("gpt2", "bytes"):
        return steps.ByteLevel(add_prefix_space=False, use_regex=step == "gpt2")
    return steps.Split(Regex(step.removeprefix("split:")), "isolated")


@pytest.fixture(scope="module")
def corpus(shared_data: Path) -> list[str]:
    wikipedia = (shared_data / "text" / "valid_wikipedia.txt").read_text(encoding="utf-8")
    return [*wikipedia[:120_000].split("\n"), *[text for text, _ in vectors(shared_data, "qwen2")] * 30, *ASSORTED * 30]


@pytest.mark.parametrize("known", PRE_TOKENIZERS, ids=[known.name for known in PRE_TOKENIZERS])
def test_each_known_pre_tokenizer_splits_as_llama_cpp_does(
    known: PreTokenizer, corpus: list[str], shared_data: Path, tmp_path: Path
) -> None:
    """A BPE is trained on top of each, so that a difference in splitting shows in the ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = steps.Sequence([json_step(step) for step in known.steps])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=["<eos>"],
        initial_alphabet=steps.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    described = json.loads(tokenizer.to_str())
    described["model"]["ignore_merges"] = known.ignore_merges
    edit_json(tmp_path / "tokenizer.json", described)
    edit_json(tmp_path / "generation_config.json", {"eos_token_id": 0})
    vocabulary = read_vocabulary(tmp_path, 2000)
    assert vocabulary.pre == known.name
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = [*corpus[-12:], *[text for text, _ in vectors(shared_data, "qwen2")], *corpus[:300]]
    with oracle.vocabulary(vocabulary_file(vocabulary, tmp_path / "vocabulary.gguf")) as model:
        different = [text for text in texts if oracle.encode(model, text) != ids_of(tokenizer, text)]
    if known.limits:  # combining marks and variation selectors: said to the user, and nothing else
        different = [text for text in different if not any(mark in text for mark in "\u17b6\ufe0f")]
        assert vocabulary.limits
    assert different == []


class TestByteLevelBpe:
    """The demo's tokenizer with one thing changed."""

    @pytest.fixture
    def directory(self, tmp_path: Path, demo_directory: Path) -> Path:
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"):
            shutil.copyfile(demo_directory / name, tmp_path / name)
        return tmp_path

    def tokenizer(self, directory: Path) -> dict[str, Any]:
        value = json.loads((directory / "tokenizer.json").read_text())
        assert isinstance(value, dict)
        return value

    def test_both_forms_of_merges_are_read(self, directory: Path) -> None:
        described = self.tokenizer(directory)
        pairs = described["model"]["merges"]
        assert isinstance(pairs[0], list)
        expected = read_vocabulary(directory, 8192)
        described["model"]["merges"] = [" ".join(pair) for pair in pairs]
        edit_json(directory / "tokenizer.json", described)
        assert read_vocabulary(directory, 8192) == expected

    def test_an_unknown_pre_tokenizer_is_refused_by_its_steps(self, directory: Path) -> None:
        step = {"type": "Split", "pattern": {"Regex": r"\w+|\W+"}, "behavior": "Isolated", "invert": False}
        bytes_step = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
        change = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [step, bytes_step]}}
        edit_json(directory / "tokenizer.json", change)
        with pytest.raises(UnsupportedModel, match=r"split:\\w\+\|\\W\+"):
            read_vocabulary(directory, 8192)

    def test_a_prefix_space_is_refused(self, directory: Path) -> None:
        change = {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}}
        edit_json(directory / "tokenizer.json", change)
        with pytest.raises(UnsupportedModel, match="add_prefix_space"):
            read_vocabulary(directory, 8192)

    def test_a_normalizer_that_changes_ordinary_text_is_refused(self, directory: Path) -> None:
        edit_json(directory / "tokenizer.json", {"normalizer": {"type": "Lowercase"}})
        with pytest.raises(UnsupportedModel, match="Lowercase"):
            read_vocabulary(directory, 8192)

    def test_another_kind_of_tokenizer_is_refused_by_name(self, directory: Path) -> None:
        edit_json(directory / "tokenizer.json", {"model": {"type": "Unigram", "vocab": []}})
        with pytest.raises(UnsupportedModel, match="'Unigram'"):
            read_vocabulary(directory, 8192)

    def test_a_token_beyond_the_vocabulary_is_refused(self, directory: Path) -> None:
        with pytest.raises(UnsupportedModel, match="8191"):
            read_vocabulary(directory, 8000)

    def test_one_text_with_two_ids_is_refused(self, directory: Path) -> None:
        described = self.tokenizer(directory)
        described["added_tokens"].append({"id": 8192, "content": "the", "special": False})
        edit_json(directory / "tokenizer.json", described)
        with pytest.raises(BadModelFile, match="'the'"):
            read_vocabulary(directory, 8193)

    def test_a_model_without_an_end_is_refused(self, directory: Path) -> None:
        for name in ("generation_config.json", "config.json"):
            (directory / name).write_text("{}")
        edit_json(directory / "tokenizer_config.json", {"eos_token": None})
        with pytest.raises(UnsupportedModel, match="ends an answer"):
            read_vocabulary(directory, 8192)

    def test_all_ends_of_an_answer_are_written(self, directory: Path) -> None:
        edit_json(directory / "generation_config.json", {"eos_token_id": [2, 300, 301]})
        path = vocabulary_file(read_vocabulary(directory, 8192), directory / "vocabulary.gguf")
        with oracle.vocabulary(path) as model:
            vocab = model._model.vocab
            assert all(llama_cpp.llama_vocab_is_eog(vocab, number) for number in (2, 300, 301))
            assert not llama_cpp.llama_vocab_is_eog(vocab, 302)

    @pytest.mark.parametrize(
        "garbage", [b"", b"[]", b"{", b'{"model": 3}', b"\xff\xfe", b"[" * 100_000, b'{"model": {"type": "BPE"}}']
    )
    def test_garbage_is_an_error_of_ours(self, directory: Path, garbage: bytes) -> None:
        (directory / "tokenizer.json").write_bytes(garbage)
        with pytest.raises((BadModelFile, UnsupportedModel)):
            read_vocabulary(directory, 8192)


class TestChatTemplates:
    """Every place where a template can be."""

    def test_a_list_of_named_templates(self, tmp_path: Path) -> None:
        entries = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
        edit_json(tmp_path / "tokenizer_config.json", {"chat_template": entries})
        assert read_chat_templates(tmp_path) == {"default": "A", "tool_use": "B"}

    def test_the_file_goes_before_the_configuration(self, tmp_path: Path) -> None:
        edit_json(tmp_path / "tokenizer_config.json", {"chat_template": "A"})
        (tmp_path / "chat_template.jinja").write_text("B")
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("C")
        assert read_chat_templates(tmp_path) == {"default": "B", "rag": "C"}

    def test_one_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
        with pytest.raises(BadModelFile, match=r"chat_template\.jinja cannot be read"):
            read_chat_templates(tmp_path)
        (tmp_path / "additional_chat_templates" / "rag.jinja").mkdir(parents=True)
        with pytest.raises(BadModelFile, match=r"rag\.jinja cannot be read: Is a directory"):
            read_chat_templates(tmp_path)

    def test_they_are_in_the_gguf(self, tmp_path: Path, demo_directory: Path) -> None:
        for name in ("tokenizer.json", "generation_config.json"):
            shutil.copyfile(demo_directory / name, tmp_path / name)
        entries = [{"name": "default", "template": "A"}, {"name": "tool-use", "template": "B"}]
        edit_json(tmp_path / "tokenizer_config.json", {"chat_template": entries})
        header = read_header(vocabulary_file(read_vocabulary(tmp_path, 8192), tmp_path / "vocabulary.gguf"))
        assert header.metadata["tokenizer.chat_template"] == "A"
        assert header.metadata["tokenizer.chat_template.tool_use"] == "B"
        assert list(header.metadata["tokenizer.chat_templates"]) == ["tool_use"]


class TestSentencePiece:
    """stories260K's tokenizer, from both of its files."""

    @pytest.fixture(params=["tokenizer.json", "tokenizer.model"])
    def directory(self, request: pytest.FixtureRequest, shared_data: Path, tmp_path: Path) -> Path:
        source = shared_data / "stories260K" / "hf"
        for name in ("config.json", "generation_config.json", "tokenizer_config.json", request.param):
            shutil.copyfile(source / name, tmp_path / name)
        return tmp_path

    def test_the_ids_equal_hugging_face_and_sentencepiece(self, directory: Path, shared_data: Path) -> None:
        source = shared_data / "stories260K" / "hf"
        tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
        processor = sentencepiece.SentencePieceProcessor(model_file=str(source / "tokenizer.model"))
        lines = (shared_data / "text" / "valid_wikipedia.txt").read_text(encoding="utf-8")[:40_000].split("\n")
        with oracle.vocabulary(vocabulary_file(read_vocabulary(directory, 512), directory / "v.gguf")) as model:
            for text in [*lines, *ASSORTED]:
                assert oracle.encode(model, text) == ids_of(tokenizer, text)
                assert "\0" in text or oracle.encode(model, text) == processor.encode(text)
            assert oracle.encode(model, "Once", add_bos=True)[0] == 1

    def test_the_vocabulary_is_the_one_of_the_reference_file(self, directory: Path, shared_data: Path) -> None:
        reference = read_header(shared_data / "stories260K" / "gguf" / "stories260K-f32.gguf").metadata
        made = read_vocabulary(directory, 512)
        assert list(made.tokens) == list(reference["tokenizer.ggml.tokens"])
        assert list(made.types) == list(reference["tokenizer.ggml.token_type"])
        assert made.special.bos_id == 1
        assert made.special.unk_id == 0
        assert made.special.end_ids == (2,)
        assert (made.special.add_bos, made.special.add_eos, made.add_space_prefix) == (True, False, True)


def test_metaspace_at_the_start_only_adds_no_space_inside_a_chat(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "stories260K" / "hf"
    for name in ("generation_config.json", "tokenizer.json"):
        shutil.copyfile(source / name, tmp_path / name)
    edit_json(tmp_path / "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>", "chat_template": "x"})
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    edit_json(tmp_path / "tokenizer.json", {"normalizer": None, "pre_tokenizer": metaspace})
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    prompt = "<s>User: hi</s>Once upon a time</s>"
    with oracle.vocabulary(vocabulary_file(read_vocabulary(tmp_path, 512), tmp_path / "v.gguf")) as model:
        assert oracle.encode(model, prompt) == ids_of(tokenizer, prompt)


def test_a_sentencepiece_step_that_llama_cpp_lacks_is_refused(shared_data: Path, tmp_path: Path) -> None:
    shutil.copyfile(shared_data / "stories260K" / "hf" / "tokenizer.json", tmp_path / "tokenizer.json")
    edit_json(tmp_path / "tokenizer.json", {"normalizer": {"type": "NFKC"}})
    with pytest.raises(UnsupportedModel, match="NFKC"):
        read_vocabulary(tmp_path, 512)


def test_a_unigram_model_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"the quick brown fox number {number} jumps over it" for number in range(200)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(tmp_path / "tokenizer"), vocab_size=50, model_type="unigram", minloglevel=2
    )
    with pytest.raises(UnsupportedModel, match="unigram"):
        read_vocabulary(tmp_path, 64)


def test_a_damaged_tokenizer_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\xff\xff\xff\xff" * 20)
    with pytest.raises(BadModelFile, match=r"tokenizer\.model"):
        read_vocabulary(tmp_path, 64)


@pytest.mark.parametrize("property_name", ["lstrip", "rstrip", "single_word"])
def test_an_added_token_that_llama_cpp_finds_otherwise_is_told_of(
    demo_directory: Path, tmp_path: Path, property_name: str
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(demo_directory / name, tmp_path / name)
    assert read_vocabulary(tmp_path, 8192).limits == ""
    described = json.loads((tmp_path / "tokenizer.json").read_text())
    described["added_tokens"][1][property_name] = True
    edit_json(tmp_path / "tokenizer.json", described)
    assert repr(described["added_tokens"][1]["content"]) in read_vocabulary(tmp_path, 8192).limits


def test_an_added_token_of_sentencepiece_that_takes_in_spaces_is_told_of(shared_data: Path, tmp_path: Path) -> None:
    for path in (shared_data / "stories260K" / "hf").iterdir():
        if path.suffix == ".json":
            shutil.copyfile(path, tmp_path / path.name)
    assert read_vocabulary(tmp_path, 512).limits == ""
    described = json.loads((tmp_path / "tokenizer.json").read_text())
    described["added_tokens"][-1]["rstrip"] = True
    edit_json(tmp_path / "tokenizer.json", described)
    assert "spaces" in read_vocabulary(tmp_path, 512).limits
