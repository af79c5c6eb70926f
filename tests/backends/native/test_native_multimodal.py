"""The text model of a multimodal checkpoint against transformers' whole one, which no image is shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    PreTrainedModel,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
)

from runner.backends import choose, native
from runner.config import LoadOptions
from runner.errors import UnsupportedModel
from tests.backends.native.tiny_models import VOCAB, load, ready, save

IDS = [int(token) for token in np.random.default_rng(3).integers(0, VOCAB, 41)]
TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 76,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 18,
    "max_position_embeddings": 128,
    "sliding_window": 6,
    "sliding_window_pattern": 2,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"image_size": 28, "patch_size": 14}


QWEN_TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 76,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 128,
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "initializer_range": 0.2,
    "eos_token_id": 258,
    "rope_parameters": {"rope_type": "default", "rope_theta": 99.0, "mrope_section": [1, 1, 1]},
}
QWEN_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 48}
QWEN_VISION |= {"patch_size": 4, "num_position_embeddings": 16}


def randomized(model: PreTrainedModel) -> PreTrainedModel:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


@pytest.fixture
def whole(tmp_path: Path) -> tuple[Path, Gemma3ForConditionalGeneration]:
    config = Gemma3Config(text_config=TEXT, vision_config=VISION, mm_tokens_per_image=4, eos_token_id=[258, 256])
    torch.manual_seed(7)
    model = randomized(Gemma3ForConditionalGeneration(config))
    return save(model, tmp_path), model


def newer_names(directory: Path) -> None:
    """Name the tensors as transformers has them in memory."""
    path = directory / "model.safetensors"
    tensors = {name.replace("language_model.model.", "language_model."): one for name, one in load_file(path).items()}
    save_file({f"model.{name}": one for name, one in tensors.items()}, path, {"format": "pt"})


@pytest.mark.parametrize("naming", ["older", "newer"])
def test_its_logits_are_those_of_the_whole_model(
    naming: str, whole: tuple[Path, Gemma3ForConditionalGeneration]
) -> None:
    directory, model = whole
    if naming == "newer":
        newer_names(directory)
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([IDS])).logits[0].float().numpy()
    backend = load(ready(directory))
    found = np.stack([entry.values for entry in backend.score(IDS)])
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    text_parameters = sum(parameter.numel() for parameter in model.model.language_model.parameters())
    assert backend.info.num_parameters == text_parameters
    assert backend.memory().weights_bytes == 4 * text_parameters


def test_it_goes_to_the_native_backend(whole: tuple[Path, Gemma3ForConditionalGeneration]) -> None:
    choice = choose(ready(whole[0]), LoadOptions())
    assert (choice.name, choice.refused) == ("native", ())


def test_a_tensor_of_neither_part_is_refused_by_name(whole: tuple[Path, Gemma3ForConditionalGeneration]) -> None:
    directory, _ = whole
    path = directory / "model.safetensors"
    save_file({**load_file(path), "audio_tower.weight": torch.zeros(2)}, path, {"format": "pt"})
    with pytest.raises(UnsupportedModel, match=r"audio_tower\.weight"):
        load(ready(directory))


def test_a_text_model_of_another_kind_is_refused_by_its_key(
    whole: tuple[Path, Gemma3ForConditionalGeneration],
) -> None:
    directory, _ = whole
    config = json.loads((directory / "config.json").read_text())
    config["text_config"]["final_logit_softcapping"] = 30.0
    (directory / "config.json").write_text(json.dumps(config))
    reason = native.refusal(ready(directory), LoadOptions())
    assert reason is not None
    assert "final_logit_softcapping = 30.0" in reason


@pytest.mark.parametrize("is_tied", [False, True])
def test_qwen3_5_is_read_as_its_text_model(is_tied: bool, tmp_path: Path) -> None:
    text = QWEN_TEXT | {"tie_word_embeddings": is_tied}
    config = Qwen3_5Config(text_config=text, vision_config=QWEN_VISION, tie_word_embeddings=is_tied)
    torch.manual_seed(7)
    model = randomized(Qwen3_5ForConditionalGeneration(config))
    path = save(model, tmp_path) / "model.safetensors"
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
    assert backend.info.architecture == "qwen3_5_text"
