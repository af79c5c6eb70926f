from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from runner.errors import BadModelFile, UnsupportedModel
from runner.model_config import SUPPORTED_MODEL_TYPES, ModelConfig, RopeScaling, num_parameters, parse_model_config
from runner.model_config.families import FAMILIES
from runner.model_config.shapes import config_shape

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}

SUPPORTED = (
    "Llama-3.2-3B.json",
    "Mistral-7B-Instruct-v0.2.json",
    "Qwen--Qwen3-0.6B_config.json",
    "Qwen--Qwen3-1.7B_config.json",
    "Qwen--Qwen3-30B-A3B_config.json",
    "Qwen--Qwen3-32B_config.json",
    "Qwen--Qwen3-8B_config.json",
    "Qwen2.5-7B.json",
    "Qwen3-14B.json",
    "Qwen3-4B.json",
    "SmolLM2-135M.json",
    "gemma-3-1b-it.json",
    "meta-llama--Meta-Llama-3.1-70B_config.json",
    "meta-llama--Meta-Llama-3.1-8B_config.json",
    "mistralai--Mixtral-8x7B-v0.1_config.json",
    "openai--gpt-oss-20b_config.json",
    "phi-4.json",
)
# Keys that a copy of a config has lost, without which its special tokens lie outside the vocabulary.
LOST = {"phi-4.json": {"vocab_size": 100352}}
WHOLES = (
    "Qwen--Qwen3.5-27B_config.json",
    "Qwen--Qwen3.5-35B-A3B_config.json",
    "google--gemma-4-26B-A4B_config.json",
)
MIMO = "XiaomiMiMo--MiMo-7B-Base_config.json"


def parse(**changes: Any) -> ModelConfig:
    return parse_model_config(LLAMA | changes)


@pytest.mark.parametrize("name", SUPPORTED)
def test_real_configs_parse_and_their_parameters_are_counted_as_transformers_counts_them(
    name: str, shared_data: Path
) -> None:
    keys = json.loads((shared_data / "configs" / name).read_text()) | LOST.get(name, {})
    theirs = AutoConfig.for_model(**keys)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(theirs)
    config = parse_model_config(keys)
    assert num_parameters(config) == sum(parameter.numel() for parameter in model.parameters())


def test_another_architecture_is_refused_by_its_name() -> None:
    with pytest.raises(UnsupportedModel, match="deepseek_v3: model type not supported") as caught:
        parse_model_config({"model_type": "deepseek_v3", "num_hidden_layers": 61})
    assert "llamacpp" in caught.value.hint


def test_a_mimo_model_is_counted_as_a_qwen2_model_is(shared_data: Path) -> None:
    """transformers has no class of its own for it."""
    keys = json.loads((shared_data / "configs" / MIMO).read_text())
    config = parse_model_config(keys)
    theirs = AutoConfig.for_model(**{key: keys[key] for key in keys if key != "auto_map"} | {"model_type": "qwen2"})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(theirs)
    assert num_parameters(config) == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", WHOLES)
def test_the_text_model_of_a_multimodal_one_is_counted_as_transformers_counts_it(name: str, shared_data: Path) -> None:
    keys = json.loads((shared_data / "configs" / name).read_text())
    config = parse_model_config(keys)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**keys["text_config"]))
    assert num_parameters(config) == sum(parameter.numel() for parameter in model.parameters())


def test_every_real_config_is_named_in_one_of_the_tables(shared_data: Path) -> None:
    assert {path.name for path in (shared_data / "configs").glob("*.json")} == {*SUPPORTED, MIMO, *WHOLES}


def test_what_a_real_config_says_is_read(shared_data: Path) -> None:
    text = (shared_data / "configs" / "Llama-3.2-3B.json").read_text()
    assert parse_model_config(json.loads(text)) == ModelConfig(
        model_type="llama",
        vocab_size=128256,
        hidden_size=3072,
        intermediate_size=8192,
        num_layers=28,
        num_heads=24,
        num_kv_heads=8,
        head_dim=128,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        rope_scaling=RopeScaling(
            kind="llama3",
            factor=32.0,
            original_max_position_embeddings=8192,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
        ),
        attention_bias=False,
        attention_output_bias=False,
        mlp_bias=False,
        qk_norm="none",
        sliding_window=None,
        sliding_layers=(),
        tie_word_embeddings=True,
        bos_token_id=128000,
        eos_token_ids=(128001,),
    )


@pytest.mark.parametrize(
    "model_type",
    [
        "llama",
        "mistral",
        "ministral3",
        "qwen2",
        "qwen3",
        "gemma2",
        "gemma3_text",
        "phi3",
        "olmo2",
        "olmo3",
        "smollm3",
        "granite",
        "mixtral",
    ],
)
def test_missing_keys_have_the_defaults_of_transformers(model_type: str) -> None:
    theirs = AutoConfig.for_model(model_type)
    ours = parse_model_config({"model_type": model_type})
    assert ours == parse_model_config(json.loads(theirs.to_json_string(use_diff=False)))
    assert ours.num_kv_heads == theirs.num_key_value_heads
    by_heads = theirs.hidden_size // theirs.num_attention_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", by_heads) or by_heads)
    assert (ours.vocab_size, ours.hidden_size) == (theirs.vocab_size, theirs.hidden_size)
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert (ours.sliding_window, ours.tie_word_embeddings) == (
        getattr(theirs, "sliding_window", None),
        theirs.tie_word_embeddings,
    )
    assert ours.eos_token_ids == (() if theirs.eos_token_id is None else (theirs.eos_token_id,))


def test_biases_are_where_transformers_has_them() -> None:
    qwen2 = parse_model_config({"model_type": "qwen2"})
    assert (qwen2.attention_bias, qwen2.attention_output_bias) == (True, False)
    for model_type in ("llama", "qwen3"):
        config = parse_model_config({"model_type": model_type, "attention_bias": True})
        assert (config.attention_bias, config.attention_output_bias) == (True, True)
    assert parse(mlp_bias=True).mlp_bias
    assert parse_model_config({"model_type": "qwen3"}).qk_norm == "head"


def test_rope_parameters_of_transformers_5_say_what_rope_scaling_said() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 1024}
    old = parse(rope_theta=5000, rope_scaling=scaling)
    assert old == parse(rope_parameters={**scaling, "rope_theta": 5000})
    assert old.rope_theta == 5000.0
    assert parse(rope_parameters={"rope_type": "default", "rope_theta": 7.0}).rope_scaling is None
    assert parse().rope_theta == 10000.0


def test_linear_scaling_under_its_oldest_name() -> None:
    scaling = parse(rope_scaling={"type": "linear", "factor": 4}).rope_scaling
    assert scaling is not None
    assert (scaling.kind, scaling.factor) == ("linear", 4.0)


@pytest.mark.parametrize(
    ("keys", "factor"),
    [
        ({}, 0.1 * 1.3862943611 + 1),
        ({"attention_factor": 1.5}, 1.5),
        ({"mscale": 2.0, "beta_fast": 0, "beta_slow": None}, 0.1 * 1.3862943611 + 1),
        ({"mscale_all_dim": 2.0}, 0.1 * 1.3862943611 + 1),
        ({"mscale": 2.0, "mscale_all_dim": 1.0}, (0.2 * 1.3862943611 + 1) / (0.1 * 1.3862943611 + 1)),
    ],
)
def test_yarn_attention_factor(keys: dict[str, float], factor: float) -> None:
    scaling = parse(rope_scaling={"rope_type": "yarn", "factor": 4.0, **keys}).rope_scaling
    assert scaling is not None
    assert scaling.attention_factor == pytest.approx(factor)
    assert scaling.truncate
    assert (scaling.beta_fast, scaling.beta_slow, scaling.original_max_position_embeddings) == (32.0, 1.0, 2048)


def test_sliding_windows_follow_the_rules_of_each_model_type() -> None:
    mistral = {"model_type": "mistral", "num_hidden_layers": 4}
    assert parse_model_config(mistral).window(3) == 4096
    assert parse_model_config({**mistral, "sliding_window": None}).window(3) is None
    qwen = {"model_type": "qwen2", "num_hidden_layers": 4, "sliding_window": 10}
    assert parse_model_config(qwen).sliding_window is None
    upper = parse_model_config({**qwen, "use_sliding_window": True, "max_window_layers": 3})
    assert [upper.window(layer) for layer in range(4)] == [None, None, None, 10]
    assert parse_model_config({**qwen, "use_sliding_window": True, "max_window_layers": 4}).sliding_window is None
    mixed = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    config = parse_model_config({**qwen, "use_sliding_window": True, "layer_types": mixed})
    assert config.sliding_layers == (0, 3)


@pytest.mark.parametrize(
    "model_type", [name for name, family in FAMILIES.items() if "use_sliding_window" in family.own_keys]
)
def test_a_window_whose_use_is_null_is_not_used(model_type: str) -> None:
    config = {"model_type": model_type, "num_hidden_layers": 4, "sliding_window": 10}
    null, off = ({**config, "use_sliding_window": value} for value in (None, False))
    assert parse_model_config(null) == parse_model_config(off)
    assert parse_model_config(null).window(3) is None
    assert config_shape(null) == config_shape(off)
    assert {cache.kind for cache in config_shape(null).caches} == {"full"}


def test_experts_are_read_as_each_family_spells_them() -> None:
    sizes = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_hidden_layers": 4}
    qwen = {"model_type": "qwen3_moe", "num_experts": 6, **sizes}
    experts = parse_model_config(qwen).experts
    assert experts is not None
    assert (experts.count, experts.per_token, experts.intermediate_size) == (6, 2, 24)
    assert (experts.routing, experts.activation, experts.has_bias) == ("softmax_topk", "silu", False)
    assert experts.layers == (0, 1, 2, 3)
    assert parse_model_config({**qwen, "num_local_experts": 6}).experts == experts
    normalized = parse_model_config({**qwen, "norm_topk_prob": True}).experts
    assert normalized == replace(experts, routing="topk_softmax")
    some = parse_model_config({**qwen, "decoder_sparse_step": 2, "mlp_only_layers": [1]}).experts
    assert some == replace(experts, layers=(3,))
    assert parse_model_config({**qwen, "num_experts": 0}).experts is None
    oss = parse_model_config({"model_type": "gpt_oss", "num_local_experts": 32, "num_hidden_layers": 4})
    assert oss.experts is not None
    assert (oss.experts.count, oss.experts.per_token, oss.experts.intermediate_size) == (32, 4, 2880)
    assert (oss.experts.routing, oss.experts.activation, oss.experts.has_bias) == (
        "topk_softmax",
        "clamped_swiglu",
        True,
    )


def test_a_gpt_oss_config_has_what_transformers_gives_it() -> None:
    config = parse_model_config({"model_type": "gpt_oss", "num_hidden_layers": 3})
    assert (config.attention_bias, config.attention_output_bias, config.has_sinks) == (True, True, True)
    assert [config.window(layer) for layer in range(3)] == [128, None, 128]
    assert (config.rms_norm_eps, config.rope_theta) == (1e-5, 150000.0)
    assert config.rope_scaling is not None
    assert (config.rope_scaling.kind, config.rope_scaling.factor, config.rope_scaling.truncate) == ("yarn", 32, False)
    assert config.rope_scaling.original_max_position_embeddings == 4096
    assert not parse_model_config({"model_type": "gpt_oss", "attention_bias": False}).attention_bias
    own = parse_model_config(
        {"model_type": "gpt_oss", "rope_theta": 5.0, "rope_scaling": {"type": "linear", "factor": 2}}
    )
    assert own.rope_scaling is not None
    assert (own.rope_theta, own.rope_scaling.kind) == (5.0, "linear")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gpt_oss", "swiglu_limit": 6.0}, "swiglu_limit = 6.0"),
        ({"model_type": "gpt_oss", "swiglu_alpha": 1.0}, "swiglu_alpha = 1.0"),
        ({"model_type": "gpt_oss", "mlp_only_layers": [1]}, "mlp_only_layers"),
        ({"model_type": "gpt_oss", "quantization_config": {"quant_method": "awq"}}, "quantization_config = awq"),
        ({"model_type": "qwen3_moe", "quantization_config": {"quant_method": "mxfp4"}}, "quantization_config = mxfp4"),
        ({"model_type": "qwen3_moe", "shared_expert_intermediate_size": 24}, "shared_expert_intermediate_size = 24"),
        ({"model_type": "qwen3_moe", "hidden_act": "relu2"}, "hidden_act = relu2"),
    ],
)
def test_experts_of_another_kind_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        parse_model_config(changes)
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"num_experts": 2**40}, "num_experts"),
        ({"num_experts": None}, "num_experts"),
        ({"model_type": "gpt_oss", "num_local_experts": 0}, "num_local_experts"),
        ({"num_experts": 8, "num_local_experts": 6}, "num_local_experts"),
        ({"num_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size"),
        ({"mlp_only_layers": "all"}, "mlp_only_layers"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({"norm_topk_prob": "yes"}, "norm_topk_prob"),
    ],
)
def test_experts_that_make_no_sense_are_refused_with_their_key(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(BadModelFile) as caught:
        parse_model_config({"model_type": "qwen3_moe", **changes})
    assert key in caught.value.message


@pytest.mark.parametrize(
    ("value", "ids"), [(2, (2,)), ([2, 0], (2, 0)), (None, ()), ([], ())], ids=["one", "list", "null", "empty"]
)
def test_every_eos_id_is_kept(value: object, ids: tuple[int, ...]) -> None:
    assert parse(eos_token_id=value).eos_token_ids == ids


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "gelu"}, "hidden_act = gelu"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config = fp8"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "quantization_config = awq"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_scaling.rope_type = dynamic"),
        ({"rope_scaling": {"type": "su", "factor": 2.0}}, "rope_scaling.rope_type = su"),
        ({"rope_parameters": {"mrope_section": [8, 8]}}, "rope_parameters.mrope_section"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "rope_parameters.full_attention"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor = 0.25"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures = LlamaForSequenceClassification"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "architectures = LlamaForCausalLMEagle3"),
        ({"sliding_window": 4096}, "sliding_window = 4096"),
        ({"rope_interleaved": True}, "rope_interleaved = True"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        ({"num_experts": 8}, "num_experts = 8"),
        ({"logits_scaling": 0}, "logits_scaling = 0"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling.Own"}}, "auto_map"),
    ],
)
def test_keys_that_change_the_mathematics_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        parse(**changes)
    assert words in caught.value.message


def test_layer_types_that_are_not_supported_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="layer_types = linear_attention"):
        parse_model_config({"model_type": "qwen3", "num_hidden_layers": 1, "layer_types": ["linear_attention"]})


@pytest.mark.parametrize("value", [None, False, "", [], {}])
def test_unknown_keys_that_are_switched_off_are_passed_over(value: object) -> None:
    assert parse(some_new_key=value) == parse()


@pytest.mark.parametrize(
    "changes",
    [
        {"torch_dtype": "bfloat16", "use_cache": True, "transformers_version": "5.0"},
        {"attention_dropout": 0.1, "initializer_range": 0.02, "pretraining_tp": 2},
        {"pad_token_id": 0, "temperature": 0.6, "do_sample": True},
    ],
)
def test_keys_that_do_not_change_the_mathematics_are_passed_over(changes: dict[str, Any]) -> None:
    assert parse(**changes) == parse()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"vocab_size": -1}, "vocab_size"),
        ({"vocab_size": 2**40}, "vocab_size"),
        ({"vocab_size": None}, "vocab_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": 64.0}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 66}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": [1]}, "rms_norm_eps"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_theta": "1e4"}, "rope_theta"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"eos_token_id": [1, None]}, "eos_token_id"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "short_factor"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 3}}, "long_factor"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 0], "long_factor": [1] * 4}}, "short_factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "low_freq_factor"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}},
            "high_freq_factor",
        ),
        ({"eos_token_id": [2, True]}, "eos_token_id"),
        ({"eos_token_id": -1}, "eos_token_id"),
        # What a backend would divide by, or not get an end of.
        ({"rope_theta": 1, "rope_scaling": {"rope_type": "yarn", "factor": 2}}, "rope_theta"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2, "rope_theta": 1}}, "rope_theta"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "beta_slow": 1e-320}}, "beta_slow"),
    ],
)
def test_values_that_make_no_sense_are_refused_with_their_key(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(BadModelFile) as caught:
        parse(**changes)
    assert key in caught.value.message


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": ["full_attention"]},
        {"layer_types": ["sliding_attention", "full_attention"]},
        {"layer_types": "full_attention"},
        {"layer_types": [1, 2]},
    ],
)
def test_layer_types_that_do_not_match_the_model_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadModelFile, match="layer_types"):
        parse_model_config({"model_type": "qwen3", "num_hidden_layers": 2, **changes})


def test_a_config_without_model_type_is_refused() -> None:
    for config in ({}, {"model_type": None}, {"model_type": 3}):
        with pytest.raises(BadModelFile, match="model_type"):
            parse_model_config(config)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    (
        *LLAMA,
        *("rope_scaling", "rope_parameters", "rope_theta", "partial_rotary_factor", "head_dim", "hidden_act"),
        *("eos_token_id", "bos_token_id", "layer_types", "sliding_window", "use_sliding_window"),
        *("quantization_config", "num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size"),
        *("norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "swiglu_limit", "attention_bias"),
        *("hidden_activation", "query_pre_attn_scalar", "rope_local_base_freq", "sliding_window_pattern", "auto_map"),
        *("original_max_position_embeddings", "full_attn_mod", "text_config", "per_layer_config", "global_head_dim"),
        *("attention_k_eq_v", "num_global_key_value_heads", "final_logit_softcapping", "use_double_wide_mlp"),
        *("hidden_size_per_layer_input", "vocab_size_per_layer_input", "num_kv_shared_layers"),
    )
)


@given(model_type=st.sampled_from((*SUPPORTED_MODEL_TYPES, "gemma3")), changes=st.dictionaries(KEYS, JSON))
@settings(max_examples=300)
def test_any_json_gives_a_config_or_one_of_our_errors(model_type: str, changes: dict[str, Any]) -> None:
    try:
        config = parse_model_config({**LLAMA, "architectures": None, "model_type": model_type, **changes})
    except (BadModelFile, UnsupportedModel):
        return
    assert num_parameters(config) > 0
