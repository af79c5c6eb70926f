"""The text model of a multimodal checkpoint against transformers' whole one, which no image is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from runner.backends import choose, native
from runner.config import LoadOptions
from runner.errors import BadModelFile, UnsupportedModel
from tests.backends.native.tiny_models import VOCAB, load, ready, save, stack_experts
from tests.backends.native.tiny_wholes import WHOLES, make_whole
from tests.quant.mq.packed_models import packed

IDS = [int(token) for token in np.random.default_rng(3).integers(0, VOCAB, 41)]


@pytest.fixture(params=WHOLES)
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, PreTrainedModel]:
    model = make_whole(request.param)
    return save(model, tmp_path), model


def newer_names(directory: Path) -> None:
    """Name the tensors as transformers has them in memory; of Gemma 4 it saves them so."""
    path = directory / "model.safetensors"
    stored = load_file(path)
    if any(name.startswith("model.") for name in stored):
        return
    tensors = {f"model.{name}": one for name, one in stored.items()}
    for old, new in (("language_model.model.", "language_model."), ("model.language_model.lm_head.", "lm_head.")):
        tensors = {name.replace(old, new): one for name, one in tensors.items()}
    save_file(tensors, path, {"format": "pt"})


@pytest.mark.parametrize("naming", ["older", "newer"])
def test_its_logits_are_those_of_the_whole_model(naming: str, whole: tuple[Path, PreTrainedModel]) -> None:
    directory, model = whole
    if naming == "newer":
        newer_names(directory)
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([IDS])).logits[0].float().numpy()
    backend = load(ready(directory))
    found = np.stack([entry.values for entry in backend.score(IDS)])
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    of_text = {*model.model.language_model.parameters(), *model.lm_head.parameters()}
    text_parameters = sum(parameter.numel() for parameter in of_text)
    assert backend.info.num_parameters == text_parameters
    n_scalars = sum("layer_scalar" in name for name, _ in model.named_buffers())
    assert backend.memory().weights_bytes == 4 * (text_parameters + n_scalars)


def test_it_goes_to_the_native_backend(whole: tuple[Path, PreTrainedModel]) -> None:
    choice = choose(ready(whole[0]), LoadOptions())
    assert (choice.name, choice.refused) == ("native", ())


def test_a_tensor_of_neither_part_is_refused_by_name(whole: tuple[Path, PreTrainedModel]) -> None:
    directory, _ = whole
    path = directory / "model.safetensors"
    save_file({**load_file(path), "depth_tower.weight": torch.zeros(2)}, path, {"format": "pt"})
    with pytest.raises(UnsupportedModel, match=r"depth_tower\.weight"):
        load(ready(directory))


def test_a_text_model_of_another_kind_is_refused_by_its_key(
    whole: tuple[Path, PreTrainedModel],
) -> None:
    directory, _ = whole
    config = json.loads((directory / "config.json").read_text())
    config["text_config"]["attn_logit_softcapping"] = 30.0
    (directory / "config.json").write_text(json.dumps(config))
    reason = native.refusal(ready(directory), LoadOptions())
    assert reason is not None
    assert "attn_logit_softcapping = 30.0" in reason


def test_embeddings_that_a_checkpoint_has_alone_come_with_how_to_tie_them(tmp_path: Path) -> None:
    directory = save(make_whole("mistral3-ministral3-tied"), tmp_path)
    config = json.loads((directory / "config.json").read_text())
    config["text_config"]["tie_word_embeddings"] = False
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadModelFile, match=r"lacks 'lm_head\.weight'") as caught:
        load(ready(directory))
    assert "set tie_word_embeddings to true" in caught.value.hint


@pytest.mark.parametrize("name", WHOLES)
def test_a_packed_model_of_it_is_its_text_model(name: str, tmp_path: Path) -> None:
    model = make_whole(name)
    source = save(model, tmp_path / "source", max_shard_size="50KB")
    made = packed(source, tmp_path / "made", "mq8")
    assert made.bpw < 10
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([IDS])).logits[0].float().numpy()
    backend = load(replace(ready(made.path), format="packed"))
    found = np.stack([entry.values for entry in backend.score(IDS)])
    assert np.square(found - expected).mean() < 0.01 * np.square(expected).mean()


def test_what_would_make_keys_of_layers_that_see_those_of_others_is_passed_over(tmp_path: Path) -> None:
    """As google/gemma-4-E2B-it is published; of layers that keep keys it must be there."""
    directory = save(make_whole("gemma4-small"), tmp_path)
    wanted = [entry.values for entry in load(ready(directory)).score(IDS)]
    path = directory / "model.safetensors"
    layer, tensors = "model.language_model.layers.2.self_attn.", load_file(path)
    names = ("k_proj.weight", "v_proj.weight", "k_norm.weight")
    assert not any(f"{layer}{name}" in tensors for name in names)
    save_file({**tensors, **{f"{layer}{name}": torch.ones(32) for name in names}}, path, {"format": "pt"})
    assert np.array_equal([entry.values for entry in load(ready(directory)).score(IDS)], wanted)
    del tensors[f"{layer.replace('2', '1')}k_norm.weight"]
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(BadModelFile, match=r"lacks 'model\.layers\.1\.self_attn\.k_norm\.weight'"):
        load(ready(directory))


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe"])
@pytest.mark.parametrize("is_tied", [False, True])
def test_qwen3_5_is_read_as_its_text_model(name: str, is_tied: bool, tmp_path: Path) -> None:
    model = make_whole(name, tie_word_embeddings=is_tied)
    path = save(model, tmp_path) / "model.safetensors"
    if name == "qwen3_5_moe":
        stack_experts(tmp_path)
    tensors = load_file(path)
    assert any(name.startswith("model.visual.") for name in tensors)
    save_file({**tensors, "mtp.fc.weight": torch.zeros(2, 2)}, path, {"format": "pt"})  # a head that is set aside
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([IDS])).logits[0].float().numpy()
    backend = load(ready(tmp_path))
    found = np.stack([entry.values for entry in backend.score(IDS)])
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    text_parameters = sum(parameter.numel() for parameter in model.model.language_model.parameters())
    text_parameters += 0 if is_tied else model.lm_head.weight.numel()
    assert backend.info.num_parameters == text_parameters
    assert backend.info.architecture == f"{name}_text"
