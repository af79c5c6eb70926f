"""The text model of a multimodal checkpoint, by either way of naming its tensors."""

from __future__ import annotations

import pytest

from runner.errors import BadModelFile
from runner.quant.text_tensors import of_text_model

OLDER = {
    "language_model.model.embed_tokens.weight": 1,
    "language_model.lm_head.weight": 2,
    "vision_tower.vision_model.head.probe": 3,
    "multi_modal_projector.mm_soft_emb_norm.weight": 4,
}
NEWER = {
    "model.language_model.embed_tokens.weight": 1,
    "lm_head.weight": 2,
    "model.vision_tower.vision_model.head.probe": 3,
    "model.multi_modal_projector.mm_soft_emb_norm.weight": 4,
}


@pytest.mark.parametrize("tensors", [OLDER, NEWER])
def test_the_text_models_tensors_have_its_own_names_and_those_of_images_go(tensors: dict[str, int]) -> None:
    assert of_text_model(tensors, "gemma3_text") == {"model.embed_tokens.weight": 1, "lm_head.weight": 2}


def test_gemma4s_parts_for_sounds_go_too() -> None:
    parts = ("model.embed_vision.a", "model.audio_tower.b", "model.embed_audio.c", "audio_tower.d")
    tensors = {**NEWER, **dict.fromkeys(parts, 5)}
    assert of_text_model(tensors, "gemma4_text") == {"model.embed_tokens.weight": 1, "lm_head.weight": 2}
    assert "audio_tower.d" in of_text_model(tensors, "gemma3_text")


def test_a_text_model_alone_stays_as_it_is() -> None:
    tensors = {"model.embed_tokens.weight": 1, "model.layers.0.mlp.up_proj.weight": 2, "something.else": 3}
    assert of_text_model(tensors, "gemma3_text") == tensors


def test_a_model_that_is_part_of_none_keeps_what_it_has() -> None:
    assert of_text_model(OLDER, "llama") == OLDER


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(BadModelFile, match=r"model\.embed_tokens\.weight"):
        of_text_model({**OLDER, **NEWER}, "gemma3_text")


@pytest.mark.parametrize("model_type", ["gemma3_text", "llama"])
def test_a_head_that_drafts_is_no_part_of_a_model(model_type: str) -> None:
    assert of_text_model({"mtp.fc.weight": 1, "model.norm.weight": 2}, model_type) == {"model.norm.weight": 2}


def test_what_mixtral_calls_otherwise_has_the_names_of_most_families() -> None:
    block = "model.layers.0.block_sparse_moe."
    named = {f"{block}gate.weight": 1, f"{block}experts.3.w1.weight": 2, "model.norm.weight": 3}
    named |= {f"{block}experts.3.w2.weight": 4, f"{block}experts.3.w3.weight": 5}
    mlp = "model.layers.0.mlp."
    wanted = {f"{mlp}gate.weight": 1, f"{mlp}experts.3.gate_proj.weight": 2, "model.norm.weight": 3}
    wanted |= {f"{mlp}experts.3.down_proj.weight": 4, f"{mlp}experts.3.up_proj.weight": 5}
    assert of_text_model(named, "mixtral") == of_text_model(wanted, "mixtral") == wanted
    assert of_text_model(named, "qwen3_moe") == named
    with pytest.raises(BadModelFile, match=r"'model.layers.0.mlp.gate.weight' is there twice"):
        of_text_model({**named, **wanted}, "mixtral")
