"""The folded model is another one with the same logits, and needs one rotation at run time."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packed_models import logits, opened, tiny

from runner.errors import UsageError
from runner.model_config.families import FAMILIES
from runner.quant.mq.basis import FoldedWeights, config_changes, in_basis, stored_rotation, stored_rows
from runner.quant.mq.rotation import rotate
from tests.backends.native.tiny_models import TINY

_HEADS = {"hidden_size": 48, "intermediate_size": 76, "num_attention_heads": 6, "head_dim": 8}


# Of longrope, whose factors are as many as half of what is turned, there is one shape alone.
FOLDABLE = [
    name
    for name, (model_type, _) in TINY.items()
    if FAMILIES[model_type].norms == "before"
    and not FAMILIES[model_type].is_gated
    and not name.endswith(("short-rope", "long-rope"))
]


@pytest.mark.parametrize("name", FOLDABLE)
def test_folding_changes_no_logits(tmp_path: Path, name: str) -> None:
    weights, config = opened(tiny(tmp_path, name, dtype=torch.float32))
    before = logits(config, weights)
    after = logits(dataclasses.replace(config, tie_word_embeddings=False), FoldedWeights(weights, config))
    assert np.abs(after - before).max() < 2e-5 * np.abs(before).max()


@pytest.mark.parametrize("name", ["gemma3", "olmo2", "qwen3-5"])
def test_norms_after_a_branch_and_gates_are_refused_with_the_way_that_works(tmp_path: Path, name: str) -> None:
    weights, config = opened(tiny(tmp_path, name))
    with pytest.raises(UsageError, match=config.model_type) as caught:
        in_basis(weights, config, "folded")
    assert "--rotation online" in caught.value.hint
    assert in_basis(weights, config, "online") is weights


def test_sizes_that_are_no_powers_of_two_are_rotated_in_smaller_blocks(tmp_path: Path) -> None:
    weights, config = opened(tiny(tmp_path, "llama-biases", dtype=torch.float32, **_HEADS))
    before = logits(config, weights)
    after = logits(dataclasses.replace(config, tie_word_embeddings=False), FoldedWeights(weights, config))
    assert np.abs(after - before).max() < 2e-5 * np.abs(before).max()


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    weights, config = opened(tiny(tmp_path_factory.mktemp("model"), "qwen2", dtype=torch.float32))
    return weights, FoldedWeights(weights, config)


def test_every_matrix_but_the_queries_and_keys_of_rotary_heads_is_another(folded: tuple[Any, Any]) -> None:
    weights, view = folded
    same = [name for name in weights.shapes if np.array_equal(weights.read(name), view.read(name))]
    # What is added to queries and keys stays: the rotary embedding comes after it.
    assert {name.split("self_attn.")[1] for name in same} == {"q_proj.bias", "k_proj.bias"}


def test_gains_become_one_and_the_output_matrix_a_tensor_of_its_own(folded: tuple[Any, Any]) -> None:
    weights, view = folded
    assert "lm_head.weight" in view.shapes.keys() - weights.shapes.keys()
    for name in view.shapes:
        if "norm" in name:
            assert (view.read(name) == 1).all()
    assert not np.allclose(view.read("lm_head.weight"), view.read("model.embed_tokens.weight"))


def test_only_the_values_of_a_joined_matrix_are_turned_within_their_heads(tmp_path: Path) -> None:
    weights, config = opened(tiny(tmp_path, "phi3", dtype=torch.float32))
    view, name = FoldedWeights(weights, config), "model.layers.0.self_attn.qkv_proj.weight"
    gain = torch.from_numpy(np.array(weights.read("model.layers.0.input_layernorm.weight")))
    inward = rotate(torch.from_numpy(np.array(weights.read(name))) * gain, 64)
    first = (config.num_heads + config.num_kv_heads) * config.head_dim
    found = torch.from_numpy(view.read(name))
    assert torch.allclose(found[:first], inward[:first], atol=1e-6)
    assert torch.allclose(found[first:], rotate(inward[first:].T, config.head_dim).T, atol=1e-6)
    for start, stop in ((0, 5), (first - 3, first + 7), (first + 1, first + 2)):
        assert np.allclose(view.read_rows(name, start, stop), found[start:stop], atol=1e-6)


@pytest.mark.parametrize("name", ["model.layers.1.mlp.down_proj.weight", "model.layers.0.self_attn.v_proj.weight"])
@pytest.mark.parametrize(("start", "stop"), [(0, 1), (3, 40), (33, 64)])
def test_rows_are_those_of_the_whole_tensor(folded: tuple[Any, Any], name: str, start: int, stop: int) -> None:
    for weights in folded:
        assert np.allclose(weights.read_rows(name, start, stop), weights.read(name)[start:stop], atol=1e-6)


def test_stored_rows_are_rotated_along_the_input(folded: tuple[Any, Any]) -> None:
    weights, _ = folded
    name = "model.layers.0.mlp.up_proj.weight"
    stored = stored_rows(weights, name, 64, 8, 24, torch.device("cpu"))
    assert torch.allclose(stored, rotate(torch.from_numpy(np.array(weights.read(name))), 64)[8:24], atol=1e-6)


def test_folded_files_rotate_at_the_input_of_down_alone(folded: tuple[Any, Any]) -> None:
    for name, shape in folded[1].shapes.items():
        if len(shape) == 2:
            assert stored_rotation(name, shape[1], "online") == min(256, shape[1] & -shape[1])
            assert (stored_rotation(name, shape[1], "folded") > 1) == ("down_proj" in name)


def test_only_a_tied_model_has_another_configuration_when_folded(tmp_path: Path) -> None:
    weights, tied = opened(tiny(tmp_path / "tied", "llama-tied"))
    _, untied = opened(tiny(tmp_path / "untied", "llama-biases"))
    assert config_changes(tied, "folded") == {"tie_word_embeddings": False}
    assert config_changes(untied, "folded") == config_changes(tied, "online") == {}
    assert in_basis(weights, tied, "online") is weights
