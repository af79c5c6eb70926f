"""Whole models quantized with calibration: better than without, the same after an interruption, and named as such."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runner.calibration.producer import CalibratedProducer, calibrated
from runner.errors import UsageError
from runner.quant.json_file import read_json
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.mq.quantize import Packed
from runner.quant.mq.source import PackedSource
from tests.quant.mq.packed_models import logits, opened, packed, tiny

TOKENS = 2048


def divergence(source: Path, output: Path) -> float:
    """Mean KL divergence of the packed model to its source, over ids that neither was calibrated on."""
    weights, config = opened(source)
    wanted, found = logits(config, weights), logits(config, PackedWeights(output))
    p, q = (torch.tensor(one).log_softmax(-1) for one in (wanted, found))
    return float((p.exp() * (p - q)).sum(-1).mean())


def make(source: Path, output: Path, text: Path | None = None, **more: Any) -> Packed:
    return packed(source, output, more.pop("form", "mq4"), make_producer=calibrated(text, TOKENS), **more)


@pytest.mark.parametrize("rotation", ["online", "folded"])
@pytest.mark.parametrize("name", ["qwen3", "qwen2", "llama-biases", "mistral-window"])
def test_calibration_brings_the_model_nearer_to_its_source(tmp_path: Path, name: str, rotation: str) -> None:
    source = tiny(tmp_path / "source", name, num_hidden_layers=2)
    packed(source, tmp_path / "plain", "mq4", rotation=rotation)
    made = make(source, tmp_path / "calibrated", rotation=rotation)
    config = read_json(tmp_path / "calibrated" / "config.json")
    assert made.rotation == rotation
    if config.get("tie_word_embeddings") == read_json(source / "config.json").get("tie_word_embeddings"):
        assert divergence(source, tmp_path / "calibrated") < divergence(source, tmp_path / "plain")


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

    @property
    def calibration(self) -> Any:
        return self._producer.calibration

    def produce(self, *arguments: Any) -> Iterator[Any]:
        for number, item in enumerate(self._producer.produce(*arguments)):
            if number == self._after:
                raise KeyboardInterrupt
            yield item


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
    whole, resumed = (tmp_path / name / "model.safetensors" for name in ("whole", "out"))
    assert whole.read_bytes() == resumed.read_bytes()


def test_formats_may_differ_within_a_group(tmp_path: Path) -> None:
    source = tiny(tmp_path / "source", num_hidden_layers=2)
    made = make(source, tmp_path / "out", bpw=5.0)
    formats = {name: tensor.format for name, tensor in made.tensors.items()}
    assert formats["model.layers.0.self_attn.v_proj.weight"] == "mq6"
    assert formats["model.layers.0.self_attn.q_proj.weight"] in ("mq4", "mq6")
    assert made.bpw_body <= 5.05
    assert np.isfinite(divergence(source, tmp_path / "out"))
