from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
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
    with pytest.raises(BadModelFile, match=r"lack 'model\.layers\.1\.mlp\.up_proj\.bias'"):
        load(ready(tiny))


def test_extra_tensors_are_named(tiny: Path) -> None:
    edit_tensors(tiny, model__layers__0__self_attn__sinks=torch.zeros(6))
    with pytest.raises(UnsupportedModel, match=r"model\.layers\.0\.self_attn\.sinks"):
        load(ready(tiny))


def test_a_tensor_of_another_shape_is_named(tiny: Path) -> None:
    edit_tensors(tiny, model__norm__weight=torch.ones(49))
    with pytest.raises(BadModelFile, match=r"'model\.norm\.weight' has shape \[49\], not \[48\]"):
        load(ready(tiny))


def test_weights_of_more_layers_than_the_config_says_are_refused(tiny: Path) -> None:
    edit_config(tiny, num_hidden_layers=2)
    with pytest.raises(UnsupportedModel, match=r"model\.layers\.2\."):
        load(ready(tiny))


def test_a_config_of_impossible_size_allocates_nothing(tiny: Path) -> None:
    edit_config(tiny, hidden_size=2**18, intermediate_size=2**20, num_hidden_layers=4096, head_dim=4096)
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


@pytest.mark.parametrize("config", ["[]", "{", '{"model_type": "gemma3_text"}', '{"model_type": "llama", "head_dim": 3}'])
def test_a_bad_config_is_refused(config: str, tiny: Path) -> None:
    (tiny / "config.json").write_text(config)
    assert native.refusal(ready(tiny), LoadOptions()) is not None
    with pytest.raises((BadModelFile, UnsupportedModel)):
        load(ready(tiny))


@pytest.fixture
def as_gguf(tiny: Path) -> Path:
    """The tiny llama as F32 GGUF, beside its Hugging Face files; the demo's tokenizer.json names a known kind."""
    path = tiny / "tiny-f32.gguf"
    convert(read_source(tiny), FORMATS["f32"], path, lambda *_: None)
    return path


def test_a_gguf_gives_the_very_logits_of_its_source(as_gguf: Path) -> None:
    """The rows of q and k, weights and biases, come back into their order."""
    ids = list(range(40))
    source = [entry.values for entry in load(ready(as_gguf.parent)).score(ids)]
    found = [entry.values for entry in load(ready(as_gguf.parent, as_gguf)).score(ids)]
    assert np.array_equal(found, source)


def test_a_gguf_beside_the_config_of_another_model_is_refused(as_gguf: Path) -> None:
    edit_config(as_gguf.parent, model_type="qwen2", architectures=["Qwen2ForCausalLM"], mlp_bias=False)
    refusal = native.refusal(ready(as_gguf.parent, as_gguf), LoadOptions())
    assert "'llama'" in (refusal or "")
    assert "'qwen2'" in (refusal or "")


def test_quantized_types_that_need_llama_cpp_are_refused_with_the_remedy(
    as_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q4 = GGMLQuantizationType.Q4_0
    data = bytearray(as_gguf.read_bytes())
    # The type of a tensor follows its name, its count of dimensions and the dimensions in the header.
    name = b"blk.0.attn_v.weight"
    at = data.index(name) + len(name) + 4 + 2 * 8
    assert struct.unpack_from("<I", data, at) == (0,)
    struct.pack_into("<I", data, at, int(q4))
    rows = data.index(name) + len(name) + 4
    struct.pack_into("<2Q", data, rows, 64, 12)
    as_gguf.write_bytes(data)
    refusal = native.refusal(ready(as_gguf.parent, as_gguf), LoadOptions())
    assert refusal is not None


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
