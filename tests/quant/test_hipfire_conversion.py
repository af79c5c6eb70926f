"""The demo model to hipfire's container and on to what runs: a GGUF, and a packed model with the same bits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import llama_cpp_oracle as oracle
import numpy as np
import pytest
import torch
from hf_directories import demo_as_safetensors, random_model
from tokenizers import Tokenizer

from runner.errors import BadModelFile, UnsupportedModel, UsageError
from runner.quant.formats import format_of
from runner.quant.gguf_file import read_header as read_gguf_header
from runner.quant.hipfire.container import read_header
from runner.quant.hipfire.make import make_container
from runner.quant.hipfire.source import HfqWeights
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.mq.quantize import Packed, quantize_packed
from runner.quant.mq.recipe import recipe_of
from runner.quant.quantize import Quantized, model_name, quantize_model

GREETING = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"
FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def silent(_name: str, _done: int, _total: int) -> None:
    pass


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """torch's threads wait for each other in loops: on cores that others use too, two are slower than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def demo_source(tmp_path_factory: pytest.TempPathFactory, demo_directory: Path) -> Path:
    return demo_as_safetensors(tmp_path_factory.mktemp("source") / "demo", demo_directory)


@pytest.fixture(scope="module")
def demo_hfq(tmp_path_factory: pytest.TempPathFactory, demo_source: Path) -> Path:
    output = tmp_path_factory.mktemp("hfq") / "demo.hfq"
    make_container(demo_source, output, force=False, on_stage=silent)
    return output


def to_gguf(source: Path, name: str, output: Path) -> Quantized:
    return quantize_model(source, format_of(name), output, force=False, on_stage=silent)


def packed(source: Path, name: str, output: Path) -> Packed:
    return quantize_packed(source, recipe_of(name), output, device=torch.device("cpu"), on_stage=silent)


def answer(weights: Path, directory: Path) -> str:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return tokenizer.decode(oracle.greedy(weights, tokenizer.encode(GREETING).ids, 12))


def test_the_demo_model_becomes_a_container_of_four_and_a_quarter_bits(demo_source: Path, tmp_path: Path) -> None:
    stages: list[tuple[str, int, int]] = []
    made = make_container(demo_source, tmp_path / "demo.mq4", force=False, on_stage=lambda *stage: stages.append(stage))
    header = read_header(tmp_path / "demo.mq4")
    assert (header.version, header.arch_id, header.model_type, header.quantization) == (1, 1, "qwen3", "MQ4-G256")
    assert header.data_offset % 4096 == 0
    assert [tensor.name for tensor in header.tensors] == sorted(tensor.name for tensor in header.tensors)
    assert made.num_parameters == sum(tensor.num_values for tensor in header.tensors) == 18_357_504
    assert 4.25 < made.bpw < 5.3
    assert made.size_bytes == header.size_bytes == made.path.stat().st_size
    assert stages[-1][1] == stages[-1][2]
    assert not list(tmp_path.glob("*.partial"))


def test_its_gguf_answers_and_has_the_files_beside_it(demo_source: Path, demo_hfq: Path, tmp_path: Path) -> None:
    made = to_gguf(demo_hfq, "q8_0", tmp_path / "out")
    assert made.weights.name == "demo-q8_0.gguf"
    assert "to 4 bits" in made.warnings[0]
    assert made.source_bytes < demo_hfq.stat().st_size
    header = read_gguf_header(made.weights)
    assert header.quantization == "Q8_0"
    for name in FILES:
        assert (made.path / name).is_file()
    assert (made.path / "tokenizer.json").read_bytes() == (demo_source / "tokenizer.json").read_bytes()
    assert answer(made.weights, made.path) == "Hello! I am the small demo model that ships with"


def test_a_format_that_llama_cpp_makes_is_made_too(demo_hfq: Path, tmp_path: Path) -> None:
    made = to_gguf(demo_hfq, "q4_k_m", tmp_path / "demo.gguf")
    assert read_gguf_header(made.weights).quantization == "Q4_K_M"
    assert not list(tmp_path.glob("*.partial"))


def test_a_packed_model_keeps_the_bits_of_the_file(demo_hfq: Path, tmp_path: Path) -> None:
    made = packed(demo_hfq, "mq4-hipfire", tmp_path / "out")
    source, result = HfqWeights(demo_hfq), PackedWeights(made.path)
    taken_over = [name for name in source.shapes if source.mq4_blocks(name) is not None]
    assert len(taken_over) == 42
    for name in taken_over:
        assert result.types[name] == "mq4-hipfire"
        assert np.array_equal(result.read_encoded(name).parts["packed"].numpy(), source.mq4_blocks(name))
        assert made.tensors[name].weight_error == pytest.approx(0, abs=1e-9)
        np.testing.assert_allclose(result.read(name), source.read(name), atol=1e-6)
    assert result.types["model.embed_tokens.weight"] == "mq8"
    assert result.types["model.norm.weight"] == "f16"
    assert np.array_equal(result.read("model.norm.weight"), source.read("model.norm.weight"))
    for name in FILES:
        assert (made.path / name).is_file()
    (warning,) = made.warnings  # the embeddings alone are rounded
    assert "MQ4-G256 and is taken over as it is, but for model.embed_tokens.weight (Q8_0): its rounding" in warning


def test_another_packed_format_is_made_from_the_decoded_weights(demo_hfq: Path, tmp_path: Path) -> None:
    made = packed(demo_hfq, "mq8", tmp_path / "out")
    name = "model.layers.0.mlp.down_proj.weight"
    wanted = HfqWeights(demo_hfq).read(name)
    found = PackedWeights(made.path).read(name)
    assert made.format == "MQ8"
    assert any(re.match(r"The source is MQ4-G256, [45]\.\d bits a weight: its", warning) for warning in made.warnings)
    assert float(np.square(found - wanted).mean() / np.square(wanted).mean()) < 1e-4


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
def test_each_architecture_goes_through_the_container(demo_directory: Path, tmp_path: Path, model_type: str) -> None:
    # A hidden size of 256 makes MQ4-G256, one of 96 in the MLP makes Q8_0, rows of heads are reordered for llama.
    random_model(tmp_path / "hf", demo_directory, model_type, hidden_size=256, tie_word_embeddings=False)
    make_container(tmp_path / "hf", tmp_path / "x.hfq", force=False, on_stage=silent)
    kinds = {tensor.type.name for tensor in read_header(tmp_path / "x.hfq").tensors}
    assert {"MQ4-G256", "Q8_0", "F16"} <= kinds
    from_container = to_gguf(tmp_path / "x.hfq", "f32", tmp_path / "a.gguf")
    from_original = to_gguf(tmp_path / "hf", "f32", tmp_path / "b.gguf")
    found, wanted = read_gguf_header(from_container.weights), read_gguf_header(from_original.weights)
    assert {tensor.name for tensor in found.tensors} == {tensor.name for tensor in wanted.tensors}
    for tensor in wanted.tensors:
        original = wanted.read_f32(tensor)
        same = found.tensor(tensor.name)
        assert same is not None
        error = np.square(found.read_f32(same) - original).sum() / max(1e-9, np.square(original).sum())
        assert error < 0.02, tensor.name


def test_a_container_is_made_from_a_gguf_too(demo_directory: Path, tmp_path: Path) -> None:
    make_container(demo_directory, tmp_path / "x.hfq", force=False, on_stage=silent)
    assert len(HfqWeights(tmp_path / "x.hfq").shapes) == 68


def test_what_is_no_source_or_there_already_is_refused(demo_hfq: Path, demo_source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="already"):
        make_container(demo_hfq, tmp_path / "x.hfq", force=False, on_stage=silent)
    with pytest.raises(UsageError, match="exists already"):
        make_container(demo_source, demo_hfq, force=False, on_stage=silent)
    (tmp_path / "bad.hfq").write_bytes(demo_hfq.read_bytes()[:5000])
    with pytest.raises(BadModelFile, match=r"bad\.hfq"):
        to_gguf(tmp_path / "bad.hfq", "q8_0", tmp_path / "out")
    with pytest.raises(BadModelFile, match="does not exist"):
        to_gguf(tmp_path / "none.hfq", "q8_0", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_architecture_that_runner_does_not_know_is_named(demo_hfq: Path, tmp_path: Path) -> None:
    content = demo_hfq.read_bytes().replace(b'"model_type":"qwen3"', b'"model_type":"qwen9"')
    (tmp_path / "x.hfq").write_bytes(content)
    with pytest.raises(UnsupportedModel, match="qwen9"):
        to_gguf(tmp_path / "x.hfq", "q8_0", tmp_path / "out")


@pytest.mark.parametrize(
    ("file", "name"), [("qwen3-0.6b.mq4", "qwen3-0.6b"), ("qwen3.mq4.hfq", "qwen3"), ("demo.hfq", "demo")]
)
def test_what_is_made_is_named_after_the_file(file: str, name: str) -> None:
    assert model_name(Path("/models") / file) == name
