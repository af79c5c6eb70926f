"""FP8 checkpoints with one scale a matrix: what their matrices are, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from runner.errors import BadModelFile, UnsupportedModel
from runner.quant import fp8
from runner.quant.convert import read_source
from tests.backends.native.tiny_models import load, ready, save
from tests.backends.native.tiny_wholes import make_whole
from tests.quant.mq.packed_models import packed

IDS = [int(token) for token in np.random.default_rng(3).integers(0, 256, 41)]
CONFIG = {
    "activation_scheme": "static",
    "dequantize": False,
    "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"],
    "quant_method": "fp8",
    "weight_block_size": None,
}


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    """A tiny multimodal model in FP8, as Mistral AI publishes it, and one of the values that it has, in float32."""
    model = make_whole("mistral3-ministral3-tied")
    directories = save(model, tmp_path / "fp8"), save(model, tmp_path / "same")
    stored = load_file(directories[0] / "model.safetensors")
    same = dict(stored)
    for name in [name for name in stored if name.startswith("language_model") and name.endswith("_proj.weight")]:
        scale = stored[name].abs().max() / 448
        codes = (stored[name] / scale).to(torch.float8_e4m3fn)
        stored[name], same[name] = codes, codes.float() * scale
        stored[f"{name}_scale_inv"] = scale
        stored[name.replace(".weight", ".activation_scale")] = torch.tensor(0.01)
    for directory, tensors in zip(directories, (stored, same), strict=True):
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((directories[0] / "config.json").read_text())
    (directories[0] / "config.json").write_text(json.dumps({**config, "quantization_config": CONFIG}))
    return directories


def changed(directory: Path, **changes: torch.Tensor | None) -> None:
    """Put these in the place of the scale of the first layer's q_proj, or take it away."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    name = "language_model.model.layers.0.self_attn.q_proj.weight_scale_inv"
    del tensors[name]
    if (scale := changes["scale"]) is not None:
        tensors[name] = scale
    save_file(tensors, path, {"format": "pt"})


def test_every_code_is_what_torch_makes_of_it() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    wanted = codes.view(torch.float8_e4m3fn).float() * 0.375
    found = fp8.decode(codes.numpy(), 0.375)
    assert np.array_equal(found, wanted.numpy(), equal_nan=True)
    assert np.array_equal(np.signbit(found), np.signbit(wanted.numpy()))


def test_it_runs_as_its_values_in_float32_do(both: tuple[Path, Path]) -> None:
    found, wanted = (np.stack([entry.values for entry in load(ready(directory)).score(IDS)]) for directory in both)
    assert np.array_equal(found, wanted)


def test_a_packed_model_of_it_is_one_of_its_values(both: tuple[Path, Path], tmp_path: Path) -> None:
    made = [packed(directory, tmp_path / f"made-{directory.name}", "mq4").path for directory in both]
    first, second = (load_file(directory / "model.safetensors") for directory in made)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("scale", [None, torch.ones(2, 1), torch.ones((), dtype=torch.int32)])
def test_a_matrix_without_one_scale_is_refused_by_name(both: tuple[Path, Path], scale: torch.Tensor | None) -> None:
    changed(both[0], scale=scale)
    with pytest.raises(UnsupportedModel, match=r"layers\.0\.self_attn\.q_proj\.weight'") as caught:
        load(ready(both[0]))
    assert "BF16 version" in caught.value.hint


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_makes_no_sense_is_refused(both: tuple[Path, Path], scale: float) -> None:
    changed(both[0], scale=torch.tensor([scale]))
    with pytest.raises(BadModelFile, match=r"q_proj\.weight_scale_inv"):
        load(ready(both[0]))


def test_no_gguf_is_made_of_it(both: tuple[Path, Path]) -> None:
    with pytest.raises(UnsupportedModel, match="FP8") as caught:
        read_source(both[0])
    assert "mq4" in caught.value.hint
