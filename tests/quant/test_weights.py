"""Weights by Hugging Face name, whole and in rows, from whatever file they lie in."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hf_directories import QWEN35, random_model
from safetensors.numpy import save_file

from runner.backends.native.loader import unfilled
from runner.errors import BadModelFile, UnsupportedModel
from runner.model_config import ModelConfig, parse_model_config
from runner.quant.convert import convert, read_source
from runner.quant.formats import FORMATS
from runner.quant.json_file import read_json
from runner.quant.mq.plan import make_plan
from runner.quant.mq.recipe import recipe_of
from runner.quant.quantize import quantize_model
from runner.quant.weights import PLAIN_GGUF_TYPES, GgufWeights, SafetensorsWeights, is_decodable, open_source


@pytest.fixture(
    scope="module",
    params=[("llama", {"attention_bias": True}), ("smollm3", {"pad_token_id": 0}), ("qwen3_5_text", QWEN35)],
)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, demo_directory: Path
) -> tuple[Path, ModelConfig]:
    """Models of which GGUF has rows, or columns, in another order, and some tensors as a function of their values."""
    directory = tmp_path_factory.mktemp("model")
    model_type, options = request.param
    random_model(directory, demo_directory, model_type, **options)
    return directory, parse_model_config(read_json(directory / "config.json"))


def test_rows_of_a_gguf_are_those_of_its_source(model: tuple[Path, ModelConfig], tmp_path: Path) -> None:
    directory, config = model
    convert(read_source(directory), FORMATS["f32"], tmp_path / "f32.gguf", lambda *_: None)
    source, found = open_source(directory, None, config), open_source(directory, tmp_path / "f32.gguf", config)
    assert isinstance(found, GgufWeights)
    assert found.shapes == source.shapes
    for name in source.shapes:
        read = found.read(name)
        changed = config.norm_offset and name.endswith(("norm.weight", "A_log"))  # and back again, in float32
        assert np.allclose(read, source.read(name), rtol=0, atol=1e-6 if changed else 0)
        assert np.array_equal(found.read_rows(name, 3, 27), read[3:27])
    assert set(found.bits.values()) == set(source.bits.values()) == {32.0}


def test_rows_never_share_memory_with_the_file(model: tuple[Path, ModelConfig]) -> None:
    weights = open_source(model[0], None, model[1])
    rows = weights.read_rows("model.layers.0.mlp.up_proj.weight", 0, 4)
    rows[:] = 0
    assert weights.read("model.layers.0.mlp.up_proj.weight")[:4].any()


def test_types_and_bits_are_those_of_the_file(demo_directory: Path, tmp_path: Path) -> None:
    quantize_model(demo_directory, FORMATS["q4_k_m"], tmp_path / "q4.gguf", force=False, on_stage=lambda *_: None)
    config = parse_model_config(read_json(demo_directory / "config.json"))
    weights = open_source(demo_directory, tmp_path / "q4.gguf", config)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert (weights.types[name], weights.bits[name]) == ("Q4_K", 4.5)
    assert weights.types["model.norm.weight"] == "F32"
    assert isinstance(weights, GgufWeights)
    with pytest.raises(UnsupportedModel, match="has type Q") as raised:
        weights.require_types(PLAIN_GGUF_TYPES)
    assert not raised.value.hint  # what can run it is named when a backend is chosen


def test_safetensors_without_tensors_are_refused_by_what_they_lack(tmp_path: Path) -> None:
    """An empty file is sound, and one with the heads that draft for a model alone is too."""
    path, config = tmp_path / "model.safetensors", parse_model_config({"model_type": "llama", "num_hidden_layers": 1})
    save_file({}, path)
    with pytest.raises(BadModelFile, match="no tensor"):
        open_source(tmp_path, None, config)
    save_file({"mtp.norm.weight": np.ones(2, np.float32)}, path)
    for weights in (open_source(tmp_path, None, config), SafetensorsWeights((path,), config)):
        with pytest.raises(BadModelFile, match=r"lacks 'lm_head\.weight'"):
            unfilled(config, weights)


def test_layers_and_experts_beyond_all_tensors_are_refused_before_they_are_built(tmp_path: Path) -> None:
    path, options = tmp_path / "model.safetensors", {"num_hidden_layers": 2, "num_experts": 1024}
    config = parse_model_config({"model_type": "qwen3_moe", **options})
    save_file({f"model.layers.{n}.x": np.ones(1, np.float32) for n in range(97)}, path)
    weights = SafetensorsWeights((path,), config)
    for check in (partial(unfilled, config, weights), partial(make_plan, config, weights, recipe_of("mq4"), "online")):
        with pytest.raises(BadModelFile, match=r"has 97 tensors, and by config\.json there are more than 6146"):
            check()


def test_the_k_quants_can_be_decoded() -> None:
    assert all(is_decodable(kind) for kind in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q4_0", "Q8_0", "F32", "F16"))
    assert not is_decodable("Q8_K")


def test_a_gguf_whose_tensors_have_no_names_here_is_refused_with_what_reads_it(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="GGUF of a gemma3_text model") as raised:
        GgufWeights(tmp_path / "any.gguf", parse_model_config({"model_type": "gemma3_text"}))
    assert "--backend llamacpp" in raised.value.hint
