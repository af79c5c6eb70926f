"""Packed models with experts: a tensor for each expert's matrix, in every basis, and what cannot be calibrated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from packed_models import SHAPE, logits, opened, packed, tiny
from safetensors.torch import load_file, save_file

from runner.calibration.producer import calibrated
from runner.cli.app import main
from runner.errors import BadModelFile, UnsupportedModel
from runner.model_config import ModelConfig, parse_model_config
from runner.quant.json_file import read_json
from runner.quant.mq.basis import in_basis
from runner.quant.mq.budget import spend
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.mq.plan import make_plan
from runner.quant.mq.recipe import recipe_of
from runner.quant.packed_files import WEIGHTS_NAME
from tests.backends.native.tiny_models import stack_experts

WIDTH = {"moe_intermediate_size": 64}
EXPERT = "model.layers.1.mlp.experts.3"
SHARED = "model.layers.1.mlp.shared_expert"


def source_of(name: str, directory: Path, **more: Any) -> Path:
    widths = WIDTH | ({"shared_expert_intermediate_size": 64} if name.startswith("qwen3-5") else {})
    widths |= {"global_head_dim": 64} if name.startswith("gemma4") else {}
    return tiny(directory, name, **(more if name.startswith(("gpt", "mixtral")) else widths | more))


def relative(found: NDArray[np.float64], wanted: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.square(found - wanted).mean() / np.square(wanted).mean()))


def config_of(directory: Path) -> ModelConfig:
    return parse_model_config(read_json(directory / "config.json"))


@pytest.mark.parametrize("name", ["qwen3-moe", "qwen3-moe-in-some-layers", "gpt-oss", "mixtral"])
def test_experts_in_eight_bits_give_nearly_the_logits_of_the_source_in_both_rotations(
    name: str, tmp_path: Path
) -> None:
    source = source_of(name, tmp_path / "source")
    weights, config = opened(source)
    wanted = logits(config, weights)
    folded = in_basis(weights, config, "folded")
    assert relative(logits(replace(config, tie_word_embeddings=False), folded), wanted) < 1e-5
    for rotation in ("online", "folded"):
        made = packed(source, tmp_path / rotation, "mq8", rotation=rotation)
        found = logits(config_of(made.path), PackedWeights(made.path))
        rows = np.sqrt(np.square(found - wanted).mean(1) / np.square(wanted).mean(1))
        assert 0 < np.median(rows) < 0.1  # a token that takes another expert is off by more


def test_each_matrix_of_an_expert_is_a_tensor_and_the_router_is_kept(tmp_path: Path) -> None:
    source = source_of("qwen3-moe", tmp_path / "source")
    made = packed(source, tmp_path / "out", "mq4")
    assert made.num_parameters == sum(value.numel() for value in load_file(source / WEIGHTS_NAME).values())
    found = {name: (one.format, one.shape, one.input_rotation) for name, one in made.tensors.items()}
    assert found[f"{EXPERT}.gate_proj.weight"] == ("mq4", (64, 64), 64)
    assert found[f"{EXPERT}.up_proj.weight"] == ("mq4", (64, 64), 64)
    assert found[f"{EXPERT}.down_proj.weight"] == ("mq4", (64, 64), 64)
    assert found["model.layers.1.mlp.gate.weight"] == ("bf16", (7, 64), 1)
    assert sum(".experts." in name for name in found) == 3 * 7 * 3


@pytest.mark.parametrize("is_stacked", [False, True])
def test_the_shared_expert_is_packed_as_the_others_are_and_its_gate_is_kept(is_stacked: bool, tmp_path: Path) -> None:
    source = source_of("qwen3-5-moe", tmp_path / "source")
    num_parameters = sum(value.numel() for value in load_file(source / WEIGHTS_NAME).values())
    if is_stacked:
        stack_experts(source)
    weights, config = opened(source)
    made = packed(source, tmp_path / "out", "mq4")
    assert made.num_parameters == num_parameters
    found = {name: (one.format, one.shape, one.input_rotation) for name, one in made.tensors.items()}
    for matrix in ("gate_proj", "up_proj", "down_proj"):
        assert found[f"{SHARED}.{matrix}.weight"] == found[f"{EXPERT}.{matrix}.weight"] == ("mq4", (64, 64), 64)
    assert found[f"{SHARED}_gate.weight"] == ("bf16", (1, 64), 1)
    assert found["model.layers.1.mlp.gate.weight"] == ("bf16", (7, 64), 1)
    assert found["model.layers.0.linear_attn.in_proj_a.weight"] == ("bf16", (4, 64), 1)
    assert not any("are kept" in note for note in made.warnings)
    eight = packed(source, tmp_path / "eight", "mq8")
    wanted, nearly = logits(config, weights), logits(config_of(eight.path), PackedWeights(eight.path))
    rows = np.sqrt(np.square(nearly - wanted).mean(1) / np.square(wanted).mean(1))
    assert 0 < np.median(rows) < 0.1  # a token that takes another expert is off by more


def test_experts_beside_an_mlp_are_packed_as_it_is_and_what_routes_is_kept(tmp_path: Path) -> None:
    source = source_of("gemma4-moe", tmp_path / "source", top_k_experts=7)  # all, so that no token takes another one
    weights, config = opened(source)
    made = packed(source, tmp_path / "out", "mq4")
    assert made.num_parameters == sum(value.numel() for value in load_file(source / WEIGHTS_NAME).values())
    found = {name: (one.format, one.shape, one.input_rotation) for name, one in made.tensors.items()}
    layer = "model.layers.1"
    assert found[f"{layer}.experts.3.gate_proj.weight"] == ("mq4", (64, 64), 64)
    assert found[f"{layer}.experts.3.down_proj.weight"] == ("mq4", (64, 64), 64)
    assert found[f"{layer}.mlp.down_proj.weight"] == ("mq4", (64, 96), 32)
    assert found[f"{layer}.router.proj.weight"] == ("bf16", (7, 64), 1)
    assert (found[f"{layer}.router.scale"][0], found[f"{layer}.router.per_expert_scale"][1]) == ("bf16", (7,))
    names = list(made.tensors)  # a layer's tensors lie together, as they are read
    assert names.index(f"{layer}.experts.6.down_proj.weight") < names.index("model.layers.2.mlp.gate_proj.weight")
    eight = packed(source, tmp_path / "eight", "mq8")
    # Without the first, which is padding: all zeros.
    wanted, nearly = (
        logits(*one)[1:] for one in ((config, weights), (config_of(eight.path), PackedWeights(eight.path)))
    )
    rows = np.sqrt(np.square(nearly - wanted).mean(1) / np.square(wanted).mean(1))
    assert 0 < rows.max() < 0.1


def test_a_budget_raises_an_mlp_before_the_experts_beside_it(tmp_path: Path) -> None:
    weights, config = opened(source_of("gemma4-moe", tmp_path / "source"))
    plan = make_plan(config, weights, recipe_of("mq4"), "online")

    def richer(bpw: float) -> dict[str, str]:
        made = make_plan(config, weights, spend(plan, bpw), "online")
        assert made.bpw_body <= bpw
        return {name: tensor.format for name, tensor in made.by_name.items()}

    little, everything = richer(plan.bpw_body + 0.4), richer(7.0)
    assert little["model.layers.0.mlp.down_proj.weight"] == "mq6"
    for formats in (little, everything):
        for layer in range(3):
            assert len({formats[f"model.layers.{layer}.experts.{expert}.down_proj.weight"] for expert in range(7)}) == 1
    assert little["model.layers.2.experts.0.gate_proj.weight"] == "mq4"
    assert everything["model.layers.2.experts.6.gate_proj.weight"] == "mq6"
    assert everything["model.layers.2.router.proj.weight"] == "bf16"


def test_the_router_of_a_folded_model_keeps_its_precision(tmp_path: Path) -> None:
    made = packed(source_of("gpt-oss", tmp_path / "source"), tmp_path / "out", "mq4", rotation="folded")
    found = {name: (one.format, one.input_rotation) for name, one in made.tensors.items()}
    assert found["model.layers.1.mlp.router.weight"] == ("f32", 1)
    assert found[f"{EXPERT}.gate_proj.weight"] == ("mq4", 1)
    assert found[f"{EXPERT}.down_proj.weight"] == ("mq4", 32)
    assert found[f"{EXPERT}.down_proj.bias"] == ("f32", 1)
    assert found["model.layers.1.self_attn.sinks"] == ("bf16", 1)


def test_experts_whose_rows_are_no_whole_groups_are_kept_and_told(tmp_path: Path) -> None:
    notes: list[str] = []
    made = packed(
        source_of("qwen3-moe", tmp_path / "source", moe_intermediate_size=40), tmp_path / "out", on_note=notes.append
    )
    assert made.tensors[f"{EXPERT}.down_proj.weight"].format == "bf16"
    assert made.tensors[f"{EXPERT}.up_proj.weight"].format == "mq8"
    assert any("down_proj.weight and 20 more: mq8 needs rows that are multiples of 32" in note for note in notes)


def test_a_budget_raises_the_shared_expert_with_the_others(tmp_path: Path) -> None:
    weights, config = opened(source_of("qwen3-5-moe", tmp_path / "source"))
    plan = make_plan(config, weights, recipe_of("mq4"), "online")
    for more in (0.25, 0.5, 0.75, 1.0):
        richer = make_plan(config, weights, spend(plan, plan.bpw_body + more), "online")
        assert richer.bpw_body <= plan.bpw_body + more
        mlps = [f"model.layers.{layer}.mlp" for layer in range(3)]
        of_layers = [
            {richer.by_name[f"{mlp}.{one}.down_proj.weight"].format for one in ("experts.3", "shared_expert")}
            for mlp in mlps
        ]
        assert of_layers[0] == {"mq6"}
        assert all(len(formats) == 1 for formats in of_layers)


def test_a_budget_raises_the_experts_of_a_layer_together(tmp_path: Path) -> None:
    weights, config = opened(source_of("qwen3-moe-in-some-layers", tmp_path / "source"))
    plan = make_plan(config, weights, recipe_of("mq4"), "online")
    richer = make_plan(config, weights, spend(plan, plan.bpw_body + 1.0), "online")
    assert richer.bpw_body <= plan.bpw_body + 1.0
    of_layer = {richer.by_name[f"model.layers.0.mlp.experts.{e}.down_proj.weight"].format for e in range(7)}
    assert of_layer == {"mq6"}
    everything = make_plan(config, weights, spend(plan, 7.0), "online").by_name
    assert everything["model.layers.1.mlp.down_proj.weight"].format == "mq6"
    assert everything["model.layers.2.mlp.experts.6.gate_proj.weight"].format == "mq6"


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        (f"{EXPERT}.up_proj.weight", None, BadModelFile, f"lacks '{EXPERT}.up_proj.weight'"),
        ("model.layers.1.mlp.up_proj.weight", torch.zeros(96, 64), UnsupportedModel, "such as 'model.layers.1.mlp.up"),
    ],
)
def test_sources_whose_experts_are_not_those_of_the_config_are_refused(
    name: str, value: torch.Tensor | None, error: type[Exception], words: str, tmp_path: Path
) -> None:
    source = source_of("qwen3-moe", tmp_path / "source")
    tensors = {**load_file(source / WEIGHTS_NAME), name: value}
    save_file({key: one for key, one in tensors.items() if one is not None}, source / WEIGHTS_NAME)
    with pytest.raises(error, match=words):
        packed(source, tmp_path / "out")


@pytest.mark.parametrize("name", ["qwen3-moe", "qwen3-5-moe", "gemma4-moe"])
def test_calibration_that_was_asked_for_is_refused_and_else_left_out_with_a_word(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = source_of(name, tmp_path / "source", num_hidden_layers=1)
    with pytest.raises(UnsupportedModel, match="has experts") as caught:
        packed(source, tmp_path / "out", "mq4", make_producer=calibrated(None, 1024))
    assert "--no-calibrate" in caught.value.hint
    assert main(["quantize", str(source), "-o", str(tmp_path / "asked"), "-q", "--calibration-tokens", "1024"]) != 0
    assert "has experts" in capsys.readouterr().err
    assert main(["quantize", str(source), "-o", str(tmp_path / "plain"), "-q"]) == 0
    assert "it is rounded without" in capsys.readouterr().err
    assert json.loads((tmp_path / "plain" / "runner.json").read_text())["calibration"] is None
    assert SHAPE["hidden_size"] == config_of(tmp_path / "plain").hidden_size
