"""How far stored weights are from those they were made from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runner.errors import BadModelFile
from runner.evaluation.weight_error import layer_matrices, mean_relative_error, relative_error
from runner.model_config import parse_model_config
from runner.quant.formats import format_of
from runner.quant.json_file import read_json
from runner.quant.quantize import quantize_model
from runner.quant.weights import open_source


class Rows:
    """Matrices in memory."""

    def __init__(self, **tensors: np.ndarray) -> None:
        self._tensors = tensors
        self.shapes = {name: tensor.shape for name, tensor in tensors.items()}

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        return self._tensors[name][start:stop]


def test_the_error_is_relative_to_the_weights() -> None:
    w = np.random.default_rng(0).normal(0, 3, (50, 40)).astype(np.float32)
    for scale in (1e-3, 1.0, 1e3):
        source, stored = Rows(w=w * scale), Rows(w=w * scale * 1.1)
        assert relative_error(source, stored, "w") == pytest.approx(0.01, rel=1e-4)
        assert relative_error(source, source, "w") == 0


def test_bfloat16_bits_are_read_as_numbers() -> None:
    w = np.array([[1.0, -2.5, 0.15625, 0]], np.float32)
    bits = (w.view(np.uint32) >> 16).astype(np.uint16)
    assert relative_error(Rows(w=w), Rows(w=bits), "w") == 0


def test_large_matrices_are_read_in_parts_and_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    w = np.random.default_rng(1).normal(0, 1, (64, 16)).astype(np.float32)
    noisy = w + np.float32(0.01) * np.random.default_rng(2).normal(0, 1, w.shape).astype(np.float32)
    whole = relative_error(Rows(w=w), Rows(w=noisy), "w")
    monkeypatch.setattr("runner.evaluation.weight_error._ROWS_BYTES", 1000)
    assert relative_error(Rows(w=w), Rows(w=noisy), "w") == pytest.approx(whole)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(BadModelFile, match="'w'"):
        relative_error(Rows(w=np.ones((2, 3))), Rows(w=np.ones((3, 2))), "w")


def test_matrices_count_as_many_times_as_they_have_weights() -> None:
    assert mean_relative_error({"a": 0.1, "b": 0.4}, {"a": (3, 10), "b": (1, 10), "c": (9, 9)}) == pytest.approx(0.175)


def test_formats_of_a_real_model_have_the_errors_of_their_bits(demo_directory: Path, tmp_path: Path) -> None:
    config = parse_model_config(read_json(demo_directory / "config.json"))
    source = open_source(demo_directory, demo_directory / "demo-q8_0.gguf", config)
    names = layer_matrices(source)
    assert len(names) == 6 * 7
    found = {}
    for name in ("q4_0", "q6_k"):
        made = quantize_model(
            demo_directory / "demo-q8_0.gguf", format_of(name), tmp_path / name, force=False, on_stage=lambda *_: None
        )
        stored = open_source(made.path, made.weights, config)
        found[name] = mean_relative_error(
            {matrix: relative_error(source, stored, matrix) for matrix in names[:7]}, source.shapes
        )
    # a Gaussian in Q4_0 has 0.0075 or so; two bits more are sixteen times less
    assert 0.004 < found["q4_0"] < 0.012
    assert 10 < found["q4_0"] / found["q6_k"] < 40
