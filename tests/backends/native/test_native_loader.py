from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from runner.backends import native
from runner.backends.native.loader import to_tensor
from runner.config import LoadOptions
from runner.errors import BadModelFile, RunnerError, UnsupportedModel
from runner.quant.convert import convert, read_source
from runner.quant.formats import FORMATS
from tests.backends.native.tiny_models import load, make, ready, save


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return save(make("llama-biases"), tmp_path / "tiny")


def edit_tensors(directory: Path, **changes: torch.Tensor | None) -> None:
    """Add, replace or (None) remove tensors; "__" in a name stands for "."."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for name, value in changes.items():
        name = name.replace("__", ".")
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    save_file(tensors, path)


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_missing_tensors_are_named(tiny: Path) -> None:
    edit_tensors(tiny, model__layers__1__mlp__up_proj__bias=None)
    with pytest.raises(BadModelFile, match=r"lacks 'model\.layers\.1\.mlp\.up_proj\.bias'"):
        load(ready(tiny))


def test_extra_tensors_are_named(tiny: Path) -> None:
    edit_tensors(tiny, model__layers__0__self_attn__sinks=torch.zeros(6))
    with pytest.raises(UnsupportedModel, match=r"model\.layers\.0\.self_attn\.sinks"):
        load(ready(tiny))


def test_a_tensor_of_another_shape_is_named(tiny: Path) -> None:
    edit_tensors(tiny, model__norm__weight=torch.ones(49))
    with pytest.raises(BadModelFile, match=r"'model\.norm\.weight' of model\.safetensors has shape \[49\], not \[48\]"):
        load(ready(tiny))


def test_weights_of_more_layers_than_the_config_says_are_refused(tiny: Path) -> None:
    edit_config(tiny, num_hidden_layers=2)
    with pytest.raises(UnsupportedModel, match=r"model\.layers\.2\."):
        load(ready(tiny))


def test_a_config_of_impossible_size_allocates_nothing(tiny: Path) -> None:
    edit_config(tiny, hidden_size=2**18, intermediate_size=2**20, num_hidden_layers=100, head_dim=4096)
    with pytest.raises(RunnerError):
        load(ready(tiny), force=True)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_types_that_are_not_plain_floats_are_refused_with_the_remedy(dtype: torch.dtype, tiny: Path) -> None:
    edit_tensors(tiny, lm_head__weight=torch.zeros(263, 48).to(dtype))
    refusal = native.refusal(ready(tiny), LoadOptions())
    assert "lm_head.weight" in (refusal or "")
    assert "llamacpp" in (refusal or "")


def test_a_tied_copy_that_differs_is_refused(tmp_path: Path) -> None:
    directory = save(make("llama-tied"), tmp_path)
    edit_tensors(directory, lm_head__weight=torch.ones(263, 48))
    with pytest.raises(BadModelFile, match="ties the embeddings"):
        load(ready(directory))


def test_a_tensor_in_two_shards_is_refused(tiny: Path) -> None:
    shutil.copy(tiny / "model.safetensors", tiny / "again.safetensors")
    with pytest.raises(BadModelFile, match="two files"):
        load(ready(tiny))


@pytest.mark.parametrize("damage", ["cut", "header beyond the file", "offsets beyond the file", "not JSON"])
def test_damaged_headers_are_refused_before_anything_is_read(damage: str, tiny: Path) -> None:
    path = tiny / "model.safetensors"
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header, body = data[8 : 8 + size], data[8 + size :]
    if damage == "cut":
        data = data[:-100]
    elif damage == "header beyond the file":
        data = struct.pack("<Q", 2**62) + header + body
    elif damage == "offsets beyond the file":
        fields = json.loads(header)
        fields["lm_head.weight"]["shape"] = [2**40, 2**40]
        text = json.dumps(fields).encode()
        data = struct.pack("<Q", len(text)) + text + body
    else:
        data = data[:8] + b"x" * size + body
    path.write_bytes(data)
    assert native.refusal(ready(tiny), LoadOptions()) is not None
    with pytest.raises(BadModelFile):
        load(ready(tiny))


@pytest.mark.parametrize(
    "config", ["[]", "{", '{"model_type": "deepseek_v3"}', '{"model_type": "llama", "head_dim": 3}']
)
def test_a_bad_config_is_refused(config: str, tiny: Path) -> None:
    (tiny / "config.json").write_text(config)
    assert native.refusal(ready(tiny), LoadOptions()) is not None
    with pytest.raises((BadModelFile, UnsupportedModel)):
        load(ready(tiny))


@pytest.fixture(params=["llama-biases", "mistral", "qwen2", "qwen3"])
def as_gguf(request: pytest.FixtureRequest, tmp_path: Path, demo_directory: Path) -> Path:
    """A tiny model as F32 GGUF beside its Hugging Face files, with the demo's tokenizer: one that can be converted."""
    directory = save(make(request.param, vocab_size=8192, eos_token_id=2, bos_token_id=None), tmp_path / "source")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(demo_directory / name, directory)
    path = directory / "tiny-f32.gguf"
    convert(read_source(directory), FORMATS["f32"], path, lambda *_: None)
    return path


def test_a_gguf_gives_the_very_logits_of_its_source(as_gguf: Path) -> None:
    """The rows of q and k, weights and biases, come back into their order."""
    ids = list(range(40))
    source = [entry.values for entry in load(ready(as_gguf.parent)).score(ids)]
    found = [entry.values for entry in load(ready(as_gguf.parent, as_gguf)).score(ids)]
    assert np.array_equal(found, source)


@pytest.mark.parametrize("as_gguf", ["llama-biases"], indirect=True)
def test_a_gguf_beside_the_config_of_another_model_is_refused(as_gguf: Path) -> None:
    edit_config(as_gguf.parent, model_type="qwen2", architectures=["Qwen2ForCausalLM"], mlp_bias=False)
    refusal = native.refusal(ready(as_gguf.parent, as_gguf), LoadOptions())
    assert "'llama'" in (refusal or "")
    assert "'qwen2'" in (refusal or "")


@pytest.mark.parametrize("as_gguf", ["qwen3"], indirect=True)
def test_a_gguf_that_lacks_a_tensor_is_refused(as_gguf: Path) -> None:
    edit_config(as_gguf.parent, num_hidden_layers=4, layer_types=None)
    assert "model.layers.3." in (native.refusal(ready(as_gguf.parent, as_gguf), LoadOptions()) or "")
    edit_config(as_gguf.parent, num_hidden_layers=2, layer_types=None)
    assert "blk.2." in (native.refusal(ready(as_gguf.parent, as_gguf), LoadOptions()) or "")


def test_quantized_types_that_need_llama_cpp_are_refused_by_name(tmp_path: Path, demo_directory: Path) -> None:
    shape = {"hidden_size": 256, "intermediate_size": 256, "vocab_size": 8192, "eos_token_id": 2}
    directory = save(make("qwen3", **shape), tmp_path / "source")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_directory / name, directory)
    path = directory / "tiny-q4_0.gguf"
    convert(read_source(directory), FORMATS["q4_0"], path, lambda *_: None)
    assert "Q4_0" in (native.refusal(ready(directory, path), LoadOptions()) or "")
    with pytest.raises(UnsupportedModel, match="Q4_0"):
        load(ready(directory, path))


def test_bfloat16_bits_and_mapped_files_become_tensors_of_their_own(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 3.140625], np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    assert to_tensor(bits).dtype == torch.bfloat16
    assert to_tensor(bits).tolist() == values.tolist()
    mapped = np.memmap(tmp_path / "values", np.float32, "w+", shape=(3,))
    mapped[:] = values
    tensor = to_tensor(np.memmap(tmp_path / "values", np.float32, "r", shape=(3,)))
    mapped[:] = 0
    assert tensor.tolist() == values.tolist()
