"""Whole models quantized with calibration: better than without, the same after an interruption, and named as such."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from runner.calibration.producer import CalibratedProducer, calibrated
from runner.errors import BadModelFile, DoesNotFit, UnsupportedModel, UsageError
from runner.machine import Limits
from runner.model_config import parse_model_config
from runner.quant.json_file import read_json
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.mq.plan import PackedPlan
from runner.quant.mq.quantize import Packed
from runner.quant.mq.recipe import Recipe, Rule, recipe_of
from runner.quant.mq.source import PackedSource
from tests.quant.mq.packed_models import logits, opened, packed, tiny

TOKENS = 2048


def divergence(source: Path, output: Path) -> float:
    """Mean KL divergence of the packed model to its source, over ids that neither was calibrated on."""
    weights, config = opened(source)
    own_config = parse_model_config(read_json(output / "config.json"))
    wanted, found = logits(config, weights), logits(own_config, PackedWeights(output))
    p, q = (torch.tensor(one).log_softmax(-1) for one in (wanted, found))
    return float((p.exp() * (p - q)).sum(-1).mean())


def make(source: Path, output: Path, text: Path | None = None, **more: Any) -> Packed:
    return packed(source, output, more.pop("form", "mq4"), make_producer=calibrated(text, TOKENS), **more)


@pytest.mark.parametrize(
    ("name", "rotation"),
    [
        *itertools.product(("qwen3", "qwen2", "llama-biases", "mistral-window", "phi3"), ("online", "folded")),
        ("gemma3", "online"),
        ("gemma4", "online"),
        ("olmo2", "online"),
        ("qwen3-5", "online"),
        ("smollm3", "online"),
        ("granite", "folded"),
        ("ministral3", "folded"),
    ],
)
def test_calibration_brings_the_model_nearer_to_its_source(tmp_path: Path, name: str, rotation: str) -> None:
    source = tiny(tmp_path / "source", name, num_hidden_layers=2)
    packed(source, tmp_path / "plain", "mq4", rotation=rotation)
    made = make(source, tmp_path / "calibrated", rotation=rotation)
    assert made.rotation == rotation
    assert divergence(source, tmp_path / "calibrated") < divergence(source, tmp_path / "plain")


def test_layers_with_inputs_that_see_what_others_keep_are_calibrated_as_others_are(tmp_path: Path) -> None:
    """The last of three layers sees what the first keeps."""
    layers = ["full_attention", "sliding_attention", "full_attention"]
    more = {"num_hidden_layers": 3, "layer_types": layers, "num_kv_shared_layers": 1}
    source = tiny(tmp_path / "source", "gemma4-inputs-by-layer-and-shared-caches", **more)
    plain, made = packed(source, tmp_path / "plain", "mq4"), make(source, tmp_path / "calibrated")
    differ = {name for name, one in made.tensors.items() if one.sha256 != plain.tensors[name].sha256}
    assert differ == {name for name, one in made.tensors.items() if one.format == "mq4"}
    assert {one.format for name, one in made.tensors.items() if "per_layer" in name and "norm" not in name} == {"mq6"}
    assert divergence(source, tmp_path / "calibrated") < divergence(source, tmp_path / "plain")


def test_matrices_of_delta_nets_are_calibrated_as_those_of_attention_are(tmp_path: Path) -> None:
    source = tiny(tmp_path / "source", "qwen3-5", num_hidden_layers=2)
    plain, made = packed(source, tmp_path / "plain", "mq4"), make(source, tmp_path / "calibrated")
    differ = {name for name, one in made.tensors.items() if one.sha256 != plain.tensors[name].sha256}
    in_layers = {name for name, one in made.tensors.items() if one.format == "mq4"}
    assert differ == in_layers
    assert {f"model.layers.0.linear_attn.{name}.weight" for name in ("in_proj_qkv", "in_proj_z", "out_proj")} < differ


def test_a_text_of_the_users_own_serves_and_is_named(tmp_path: Path) -> None:
    source, text = tiny(tmp_path / "source", num_hidden_layers=1), tmp_path / "mine.txt"
    text.write_text("All work and no play makes Jack a dull boy. " * 100)
    make(source, tmp_path / "out", text)
    manifest = json.loads((tmp_path / "out" / "runner.json").read_text())
    assert manifest["calibration"]["text"]["name"] == "mine.txt"
    assert manifest["calibration"]["method"] == "gptq"


def test_a_text_that_is_not_there_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.txt"):
        calibrated(tmp_path / "none.txt", TOKENS)


class _Stops:
    """A producer that is interrupted after some tensors."""

    def __init__(self, producer: CalibratedProducer, after: int) -> None:
        self._producer, self._after = producer, after

    def calibration(self, plan: PackedPlan) -> Any:
        return self._producer.calibration(plan)

    def produce(self, *arguments: Any) -> Iterator[Any]:
        for number, item in enumerate(self._producer.produce(*arguments)):
            if number == self._after:
                raise KeyboardInterrupt
            yield item


def interrupted(source: Path, output: Path) -> None:
    """A run that is stopped after its first rounded group."""

    def stop(stage: str, _done: int, _total: int) -> None:
        if stage == "calibrating":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(source, output, on_stage=stop)


def assert_same(tmp_path: Path) -> None:
    """What was interrupted and ended later is what was made at once."""
    whole, resumed = (tmp_path / name / "model.safetensors" for name in ("whole", "out"))
    assert whole.read_bytes() == resumed.read_bytes()


@pytest.mark.parametrize("after", [3, 9, 14, 20])
def test_an_interrupted_run_ends_as_an_uninterrupted_one(tmp_path: Path, after: int) -> None:
    source = tiny(tmp_path / "source", num_hidden_layers=2)
    make(source, tmp_path / "whole")
    real = calibrated(None, TOKENS)

    def stopping(opened_source: PackedSource, device: torch.device) -> Any:
        return _Stops(real(opened_source, device), after)

    with pytest.raises(KeyboardInterrupt):
        packed(source, tmp_path / "out", "mq4", make_producer=stopping)
    make(source, tmp_path / "out")
    assert_same(tmp_path)


def test_formats_may_differ_within_a_group(tmp_path: Path) -> None:
    source = tiny(tmp_path / "source", num_hidden_layers=2)
    made = make(source, tmp_path / "out", bpw=5.0)
    formats = {name: tensor.format for name, tensor in made.tensors.items()}
    assert formats["model.layers.0.self_attn.v_proj.weight"] == "mq6"
    assert formats["model.layers.0.self_attn.q_proj.weight"] in ("mq4", "mq6")
    assert made.bpw_body <= 5.0
    assert np.isfinite(divergence(source, tmp_path / "out"))


def with_rules(*rules: tuple[str, str]) -> Recipe:
    base = recipe_of("mq4")
    return replace(base, rules=(*(Rule(tensors=pattern, format=form) for pattern, form in rules), *base.rules))


def test_a_matrix_may_be_kept_within_a_group(tmp_path: Path) -> None:
    """The first of a group at that: the others are still measured and stored in the basis that the plan says."""
    source = tiny(tmp_path / "source", num_hidden_layers=2)
    make(source, tmp_path / "whole")
    made = make(source, tmp_path / "out", form=with_rules(("*.q_proj.weight", "keep"), ("*.gate_proj.weight", "keep")))
    assert made.tensors["model.layers.0.self_attn.q_proj.weight"].is_kept
    assert made.tensors["model.layers.0.self_attn.k_proj.weight"].format == "mq4"
    assert divergence(source, tmp_path / "out") < divergence(source, tmp_path / "whole")


@pytest.mark.parametrize("context", [1, 8])
def test_a_context_that_is_shorter_than_a_chat_begins_is_enough(tmp_path: Path, context: int) -> None:
    source = tiny(tmp_path / "source", num_hidden_layers=1, max_position_embeddings=context)
    (source / "chat_template.jinja").write_text("A system prompt of many letters. {{ messages[0]['content'] }}")
    make(source, tmp_path / "out")
    calibration = read_json(tmp_path / "out" / "runner.json")["calibration"]
    assert (calibration["sequence_length"], calibration["tokens"]) == (context, TOKENS)


def test_what_no_matrix_was_calibrated_on_is_not_claimed(tmp_path: Path) -> None:
    source = tiny(tmp_path / "source", num_hidden_layers=1, hidden_size=48, intermediate_size=72, head_dim=12)
    made = make(source, tmp_path / "out")
    assert all(tensor.is_kept for tensor in made.tensors.values())
    assert read_json(tmp_path / "out" / "runner.json")["calibration"] is None


def test_the_tokens_that_are_told_are_those_of_the_text(tmp_path: Path) -> None:
    source, text = tiny(tmp_path / "source", num_hidden_layers=1), tmp_path / "mine.txt"
    text.write_text("a short text " * 30)
    make(source, tmp_path / "out", text)
    assert read_json(tmp_path / "out" / "runner.json")["calibration"]["tokens"] == 3 * 128


def test_a_text_that_cannot_serve_is_refused_before_any_work(tmp_path: Path) -> None:
    source, text = tiny(tmp_path / "source", num_hidden_layers=1), tmp_path / "mine.txt"
    text.write_text("short")
    with pytest.raises(UsageError, match="5 tokens"):
        make(source, tmp_path / "out", text)
    assert not (tmp_path / "out.partial").exists()


def changed(source: Path, name: str, value: float) -> None:
    tensors = load_file(source / "model.safetensors")
    tensors[name][1, 2] = value
    save_file(tensors, source / "model.safetensors", {"format": "pt"})


UP = "model.layers.0.mlp.up_proj.weight"


def test_activations_without_a_finite_square_are_told_with_the_way_out(tmp_path: Path) -> None:
    source = tiny(tmp_path / "source", num_hidden_layers=1)
    changed(source, UP, 1e30)
    with pytest.raises(UnsupportedModel, match=r"down_proj\.weight'.* not finite") as caught:
        make(source, tmp_path / "out")
    assert "--no-calibrate" in caught.value.hint


def test_a_weight_that_is_no_number_is_named(tmp_path: Path) -> None:
    source, text = tiny(tmp_path / "source", num_hidden_layers=1), tmp_path / "mine.txt"
    text.write_text("All work and no play makes Jack a dull boy. " * 100)
    changed(source, UP, float("inf"))
    with pytest.raises(UnsupportedModel, match="NaN"):
        make(source, tmp_path / "out")
    with pytest.raises(BadModelFile, match=r"up_proj\.weight"):
        make(source, tmp_path / "out", text)


def test_text_that_was_written_is_not_written_again(tmp_path: Path) -> None:
    source = tiny(tmp_path / "source", num_hidden_layers=1)
    make(source, tmp_path / "whole")

    interrupted(source, tmp_path / "out")
    stages: list[str] = []
    make(source, tmp_path / "out", on_stage=lambda stage, _done, _total: stages.append(stage))
    assert "loading" not in stages
    assert stages.count("writing text") == 1
    assert_same(tmp_path)


@pytest.mark.parametrize("damage", ['"x"', "[[1, 2]]", "[[1], [2, 3]]", str([[9999] * 128] * 16), str([[2**70]])])
def test_text_that_was_kept_and_is_damaged_is_written_again(tmp_path: Path, damage: str) -> None:
    source = tiny(tmp_path / "source", num_hidden_layers=1)
    make(source, tmp_path / "whole")

    interrupted(source, tmp_path / "out")
    journal = tmp_path / "out.partial" / "journal.jsonl"
    lines = journal.read_text().splitlines()
    at = next(index for index, line in enumerate(lines) if '"kept"' in line)
    lines[at] = f'{{"kept": {json.dumps(json.loads(lines[at])["kept"])}, "value": {damage}}}'
    journal.write_text("\n".join(lines) + "\n")
    make(source, tmp_path / "out")
    assert_same(tmp_path)


@pytest.mark.parametrize(("name", "key"), [("config.json", "rms_norm_eps"), ("tokenizer_config.json", "note")])
def test_a_file_beside_the_weights_that_changes_starts_over(tmp_path: Path, name: str, key: str) -> None:
    source = tiny(tmp_path / "source", num_hidden_layers=1)

    interrupted(source, tmp_path / "out")
    beside = source / name
    plain = json.loads(beside.read_text()) if beside.exists() else {}
    beside.write_text(json.dumps({**plain, key: 1e-3}))
    notes: list[str] = []
    make(source, tmp_path / "out", on_note=notes.append)
    assert any("starting over" in note for note in notes)


def test_a_model_too_large_to_write_is_calibrated_on_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, text = tiny(tmp_path / "source", num_hidden_layers=1), tmp_path / "mine.txt"
    text.write_text("All work and no play makes Jack a dull boy. " * 100)
    limits = Limits(memory_bytes=200_000, memory_left_bytes=100_000)  # of a container
    monkeypatch.setattr("runner.machine.gpu.cgroup_limits", lambda: limits)
    with pytest.raises(DoesNotFit, match="whole model") as caught:
        make(source, tmp_path / "out")
    assert "--calibrate FILE" in caught.value.hint
    assert make(source, tmp_path / "out", text).path.is_dir()


def test_memory_that_runs_out_while_calibrating_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny(tmp_path / "source", num_hidden_layers=1)

    def measure(*_arguments: Any) -> Any:
        return torch.empty(2**58)

    monkeypatch.setattr("runner.calibration.producer.measure", measure)
    with pytest.raises(DoesNotFit, match="out of memory") as caught:
        make(source, tmp_path / "out")
    assert "--calibration-tokens" in caught.value.hint
    assert (tmp_path / "out.partial").is_dir()
