"""Weights and caches of every real config.json, and of random small ones against transformers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from runner.backends.native.delta_state import state_bytes
from runner.errors import BadModelFile, UnsupportedModel
from runner.model_config import SUPPORTED_MODEL_TYPES, num_parameters, parse_model_config
from runner.model_config.shape import LayerCache, Shape
from runner.model_config.shapes import KNOWN_FAMILIES, config_shape

# What their makers publish, in billions. "card": the model card or paper; "hub": the hub's count of the safetensors;
# "transformers": the parameters of its text model, where the hub's count has a vision tower in it.
PUBLISHED = {
    "Llama-3.2-3B.json": (3.21, "card"),
    "Mistral-7B-Instruct-v0.2.json": (7.24, "hub"),
    "Qwen--Qwen3-0.6B_config.json": (0.596, "transformers: embeddings are tied, and once in the count"),
    "Qwen--Qwen3-1.7B_config.json": (1.72, "card: 1.7B"),
    "Qwen--Qwen3-30B-A3B_config.json": (30.53, "hub"),
    "Qwen--Qwen3-32B_config.json": (32.76, "hub"),
    "Qwen--Qwen3-8B_config.json": (8.19, "hub"),
    "Qwen--Qwen3.5-27B_config.json": (27.0, "card, of the language model"),
    "Qwen--Qwen3.5-35B-A3B_config.json": (35.0, "card, of the language model"),
    "Qwen2.5-7B.json": (7.62, "hub"),
    "Qwen3-14B.json": (14.77, "hub"),
    "Qwen3-4B.json": (4.02, "hub"),
    "SmolLM2-135M.json": (0.1345, "hub"),
    "XiaomiMiMo--MiMo-7B-Base_config.json": (7.83, "hub: with its layer for multi-token prediction"),
    "gemma-3-1b-it.json": (1.00, "hub"),
    "google--gemma-4-26B-A4B_config.json": (25.2, "card"),
    "meta-llama--Meta-Llama-3.1-70B_config.json": (70.55, "hub"),
    "meta-llama--Meta-Llama-3.1-8B_config.json": (8.03, "hub"),
    "mistralai--Mixtral-8x7B-v0.1_config.json": (46.70, "hub"),
    "openai--gpt-oss-20b_config.json": (20.91, "card"),
    "phi-4.json": (14.66, "hub"),
}
# Billions of weights that a token passes through, embeddings included, as the cards say them (rounded there).
ACTIVE = {
    "Qwen--Qwen3-30B-A3B_config.json": 3.3,
    "google--gemma-4-26B-A4B_config.json": 3.8,
    "mistralai--Mixtral-8x7B-v0.1_config.json": 12.9,
}


def shape_of(shared_data: Path, name: str) -> Shape:
    return config_shape(json.loads((shared_data / "configs" / name).read_text()))


def count_by_transformers(config: dict[str, Any]) -> int:
    values = dict(config)
    text = AutoConfig.for_model(values.pop("model_type"), **values).get_text_config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(text)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_real_configs_have_the_published_number_of_weights_within_one_percent(name: str, shared_data: Path) -> None:
    billions, _source = PUBLISHED[name]
    assert shape_of(shared_data, name).num_parameters == pytest.approx(billions * 1e9, rel=0.01)


def test_every_real_config_is_in_the_table(shared_data: Path) -> None:
    assert {path.name for path in (shared_data / "configs").glob("*.json")} == set(PUBLISHED)


@pytest.mark.parametrize("name", sorted(set(PUBLISHED) - {"XiaomiMiMo--MiMo-7B-Base_config.json", "phi-4.json"}))
def test_real_configs_have_exactly_the_weights_that_transformers_gives_them(name: str, shared_data: Path) -> None:
    config = json.loads((shared_data / "configs" / name).read_text())
    assert config_shape(config).num_parameters == count_by_transformers(config)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_the_native_backend_runs_is_counted_alike(name: str, shared_data: Path) -> None:
    config = json.loads((shared_data / "configs" / name).read_text())
    try:
        parsed = parse_model_config(config)
    except UnsupportedModel:
        assert config["model_type"] not in SUPPORTED_MODEL_TYPES
        return
    shape = config_shape({**config, "num_nextn_predict_layers": 0})  # a layer that drafts is no part of the model
    if "vocab_size" not in config:  # an estimate infers it then
        parsed = dataclasses.replace(parsed, vocab_size=shape.vocab_size)
    assert shape.num_parameters == num_parameters(parsed)
    assert (shape.num_active_parameters < shape.num_parameters) == (parsed.experts is not None)
    of_token = sum(2 * parsed.heads(layer).keys_size for layer in parsed.attention_layers)
    assert sum(cache.width for cache in shape.caches) == of_token
    for dtype in (torch.float32, torch.bfloat16):
        kept = sum(cache.state_bytes(dtype.itemsize) for cache in shape.caches)
        assert kept == state_bytes(parsed.delta, dtype, n_slots=1)
    assert (shape.context_length, shape.vocab_size) == (parsed.max_position_embeddings, parsed.vocab_size)


@pytest.mark.parametrize("name", ACTIVE)
def test_experts_that_a_token_is_not_sent_to_are_not_active(name: str, shared_data: Path) -> None:
    assert shape_of(shared_data, name).num_active_parameters == pytest.approx(ACTIVE[name] * 1e9, rel=0.02)


def test_what_is_left_out_or_inferred_is_said(shared_data: Path) -> None:
    def said(name: str) -> str:
        return " ".join(shape_of(shared_data, name).notes)

    assert "not the vision part" in said("google--gemma-4-26B-A4B_config.json")
    assert "multi-token prediction is not counted" in said("Qwen--Qwen3.5-27B_config.json")
    assert "multi-token prediction is counted" in said("XiaomiMiMo--MiMo-7B-Base_config.json")
    assert "inferred from the token ids" in said("phi-4.json")
    assert said("Qwen3-14B.json") == ""


# --- what layers keep ------------------------------------------------------------------------------------------------


def kinds(shape: Shape) -> dict[str, int]:
    found: dict[str, int] = {}
    for cache in shape.caches:
        found[cache.kind] = found.get(cache.kind, 0) + 1
    return found


def test_layers_of_each_kind_are_where_the_configs_have_them(shared_data: Path) -> None:
    assert kinds(shape_of(shared_data, "Qwen--Qwen3-8B_config.json")) == {"full": 36}
    assert kinds(shape_of(shared_data, "gemma-3-1b-it.json")) == {"window": 22, "full": 4}
    assert kinds(shape_of(shared_data, "openai--gpt-oss-20b_config.json")) == {"window": 12, "full": 12}
    assert kinds(shape_of(shared_data, "Qwen--Qwen3.5-27B_config.json")) == {"state": 48, "full": 16}
    gemma4 = shape_of(shared_data, "google--gemma-4-26B-A4B_config.json")
    assert kinds(gemma4) == {"window": 25, "full": 5}
    assert gemma4.caches[0] == LayerCache(kind="window", width=2 * 8 * 256, window=1024)
    assert gemma4.caches[5] == LayerCache(kind="full", width=2 * 2 * 512)


def test_a_window_stops_growing_and_a_state_never_grows() -> None:
    window = LayerCache(kind="window", width=10, window=512)
    assert [window.elements(n) for n in (100, 512, 8192)] == [1000, 5120, 5120]
    assert window.elements(8192, is_window_whole=True) == 81920
    state = LayerCache(kind="state", state_size=100, past_size=10)
    assert (state.elements(8192), state.state_bytes(4), state.state_bytes(2)) == (0, 440, 420)


def test_layers_that_share_the_cache_of_another_keep_nothing() -> None:
    config = {"model_type": "gemma4_text", "num_hidden_layers": 12, "num_kv_shared_layers": 6}
    shape = config_shape(config)
    assert kinds(shape) == {"window": 5, "full": 1, "shared": 6}
    assert sum(cache.elements(8192) for cache in shape.caches[6:]) == 0
    assert shape.num_parameters == count_by_transformers(config)


# --- families against transformers -----------------------------------------------------------------------------------

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 6, "num_local_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
BY_TRANSFORMERS = sorted(set(KNOWN_FAMILIES) - {"mimo", "gemma4", "qwen3_5", "qwen3_5_moe"})


@pytest.mark.parametrize("model_type", BY_TRANSFORMERS)
@given(data=st.data())
@settings(max_examples=6)
def test_small_models_of_every_family_are_counted_as_transformers_counts_them(
    model_type: str, data: st.DataObject
) -> None:
    config = {"model_type": model_type, **SMALL, "head_dim": 16}
    config["tie_word_embeddings"] = data.draw(st.booleans())
    config["attention_bias"] = data.draw(st.booleans())
    if model_type in ("mixtral", "gpt_oss", "qwen3_moe", "qwen3_5_moe_text"):
        config |= EXPERTS | {"shared_expert_intermediate_size": 40}
    if model_type == "qwen3_moe":
        config |= {"mlp_only_layers": data.draw(st.sampled_from([[], [0, 3]])), "decoder_sparse_step": 2}
    if model_type in ("llama", "smollm3", "granite"):
        config["mlp_bias"] = data.draw(st.booleans())
    if model_type.startswith("qwen3_5"):
        sizes = {"linear_num_value_heads": 4, "linear_num_key_heads": 2}
        config |= sizes | {"linear_key_head_dim": 8, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 3}
    if model_type == "gemma4_text":
        config |= {"hidden_size_per_layer_input": data.draw(st.sampled_from([0, 12])), "global_head_dim": 32}
        config |= {"vocab_size_per_layer_input": 96, "attention_k_eq_v": data.draw(st.booleans())}
        config |= {"num_global_key_value_heads": 2, "use_double_wide_mlp": data.draw(st.booleans())}
        config |= {"enable_moe_block": data.draw(st.booleans()), "num_experts": 4, "top_k_experts": 2}
        config |= {"moe_intermediate_size": 24}
    if model_type in ("olmo2", "phi3", "granite", "smollm3", "llama"):
        del config["head_dim"]
    assert config_shape(config).num_parameters == count_by_transformers(config)


def test_the_number_of_experts_is_found_under_the_name_that_transformers_5_writes() -> None:
    config = {"model_type": "qwen3_moe", **SMALL, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    assert config_shape({**config, "num_local_experts": 6}) == config_shape({**config, "num_experts": 6})


# --- what is not known, and what makes no sense ----------------------------------------------------------------------


def test_an_unknown_family_says_so_and_what_is_known() -> None:
    shape = config_shape({"model_type": "brand_new", **SMALL, "max_position_embeddings": 4096})
    assert shape.num_parameters == 0
    assert "brand_new is not known" in shape.notes[-1]
    assert (shape.num_layers, shape.hidden_size, shape.context_length) == (6, 64, 4096)
    assert shape.caches[0] == LayerCache(kind="full", width=2 * 4 * 8)


def test_the_older_names_of_a_decoders_numbers_are_read() -> None:
    gpt2 = config_shape(
        {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 50257}
    )
    assert gpt2.caches == (LayerCache(kind="full", width=2 * 768),) * 12
    assert (gpt2.context_length, gpt2.hidden_size) == (1024, 768)


def test_heads_of_latent_attention_have_sizes_of_their_own() -> None:
    deepseek_v3 = {"hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128}
    deepseek_v3 |= {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    shape = config_shape({"model_type": "deepseek_v3", **deepseek_v3})
    assert shape.caches[0] == LayerCache(kind="full", width=128 * (192 + 128))


@pytest.mark.parametrize("sizes", [{"num_hidden_layers": 24, "hidden_size": 768}, {"d_model": 512, "num_layers": 6}])
def test_what_an_unknown_family_keeps_is_not_made_up(sizes: dict[str, int]) -> None:
    shape = config_shape({"model_type": "mamba", **sizes})
    assert sum(cache.elements(8192) for cache in shape.caches) == 0
    assert shape.notes[-1].endswith("not known and not counted.")


def test_a_multimodal_model_is_read_by_its_text_model() -> None:
    text = {"model_type": "gemma3_text", **SMALL, "head_dim": 16}
    whole = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 9}}
    assert config_shape(whole).num_parameters == config_shape(text).num_parameters


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": 3},
        {"model_type": "llama", "hidden_size": "64"},
        {"model_type": "llama", "num_hidden_layers": 10**9},
        {"model_type": "llama", "num_hidden_layers": -1},
        {"model_type": "qwen3_5_moe", "num_experts": 2**40},
        {"model_type": "gemma3_text", "layer_types": ["full_attention"]},
        {"model_type": "gemma3_text", "layer_types": "full_attention"},
        {"model_type": "qwen3_moe", "mlp_only_layers": "all"},
        {"model_type": "llama", "tie_word_embeddings": "yes"},
    ],
)
def test_values_that_make_no_sense_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(BadModelFile):
        config_shape(config)


JSON = st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.lists(st.integers(), max_size=2)


@given(
    model_type=st.sampled_from((*KNOWN_FAMILIES, "unknown")),
    changes=st.dictionaries(st.sampled_from((*SMALL, *EXPERTS, "head_dim", "layer_types", "sliding_window")), JSON),
)
@settings(max_examples=300)
def test_any_json_gives_a_shape_or_our_error(model_type: str, changes: dict[str, Any]) -> None:
    try:
        shape = config_shape({**SMALL, "model_type": model_type, **changes})
    except BadModelFile:
        return
    assert shape.num_parameters >= shape.num_active_parameters >= 0
