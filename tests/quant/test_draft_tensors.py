"""Which tensors of a checkpoint are those of a head that drafts, and that conversion leaves them out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hf_directories import random_model
from safetensors.numpy import load_file, save_file

from runner.errors import UnsupportedModel
from runner.quant.convert import read_source
from runner.quant.draft_tensors import head_names, open_heads, write_heads
from runner.quant.packed_files import HEAD_NAME
from runner.quant.safetensors_file import Checkpoint
from runner.types import ReadyModel

OWN = {"model.layers.0.input_layernorm.weight", "model.norm.weight", "lm_head.weight"}
HEAD = {"model.layers.2.eh_proj.weight": (4, 8), "model.layers.2.mlp.up_proj.weight": (6, 4), "mtp.fc.weight": (4, 8)}


def ready(directory: Path, kind: str) -> ReadyModel:
    weights = (directory / "model.safetensors",)
    return ReadyModel(name="m", format=kind, weights=weights, directory=directory, size_bytes=1)  # type: ignore[arg-type]


@pytest.fixture
def directory(tmp_path: Path, demo_directory: Path) -> Path:
    """A model of two layers with tensors of heads."""
    random_model(tmp_path, demo_directory, "qwen3")
    random = np.random.default_rng(0)
    head = {name: random.normal(size=shape).astype(np.float32) for name, shape in HEAD.items()}
    save_file({**load_file(tmp_path / "model.safetensors"), **head}, tmp_path / "model.safetensors")
    return tmp_path


def test_names_of_heads_are_told_from_the_models_own() -> None:
    layer = {"model.layers.9.eh_proj.weight", "model.layers.9.mlp.up_proj.weight"}
    heads = {"mtp.fc.weight", "model.mtp_layers.0.input_proj.weight", *layer}
    assert head_names(OWN | heads) == heads
    assert not head_names(OWN | {"model.layers.9.mlp.up_proj.weight"})


def test_a_gguf_is_made_without_heads(directory: Path) -> None:
    stored = load_file(directory / "model.safetensors").keys()
    assert {tensor.source for tensor in read_source(directory).tensors} == stored - HEAD.keys()


def test_heads_are_written_as_they_are_stored(directory: Path) -> None:
    write_heads(Checkpoint.open(directory), directory / HEAD_NAME)
    wanted = load_file(directory / "model.safetensors")
    found = load_file(directory / HEAD_NAME)
    assert found.keys() == HEAD.keys()
    assert all(np.array_equal(found[name], wanted[name]) for name in HEAD)
    assert open_heads(ready(directory, "packed")).shapes == HEAD
    assert open_heads(ready(directory, "safetensors")).shapes == HEAD


def test_heads_of_a_type_that_is_not_read_are_written_too(tmp_path: Path) -> None:
    """At the end of all the work: a model that runs without them is no worse for them."""
    header = b'{"mtp.fc.weight":{"dtype":"F4","shape":[2,8],"data_offsets":[0,8]}}'
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"12345678")
    write_heads(Checkpoint.open(tmp_path), tmp_path / HEAD_NAME)
    assert Checkpoint.open(tmp_path / HEAD_NAME).dtype("mtp.fc.weight") == "F4"
    assert (tmp_path / HEAD_NAME).read_bytes().endswith(b"12345678")


@pytest.mark.parametrize("kind", ["packed", "gguf"])
def test_files_without_heads_are_refused(directory: Path, kind: str) -> None:
    with pytest.raises(UnsupportedModel, match="no multi-token head"):
        open_heads(ready(directory, kind))
