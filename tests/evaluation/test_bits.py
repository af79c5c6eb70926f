"""Bits a weight, from headers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from runner.evaluation.bits import BitsPerWeight, _of_gguf, bits_per_weight
from runner.quant.gguf_file import read_header
from runner.types import ReadyModel
from tests.backends.native import tiny_models
from tests.backends.native.tiny_wholes import make_whole


def test_a_checkpoint_in_float32_has_32_bits(tmp_path: Path) -> None:
    for name in ("qwen3", "llama-untied-one-kv-head"):
        directory = tiny_models.save(tiny_models.make(name), tmp_path / name)
        assert bits_per_weight(tiny_models.ready(directory)) == BitsPerWeight(total=32.0, body=32.0)


def test_a_table_of_inputs_by_layer_is_no_body(tmp_path: Path) -> None:
    model = tiny_models.make("gemma4-inputs-by-layer-and-shared-caches")
    path = tiny_models.save(model, tmp_path) / "model.safetensors"
    found = bits_per_weight(tiny_models.ready(tmp_path))
    assert found is not None
    assert (found.total, found.body) == pytest.approx((32, 32), rel=0.002)  # a scalar a layer besides
    tensors = load_file(path)
    name = "model.embed_tokens_per_layer.weight"
    save_file({**tensors, name: tensors[name].to(torch.bfloat16)}, path, {"format": "pt"})
    halved = bits_per_weight(tiny_models.ready(tmp_path))
    assert halved is not None
    assert halved.body == found.body
    assert halved.total < found.total


def test_of_a_multimodal_checkpoint_the_text_model_counts(tmp_path: Path) -> None:
    directory = tiny_models.save(make_whole("mistral3-mistral"), tmp_path)
    assert bits_per_weight(tiny_models.ready(directory)) == BitsPerWeight(total=32.0, body=32.0)


def test_a_head_that_drafts_is_not_counted(tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.make("qwen3"), tmp_path)
    path = directory / "model.safetensors"
    save_file({**load_file(path), "mtp.fc.weight": torch.zeros(64, 128)}, path, {"format": "pt"})
    assert bits_per_weight(tiny_models.ready(directory)) == BitsPerWeight(total=32.0, body=32.0)


def test_tables_of_the_rotary_embedding_are_no_weights(demo_directory: Path) -> None:
    tensors = list(read_header(demo_directory / "demo-q8_0.gguf").tensors)
    table = replace(tensors[0], name="rope_freqs.weight")
    assert _of_gguf([*tensors, table]) == _of_gguf(tensors)


def test_scales_count_and_metadata_does_not(demo_directory: Path) -> None:
    path = demo_directory / "demo-q8_0.gguf"
    model = ReadyModel(
        name="demo", format="gguf", weights=(path,), directory=path.parent, size_bytes=path.stat().st_size
    )
    bits = bits_per_weight(model)
    header = read_header(path)
    assert bits is not None
    assert bits.total == 8 * sum(tensor.size_bytes for tensor in header.tensors) / header.num_parameters
    assert 8.5 < bits.total < bits.body < 8.52  # Q8_0 is 8.5; the norms are float32
    embeddings = header.tensor("token_embd.weight")
    assert embeddings is not None
    rest = bits.total * header.num_parameters - 8 * embeddings.size_bytes
    assert bits.body == pytest.approx(rest / (header.num_parameters - embeddings.num_values))
