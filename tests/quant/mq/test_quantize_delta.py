"""Packed models whose layers have delta nets: what is packed of one, what is kept, what a multimodal one sets aside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from packed_models import logits, opened, packed, tiny
from safetensors.torch import load_file, save_file

from runner.cli.app import main
from runner.model_config import parse_model_config
from runner.quant.json_file import read_json
from runner.quant.mq.budget import spend
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.mq.plan import make_plan
from runner.quant.mq.recipe import KEEP, recipe_of
from runner.quant.packed_files import HEAD_NAME, WEIGHTS_NAME
from tests.backends.native.tiny_models import save, stack_experts
from tests.backends.native.tiny_wholes import make_whole

NET = "model.layers.0.linear_attn."


@pytest.fixture(params=["qwen3_5", "qwen3_5_moe"])
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A multimodal checkpoint with a head that drafts."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 32}
    if request.param == "qwen3_5_moe":
        sizes |= {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}
    directory = save(make_whole(request.param, **sizes).to(torch.bfloat16), tmp_path / "whole")
    if request.param == "qwen3_5_moe":
        stack_experts(directory)
    stored = load_file(directory / WEIGHTS_NAME)
    save_file({**stored, "mtp.fc.weight": torch.ones(4, 4)}, directory / WEIGHTS_NAME, {"format": "pt"})
    return directory


def test_large_matrices_are_packed_and_what_decides_how_a_state_fades_is_kept(tmp_path: Path) -> None:
    source = tiny(tmp_path / "source", "qwen3-5")
    made = packed(source, tmp_path / "out", "mq4")
    found = {name: (one.format, one.shape, one.input_rotation) for name, one in made.tensors.items()}
    assert found[f"{NET}in_proj_qkv.weight"] == ("mq4", (192, 64), 64)
    assert found[f"{NET}in_proj_z.weight"] == ("mq4", (128, 64), 64)
    assert found[f"{NET}out_proj.weight"] == ("mq4", (64, 128), 128)
    assert found["model.layers.1.self_attn.q_proj.weight"] == ("mq4", (256, 64), 64)  # queries and gates
    kept = {f"{NET}in_proj_a.weight": (4, 64), f"{NET}in_proj_b.weight": (4, 64), f"{NET}conv1d.weight": (192, 1, 4)}
    kept |= {f"{NET}A_log": (4,), f"{NET}dt_bias": (4,), f"{NET}norm.weight": (32,)}
    stored, weights = load_file(source / WEIGHTS_NAME), PackedWeights(made.path)
    for name, shape in kept.items():
        assert found[name] == ("bf16", shape, 1)
        assert np.array_equal(weights.read(name), stored[name].view(torch.uint16).numpy())
    assert not any("are kept" in note for note in made.warnings)
    assert made.num_parameters == sum(value.numel() for value in stored.values())


def test_a_budget_raises_matrices_of_delta_nets_too(tmp_path: Path) -> None:
    weights, config = opened(tiny(tmp_path / "source", "qwen3-5"))
    plan = make_plan(config, weights, recipe_of("mq4"), "online")
    recipe = spend(plan, plan.bpw_body + 1.5)
    for matrix, form in (("out_proj", "mq6"), ("in_proj_qkv", "mq6"), ("in_proj_a", KEEP), ("in_proj_b", KEEP)):
        assert recipe.format_for(f"{NET}{matrix}.weight") == form


def test_of_a_multimodal_model_the_text_model_is_packed_and_its_head_lies_beside_it(
    whole: Path, tmp_path: Path
) -> None:
    weights, config = opened(whole)
    made = packed(whole, tmp_path / "out", "mq8")
    assert all(name.startswith(("model.layers.", "model.embed", "model.norm", "lm_head")) for name in made.tensors)
    assert set(load_file(made.path / HEAD_NAME)) == {"mtp.fc.weight"}
    own = parse_model_config(read_json(made.path / "config.json"))
    assert own == config
    wanted, found = logits(config, weights), logits(own, PackedWeights(made.path))
    rows = np.square(found - wanted).mean(1)
    assert np.median(rows) < 0.01 * np.square(wanted).mean()  # a token that takes another expert is off by more


def test_it_is_made_shown_and_measured_by_the_commands(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("All work and no play makes Jack a dull boy. " * 40)
    made = ["quantize", str(whole), "--format", "mq8", "--output", str(out), "--no-calibrate"]
    assert main(made) == 0
    assert main(["verify", str(out)]) == 0
    capsys.readouterr()
    measured = ["eval", str(out), "--against", str(whole), "--text", str(text), "--window", "64", "-ngl", "0", "--json"]
    assert main(measured) == 0
    report = json.loads(capsys.readouterr().out)
    assert 0 < report["results"][0]["against"]["mean_kld"]["value"] < 0.2


def test_folding_is_refused_with_what_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tiny(tmp_path / "source", "qwen3-5")
    made = ["quantize", str(source), "--format", "mq4", "--rotation", "folded", "--output", str(tmp_path / "out")]
    assert main(made) == 2
    told = capsys.readouterr().err
    assert "cannot be folded" in told
    assert "--rotation online" in told
    assert not (tmp_path / "out").exists()
