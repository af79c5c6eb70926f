"""What is special about the config.json of Gemma 3 and 4, Phi-3, OLMo 2, SmolLM3, Granite, Qwen3.5 and Ministral 3, and
of multimodal models."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import AutoConfig, SmolLM3Config

from runner.backends.native.delta_state import SLOTS
from runner.errors import BadModelFile, UnsupportedModel
from runner.model_config import (
    ExpertsConfig,
    HeadSizes,
    LayerInputs,
    ModelConfig,
    QueryGrowth,
    num_parameters,
    parse_model_config,
)
from runner.model_config.shapes import config_shape

GEMMA: dict[str, Any] = {"model_type": "gemma3_text", "num_hidden_layers": 7, "sliding_window": 512}
PHI: dict[str, Any] = {"model_type": "phi3", "hidden_size": 96, "num_attention_heads": 6}
FACTORS: dict[str, Any] = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}


def gemma(**changes: Any) -> ModelConfig:
    return parse_model_config(GEMMA | changes)


def phi(**changes: Any) -> ModelConfig:
    return parse_model_config(PHI | changes)


# --- Gemma 3 ---------------------------------------------------------------------------------------------------------


def test_gemma_has_norms_around_its_branches_and_scaled_embeddings() -> None:
    config = gemma(hidden_size=1152)
    assert (config.norms, config.norm_offset, config.num_norms, config.qk_norm) == ("around", 1.0, 4, "head")
    assert (config.activation, config.tie_word_embeddings) == ("gelu_tanh", True)
    assert config.embedding_factor == 1152**0.5
    assert not gemma(tie_word_embeddings=False).tie_word_embeddings


def test_every_sixth_layer_of_gemma_sees_everything_unless_the_config_says_otherwise() -> None:
    assert gemma().sliding_layers == (0, 1, 2, 3, 4, 6)
    assert gemma(sliding_window_pattern=3).sliding_layers == (0, 1, 3, 4, 6)
    named = ["full_attention", *["sliding_attention"] * 2, *["full_attention"] * 4]
    assert gemma(layer_types=named, sliding_window_pattern=3).sliding_layers == (1, 2)
    assert gemma(layer_types=["full_attention"] * 7).window(0) is None


def test_gemmas_two_rotary_embeddings_are_read_under_old_and_new_names() -> None:
    old = gemma(rope_theta=5e5, rope_local_base_freq=9e3, rope_scaling={"factor": 8.0, "rope_type": "linear"})
    new = gemma(
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 9e3},
        }
    )
    assert old == new
    assert (old.ropes["global"].theta, old.ropes["local"].theta) == (5e5, 9e3)
    assert old.ropes["global"].scaling is not None
    assert old.ropes["local"].scaling is None
    assert (gemma().rope_theta, gemma().local_rope_theta) == (1e6, 1e4)
    # As transformers has it: only what is missing in the new form is looked for in the old one.
    half = gemma(rope_theta=5e5, rope_local_base_freq=9e3, rope_parameters={"full_attention": {"rope_theta": 7e5}})
    assert (half.rope_theta, half.local_rope_theta) == (7e5, 9e3)


def test_olmo_3_scales_the_rope_of_the_layers_that_see_everything() -> None:
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
    published = {"model_type": "olmo3", "num_hidden_layers": 8, "sliding_window": 64, "rope_theta": 2e5}
    config = parse_model_config(published | {"rope_scaling": yarn})
    assert (config.sliding_layers, config.qk_norm, config.norms) == ((0, 1, 2, 4, 5, 6), "row", "after")
    assert (config.rope_theta, config.local_rope_theta) == (2e5, 5e5)  # as transformers has it
    assert config.ropes["global"].scaling is not None
    assert (config.ropes["local"].scaling, config.rope(0), config.rope(3)) == (None, "local", "global")


def test_gemma_2_caps_scores_and_logits_and_every_other_layer_has_a_window() -> None:
    published = {"model_type": "gemma2", "num_hidden_layers": 5, "sliding_window": 64, "sliding_window_size": 64}
    config = parse_model_config(published | {"query_pre_attn_scalar": 144, "hidden_act": "gelu_pytorch_tanh"})
    assert (config.score_cap, config.logit_cap, config.attention_scale) == (50.0, 30.0, 1 / 12)
    assert (config.sliding_window, config.sliding_layers, config.qk_norm) == (64, (0, 2, 4), "none")
    assert (config.norms, config.norm_offset, config.local_rope_theta) == ("around", 1.0, None)
    free = parse_model_config(published | {"attn_logit_softcapping": None, "final_logit_softcapping": None})
    assert (free.score_cap, free.logit_cap) == (None, None)
    with pytest.raises(BadModelFile, match="attn_logit_softcapping"):
        parse_model_config(published | {"attn_logit_softcapping": 0.0})


@pytest.mark.parametrize(("scalar", "scale"), [(168, 168**-0.5), (256, None), (None, None)])
def test_gemmas_scores_are_scaled_by_a_key_of_its_own(scalar: int | None, scale: float | None) -> None:
    config = gemma() if scalar is None else gemma(query_pre_attn_scalar=scalar)
    assert config.attention_scale == scale


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
        ({"hidden_activation": "gelu"}, "hidden_activation = gelu"),
        ({"hidden_act": "silu"}, "hidden_act = silu"),
        ({"architectures": ["Gemma3TextModel"]}, "architectures = Gemma3TextModel"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "rope_parameters.rope_theta = 5.0"),
        ({"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}}, "rope_parameters.full_attention.rope_type"),
        (
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "rope_parameters.sliding_attention.rope_type = linear",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"layer_types": ["chunked_attention"] * 7}, "layer_types = chunked_attention"),
    ],
)
def test_what_gemma_could_ask_for_and_is_not_there_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        gemma(**changes)
    assert words in caught.value.message
    assert "llamacpp" in caught.value.hint


def test_switched_off_keys_of_gemma_are_passed_over() -> None:
    off = {"final_logit_softcapping": None, "attn_logit_softcapping": None, "use_bidirectional_attention": False}
    assert gemma(**off, cache_implementation="hybrid", _sliding_window_pattern=6) == gemma()


# --- Gemma 4 ---------------------------------------------------------------------------------------------------------

# As transformers 5.24 makes it of the numbers of google/gemma-4-31B-it, and as it has been published before that.
GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_text",
    "attention_k_eq_v": True,
    "enable_moe_block": False,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 5376,
    "hidden_size_per_layer_input": 0,
    "intermediate_size": 21504,
    "num_attention_heads": 32,
    "num_hidden_layers": 12,
    "num_key_value_heads": 16,
    "num_kv_shared_layers": 0,
    "sliding_window": 1024,
    "use_bidirectional_attention": "vision",
}
GLOBAL_KEYS: dict[str, Any] = {"global_head_dim": 512, "num_global_key_value_heads": 4}
OVERRIDE = {"head_dim": 512, "num_key_value_heads": 4}
MOE: dict[str, Any] = {
    "enable_moe_block": True,
    "num_experts": 128,
    "top_k_experts": 8,
    "moe_intermediate_size": 704,
}
WIDE = HeadSizes(num_kv_heads=4, head_dim=512, shares_projection=True)


# The numbers of google/gemma-4-E2B-it's text model.
GEMMA4_E2B: dict[str, Any] = {
    "model_type": "gemma4_text",
    "attention_k_eq_v": False,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_size": 1536,
    "hidden_size_per_layer_input": 256,
    "intermediate_size": 6144,
    "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7,
    "num_attention_heads": 8,
    "num_global_key_value_heads": None,
    "num_hidden_layers": 35,
    "num_key_value_heads": 1,
    "num_kv_shared_layers": 20,
    "sliding_window": 512,
    "use_double_wide_mlp": True,
    "vocab_size_per_layer_input": 262144,
}


def gemma4(**changes: Any) -> ModelConfig:
    return parse_model_config(GEMMA4 | GLOBAL_KEYS | changes)


def test_gemma4_has_heads_of_their_own_in_layers_that_see_everything() -> None:
    config = gemma4()
    assert config.sliding_layers == (0, 1, 2, 3, 4, 6, 7, 8, 9, 10)
    assert (config.heads(5), config.heads(11)) == (WIDE, WIDE)
    assert config.heads(0) == HeadSizes(num_kv_heads=16, head_dim=256)
    assert (config.queries_size(0), config.queries_size(5)) == (32 * 256, 32 * 512)
    assert (config.qkv_size(0), config.qkv_size(5)) == (64 * 256, 36 * 512)
    assert (config.attention_scale, config.logit_cap, config.norm_offset) == (1.0, 30.0, 0.0)
    assert (config.has_value_norm, config.has_layer_scalars, config.norms) == (True, True, "around")
    apart = gemma4(attention_k_eq_v=False)  # the number of heads is not read then, as in transformers
    assert apart.heads(5) == HeadSizes(num_kv_heads=16, head_dim=512)


def test_heads_of_gemma4_are_read_in_both_ways_of_writing_them() -> None:
    by_layer = parse_model_config({**GEMMA4, "per_layer_config": {"05": OVERRIDE, "11": OVERRIDE}})
    assert by_layer == gemma4()
    theirs = AutoConfig.for_model(**GEMMA4, **GLOBAL_KEYS)
    assert parse_model_config(json.loads(theirs.to_json_string(use_diff=False))) == gemma4()
    alike = parse_model_config({**GEMMA4, "per_layer_config": {}})
    assert alike.heads(5) == HeadSizes(num_kv_heads=16, head_dim=256, shares_projection=True)


def test_the_last_layer_of_gemma4_sees_everything_whatever_its_type() -> None:
    types = ["full_attention", *["sliding_attention"] * 11]
    theirs = AutoConfig.for_model(**GEMMA4 | GLOBAL_KEYS | {"layer_types": list(types)})
    assert theirs.layer_types[-1] == "full_attention"
    assert gemma4(layer_types=types).sliding_layers == tuple(range(1, 11))
    assert gemma4(num_hidden_layers=2).sliding_layers == (0,)


def test_of_gemma4s_wide_heads_a_quarter_is_turned_and_all_are_pairs() -> None:
    local, everywhere = gemma4().ropes["local"], gemma4().ropes["global"]
    assert (local.theta, local.dim, local.scaling) == (1e4, 256, None)
    assert (everywhere.theta, everywhere.dim) == (1e6, 512)
    assert everywhere.scaling is not None
    assert (everywhere.scaling.kind, everywhere.scaling.share, everywhere.scaling.factor) == ("proportional", 0.25, 1)
    assert gemma4().rotary_dim is None
    said = {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    assert gemma4(rope_parameters=said) == gemma4()
    assert gemma4(rope_theta=5.0) == gemma4()  # transformers knows no such key of it
    plain = gemma4(rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1e6}})
    assert plain.ropes["global"].scaling is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention = all"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        ({"rope_parameters": {"full_attention": {"rope_type": "axial"}}}, "rope_parameters.full_attention.rope_type"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling ="),
        (
            {"rope_parameters": {"sliding_attention": {"rope_type": "proportional"}}},
            "rope_parameters.sliding_attention.rope_type = proportional",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default", "partial_rotary_factor": 0.5}}},
            "partial_rotary_factor = 0.5",
        ),
        ({"per_layer_config": {"5": OVERRIDE}}, "per_layer_config.5 ="),
        ({"per_layer_config": {"5": OVERRIDE, "11": {"head_dim": 128}}}, "per_layer_config.5 ="),
        ({"per_layer_config": {"4": OVERRIDE, "5": OVERRIDE, "11": OVERRIDE}}, "per_layer_config.4 ="),
        ({"per_layer_config": {"5": {"sliding_window": 3}}}, "per_layer_config.5.sliding_window = 3"),
    ],
)
def test_what_gemma4_could_ask_for_and_is_not_there_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        gemma4(**changes)
    assert words in caught.value.message
    assert "llamacpp" in caught.value.hint


def test_a_gemma4_config_that_says_nothing_has_inputs_by_layer() -> None:
    config = parse_model_config({"model_type": "gemma4_text"})
    assert config.layer_inputs == LayerInputs(size=256, vocab_size=262144)
    assert (config.num_layers, config.shared_caches) == (30, None)


def test_the_last_layers_of_gemma4s_small_models_see_what_earlier_ones_keep() -> None:
    config = parse_model_config(GEMMA4_E2B)
    assert config.caching_layers == tuple(range(15))
    assert [config.seen_by(layer) for layer in (0, 14, 15, 18, 19, 34)] == [0, 14, 13, 13, 14, 14]
    assert [config.kept_at(layer) for layer in (3, 15, 19)] == [3, 13, 14]
    assert (config.qkv_size(14), config.qkv_size(18), config.qkv_size(19)) == (10 * 512, 8 * 256, 8 * 512)
    assert (config.mlp_size(14), config.mlp_size(15)) == (6144, 12288)
    assert parse_model_config(GEMMA4_E2B | {"use_double_wide_mlp": False}).mlp_size(15) == 6144
    assert config.heads(4) == HeadSizes(num_kv_heads=1, head_dim=512)
    theirs = AutoConfig.for_model(**GEMMA4_E2B)
    assert parse_model_config(json.loads(theirs.to_json_string(use_diff=False))) == config


@pytest.mark.parametrize("by_layer", [False, True])
def test_gemma4s_small_models_are_estimated_as_they_are_run(by_layer: bool) -> None:
    keys = GEMMA4_E2B
    if by_layer:
        full = {str(layer): {"head_dim": 512} for layer in range(4, 35, 5)}
        keys = {key: value for key, value in keys.items() if key != "global_head_dim"} | {"per_layer_config": full}
    config, shape = parse_model_config(keys), config_shape(keys)
    assert shape.num_parameters == num_parameters(config) == 4_628_569_344
    assert shape.num_active_parameters == 4_628_569_344 - 262144 * 35 * 256
    assert [cache.kind for cache in shape.caches[13:17]] == ["window", "full", "shared", "shared"]
    kept = [2 * config.heads(layer).keys_size for layer in config.caching_layers]
    assert [cache.width for cache in shape.caches if cache.kind != "shared"] == kept


@pytest.mark.parametrize(
    "changes",
    [
        {"global_head_dim": 511},
        {"num_global_key_value_heads": 5},
        {"per_layer_config": 7},
        {"per_layer_config": {"5": 7}},
        {"per_layer_config": {"full_attention": OVERRIDE}},
        {"final_logit_softcapping": 0},
        {"hidden_size_per_layer_input": -1},
        {"hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262143},
        {"hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": None},
        {"num_kv_shared_layers": 13},
        {"num_kv_shared_layers": 12},  # nobody keeps anything
        {"num_kv_shared_layers": 7},  # the first that sees everything is the sixth
        {"num_kv_shared_layers": 2, "use_double_wide_mlp": 1},
    ],
)
def test_numbers_of_gemma4_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadModelFile):
        gemma4(**changes)


def test_gemma4_with_experts_has_them_beside_the_mlp_of_every_layer() -> None:
    experts = gemma4(**MOE).experts
    assert experts is not None
    assert (experts.count, experts.per_token, experts.intermediate_size) == (128, 8, 704)
    assert (experts.routing, experts.activation, experts.router) == ("topk_softmax", "gelu_tanh", "router.proj")
    assert (experts.layers, experts.is_beside, experts.has_bias) == (tuple(range(12)), True, False)
    assert experts.width_of_token == 8 * 704
    theirs = AutoConfig.for_model(**GEMMA4 | GLOBAL_KEYS | MOE)
    assert parse_model_config(json.loads(theirs.to_json_string(use_diff=False))) == gemma4(**MOE)
    assert gemma4(**MOE | {"enable_moe_block": False}).experts is None  # what else is said of them says nothing


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"enable_moe_block": "yes"}, "enable_moe_block = yes is not valid"),
        ({"num_experts": None}, "num_experts = None is not valid"),
        ({"num_experts": 0}, "num_experts = 0 is not valid"),
        ({"top_k_experts": 129}, "top_k_experts = 129 is not valid"),
        ({"top_k_experts": None}, "top_k_experts = None is not valid"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size = None is not valid"),
    ],
)
def test_numbers_of_experts_of_gemma4_are_refused_by_their_names(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadModelFile) as caught:
        gemma4(**MOE | changes)
    assert words in caught.value.message
    assert caught.value.hint.startswith("It must be")


@pytest.mark.parametrize("layers", [GLOBAL_KEYS, MOE, {"per_layer_config": {"05": OVERRIDE, "11": OVERRIDE}}])
def test_gemma4_is_estimated_as_it_is_run(layers: dict[str, Any]) -> None:
    keys = {**GEMMA4, **layers}
    config, shape = parse_model_config(keys), config_shape(keys)
    assert shape.num_parameters == num_parameters(config)
    assert [cache.width for cache in shape.caches] == [2 * config.heads(layer).keys_size for layer in range(12)]
    assert [cache.window or None for cache in shape.caches] == [config.window(layer) for layer in range(12)]


def test_a_proportional_rope_is_gemma4s_alone() -> None:
    with pytest.raises(UnsupportedModel, match="rope_type = proportional"):
        gemma(rope_parameters={"full_attention": {"rope_type": "proportional"}})


# --- Phi-3 -----------------------------------------------------------------------------------------------------------


def test_phi_has_joined_matrices_and_no_biases() -> None:
    config = phi()
    assert (config.is_joined, config.attention_bias, config.mlp_bias) == (True, False, False)
    assert (config.sliding_window, config.norms, config.tie_word_embeddings) == (None, "before", False)
    assert phi(sliding_window=2047, num_hidden_layers=3).sliding_layers == (0, 1, 2)
    with pytest.raises(UnsupportedModel, match="attention_bias = True"):
        phi(attention_bias=True)


def test_part_of_phis_heads_may_be_turned() -> None:
    assert phi().rotary_dim is None
    assert (phi(partial_rotary_factor=0.75).rotary_dim, phi(partial_rotary_factor=1.0).rotary_dim) == (12, None)
    inside = phi(rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5})
    assert (inside.rotary_dim, inside.ropes["global"].dim) == (8, 8)
    for share in (0.2, 0.0, 1.5, "half"):
        with pytest.raises(BadModelFile, match="partial_rotary_factor"):
            phi(partial_rotary_factor=share)


@pytest.mark.parametrize("name", ["longrope", "su", "yarn"])
def test_longrope_is_read_under_its_older_names(name: str) -> None:
    rope = {"type": name, "original_max_position_embeddings": 4096, **FACTORS}
    keys: dict[str, Any] = {"rope_scaling": rope, "max_position_embeddings": 131072}
    scaling = phi(**keys).rope_scaling
    theirs = AutoConfig.for_model(**PHI, **keys)
    assert scaling is not None
    assert (scaling.kind, theirs.rope_parameters["rope_type"]) == ("longrope", "longrope")
    assert (
        scaling.original_max_position_embeddings == theirs.rope_parameters["original_max_position_embeddings"] == 4096
    )
    assert (scaling.short_factors, scaling.long_factors) == ((1.0,) * 8, (4.0,) * 8)
    assert scaling.factor == 32.0


def test_the_keys_of_phi_4_minis_own_code_are_known_as_far_as_they_say_nothing_new() -> None:
    auto_map = {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}
    known = {
        "auto_map": auto_map,
        "full_attn_mod": 1,
        "interpolate_factor": 1,
        "lm_head_bias": False,
        "mlp_bias": False,
    }
    assert phi(**known) == phi()
    for changes, words in (
        ({"full_attn_mod": 2}, "full_attn_mod = 2"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}}, "auto_map"),
        ({"auto_map": {"AutoModel": "modeling_phi3.Phi3Model"}}, "auto_map"),
        ({"rope_scaling": {"type": "longrope", "short_mscale": 1.1, **FACTORS}}, "rope_scaling.short_mscale = 1.1"),
    ):
        with pytest.raises(UnsupportedModel) as caught:
            phi(**changes)
        assert words in caught.value.message


# --- OLMo 2 ----------------------------------------------------------------------------------------------------------


def test_olmo_has_its_norms_after_the_branches() -> None:
    config = parse_model_config({"model_type": "olmo2", "attention_bias": True, "rope_theta": 500000})
    assert (config.norms, config.num_norms, config.qk_norm, config.norm_offset) == ("after", 2, "row", 0.0)
    assert (config.attention_bias, config.attention_output_bias, config.rope_theta) == (True, True, 5e5)
    with pytest.raises(UnsupportedModel, match=r"clip_qkv = 8\.0"):
        parse_model_config({"model_type": "olmo2", "clip_qkv": 8.0})


# --- SmolLM3 ---------------------------------------------------------------------------------------------------------

# As its maker's files have it, but for the window's keys, which say nothing there.
SMOLLM: dict[str, Any] = {"model_type": "smollm3", "num_hidden_layers": 9, "use_sliding_window": False}
SMOLLM |= {"sliding_window": None, "max_window_layers": 28, "layer_types": ["full_attention"] * 9}


def smollm(**changes: object) -> ModelConfig:
    return parse_model_config(SMOLLM | changes)


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        ({}, (3, 7)),
        ({"no_rope_layer_interval": 3}, (2, 5, 8)),
        ({"no_rope_layer_interval": 1}, tuple(range(9))),
        ({"no_rope_layer_interval": 10}, ()),
        ({"no_rope_layers": None, "no_rope_layer_interval": 4}, (3, 7)),
        ({"no_rope_layers": [0, 1, 1, 1, 1, 1, 1, 0, 1, 0], "no_rope_layer_interval": 4}, (0, 7)),
        ({"no_rope_layers": [1] * 9}, ()),
    ],
)
def test_some_layers_of_smollm_are_not_rotated(keys: dict[str, Any], layers: tuple[int, ...]) -> None:
    config = smollm(**keys)
    assert config.unrotated_layers == layers
    assert [config.rope(layer) == "none" for layer in range(9)] == [layer in layers for layer in range(9)]
    assert {name: rope.dim for name, rope in config.ropes.items()} == {"global": 128} | ({"none": 0} if layers else {})
    wanted = SmolLM3Config(**SMOLLM | keys)
    assert layers == tuple(layer for layer in range(9) if not wanted.no_rope_layers[layer])


@pytest.mark.parametrize("listed", [[1, 0], [], "1110", [1, 1, 1, 2] * 3, 4])
def test_layers_of_smollm_that_are_named_wrongly_are_refused(listed: object) -> None:
    with pytest.raises(BadModelFile, match="no_rope_layers") as caught:
        smollm(no_rope_layers=listed)
    assert "9 layers" in caught.value.hint


def test_an_interval_that_is_none_is_refused() -> None:
    with pytest.raises(BadModelFile, match="no_rope_layer_interval = 0"):
        smollm(no_rope_layer_interval=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_sliding_window": True, "sliding_window": 512}, "use_sliding_window = True"),
        ({"layer_types": ["linear_attention"] * 9}, "layer_types = linear_attention"),
        ({"hidden_act": "gelu"}, "hidden_act = gelu"),
        ({"architectures": ["SmolLM3ForQuestionAnswering"]}, "architectures = SmolLM3ForQuestionAnswering"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_parameters.rope_type = dynamic"),
    ],
)
def test_what_smollm_could_ask_for_and_is_not_there_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        smollm(**changes)
    assert words in caught.value.message
    assert "llamacpp" in caught.value.hint


def test_a_window_in_some_layers_of_smollm_alone_is_refused() -> None:
    with pytest.raises(BadModelFile, match="layer_types = sliding_attention"):
        smollm(layer_types=["sliding_attention"] * 9)


# --- Granite ---------------------------------------------------------------------------------------------------------

GRANITE: dict[str, Any] = {"model_type": "granite", "rms_norm_eps": 1e-5}
GRANITE |= {"embedding_multiplier": 12, "attention_multiplier": 0.015625, "residual_multiplier": 0.25}
GRANITE |= {"logits_scaling": 8.0}


def granite(**changes: object) -> ModelConfig:
    return parse_model_config(GRANITE | changes)


def test_granites_factors_are_put_where_other_models_have_some() -> None:
    config = granite()
    assert (config.embedding_factor, config.rms_norm_eps) == (48.0, 16e-5)
    assert (config.attention_scale, config.logit_factor) == (1 / 64, 1 / 8)
    assert granite(attention_multiplier=128**-0.5).attention_scale is None


def test_factors_that_a_granite_does_not_name_are_one() -> None:
    config = parse_model_config({"model_type": "granite"})
    assert (config.embedding_factor, config.rms_norm_eps, config.logit_factor) == (1.0, 1e-6, 1.0)
    assert config.attention_scale == 1.0


@pytest.mark.parametrize(
    "key", ["embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"]
)
@pytest.mark.parametrize("value", [0, -1.0, "12", True])
def test_factors_of_granite_that_make_no_sense_are_refused(key: str, value: object) -> None:
    with pytest.raises(BadModelFile, match=key):
        granite(**{key: value})


def test_a_factor_of_granites_in_another_model_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"residual_multiplier = 0\.22"):
        parse_model_config({"model_type": "llama", "residual_multiplier": 0.22})


# --- Qwen3.5 ---------------------------------------------------------------------------------------------------------

QWEN: dict[str, Any] = {"model_type": "qwen3_5_text", "num_hidden_layers": 6}


def qwen(**changes: Any) -> ModelConfig:
    return parse_model_config(QWEN | changes)


def delta_layers(**changes: Any) -> tuple[int, ...]:
    delta = qwen(**changes).delta
    return () if delta is None else delta.layers


def test_qwen_has_delta_nets_but_in_every_fourth_layer_unless_the_config_says_otherwise() -> None:
    assert delta_layers() == (0, 1, 2, 4, 5)
    assert delta_layers(full_attention_interval=2) == (0, 2, 4)
    named = ["full_attention", "linear_attention", *["full_attention"] * 4]
    assert delta_layers(layer_types=named, full_attention_interval=2) == (1,)
    assert delta_layers(layer_types=["full_attention"] * 6) == ()
    config = qwen(layer_types=named)
    assert [config.kept_at(layer) for layer in range(6)] == [0, 0, 1, 2, 3, 4]
    assert config.attention_layers == (0, 2, 3, 4, 5)


def test_what_qwen_does_not_say_is_as_transformers_has_it() -> None:
    config, theirs = qwen(), AutoConfig.for_model("qwen3_5_text")
    assert config.delta is not None
    assert config.rope_theta == theirs.rope_parameters["rope_theta"]
    assert config.rotary_dim == theirs.rope_parameters["partial_rotary_factor"] * theirs.head_dim
    assert (config.delta.key_heads, config.delta.value_heads) == (
        theirs.linear_num_key_heads,
        theirs.linear_num_value_heads,
    )
    assert (config.delta.key_dim, config.delta.value_dim) == (theirs.linear_key_head_dim, theirs.linear_value_head_dim)
    assert config.delta.taps == theirs.linear_conv_kernel_dim
    assert (config.vocab_size, config.hidden_size) == (theirs.vocab_size, theirs.hidden_size)
    assert (config.intermediate_size, config.head_dim) == (theirs.intermediate_size, theirs.head_dim)
    assert (config.num_heads, config.num_kv_heads) == (theirs.num_attention_heads, theirs.num_key_value_heads)
    assert (config.max_position_embeddings, config.rms_norm_eps) == (theirs.max_position_embeddings, 1e-6)
    assert (config.is_gated, config.norm_offset, config.qk_norm) == (True, 1.0, "head")


def test_positions_of_images_say_nothing_of_text() -> None:
    plain = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    of_images = {**plain, "mrope_interleaved": True, "mrope_section": [11, 11, 10]}
    assert qwen(rope_parameters=of_images) == qwen(rope_parameters=plain)
    with pytest.raises(UnsupportedModel, match="mrope_section"):
        phi(rope_parameters={"mrope_section": [11, 11, 10]})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attn_output_gate": False}, "attn_output_gate = False"),
        ({"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype = bfloat16"),
        ({"mlp_only_layers": [1]}, r"mlp_only_layers = \[1\]"),
        ({"layer_types": ["sliding_attention"] * 6}, "layer_types = sliding_attention"),
        ({"sliding_window": 512}, "sliding_window = 512"),
    ],
)
def test_what_qwen_could_ask_for_and_is_not_there_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        qwen(**changes)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layer_types", ["linear_attention"]),
        ("layer_types", "linear_attention"),
        ("full_attention_interval", 0),
        ("linear_num_value_heads", 24),
        ("linear_key_head_dim", 0),
        ("linear_conv_kernel_dim", None),
        ("linear_num_key_heads", "16"),
    ],
)
def test_delta_nets_that_make_no_sense_are_refused(key: str, value: object) -> None:
    with pytest.raises(BadModelFile, match=key):
        qwen(**{key: value})


def moe(**changes: Any) -> ModelConfig:
    return parse_model_config({"model_type": "qwen3_5_moe_text"} | changes)


def test_what_qwen_with_experts_does_not_say_is_as_transformers_has_it() -> None:
    config, theirs = moe(), AutoConfig.for_model("qwen3_5_moe_text")
    assert config.experts == ExpertsConfig(
        count=theirs.num_experts,
        per_token=theirs.num_experts_per_tok,
        intermediate_size=theirs.moe_intermediate_size,
        routing="topk_softmax",
        activation="silu",
        has_bias=False,
        router="gate",
        layers=tuple(range(40)),
        shared_size=theirs.shared_expert_intermediate_size,
    )
    assert (config.hidden_size, config.num_layers) == (theirs.hidden_size, theirs.num_hidden_layers)
    assert (config.num_heads, config.num_kv_heads) == (theirs.num_attention_heads, theirs.num_key_value_heads)
    assert (config.is_gated, config.norm_offset, config.delta) == (True, 1.0, qwen(num_hidden_layers=40).delta)


def test_the_shared_expert_has_a_width_of_its_own() -> None:
    experts = moe(shared_expert_intermediate_size=640, moe_intermediate_size=128).experts
    assert experts is not None
    assert (experts.intermediate_size, experts.shared_size) == (128, 640)
    with pytest.raises(BadModelFile, match="shared_expert_intermediate_size"):
        moe(shared_expert_intermediate_size=0)


def test_layers_have_experts_or_not_as_is_said() -> None:
    def layers(**changes: Any) -> tuple[int, ...]:
        config = {"model_type": "qwen3_moe", "num_hidden_layers": 9, "num_experts": 8, "num_experts_per_tok": 8}
        experts = parse_model_config(config | changes).experts
        return () if experts is None else experts.layers

    assert layers() == tuple(range(9))
    assert layers(decoder_sparse_step=3) == (2, 5, 8)
    assert layers(decoder_sparse_step=3, mlp_only_layers=[2, 3]) == (5, 8)
    assert layers(decoder_sparse_step=3, mlp_only_layers=[2, 5, 8]) == layers(num_experts=0) == ()
    for odd in (2, [True], ["2"]):
        with pytest.raises(BadModelFile, match="mlp_only_layers"):
            layers(mlp_only_layers=odd)
    with pytest.raises(BadModelFile, match="num_experts_per_tok"):
        layers(num_experts=7)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"norm_topk_prob": False}, "norm_topk_prob = False"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step = 2"),
        ({"mlp_only_layers": [1]}, r"mlp_only_layers = \[1\]"),
    ],
)
def test_experts_that_transformers_would_not_compute_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    assert moe(norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[]) == moe()
    with pytest.raises(UnsupportedModel, match=words):
        moe(**changes)


def test_a_convolution_that_sees_more_tokens_than_states_are_kept_is_refused() -> None:
    config = qwen(linear_conv_kernel_dim=SLOTS + 1)
    assert config.delta is not None
    assert config.delta.taps == SLOTS + 1
    with pytest.raises(UnsupportedModel, match="linear_conv_kernel_dim = 14 is not supported"):
        qwen(linear_conv_kernel_dim=SLOTS + 2)


# --- Ministral 3 ------------------------------------------------------------------------------------------------------

# As the hub has the text model of mistralai/Ministral-3-8B-Base-2512.
MINISTRAL3: dict[str, Any] = {
    "attention_dropout": 0.0,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 262144,
    "model_type": "ministral3",
    "num_attention_heads": 32,
    "num_hidden_layers": 34,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 16.0,
        "llama_4_scaling_beta": 0.1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 16384,
        "rope_theta": 1000000.0,
        "rope_type": "yarn",
        "type": "yarn",
    },
    "sliding_window": None,
    "use_cache": True,
    "vocab_size": 131072,
}


def ministral3(**rope: Any) -> ModelConfig:
    return parse_model_config({**MINISTRAL3, "rope_parameters": {**MINISTRAL3["rope_parameters"], **rope}})


def test_queries_of_ministral_3_grow_by_its_original_context() -> None:
    config = ministral3()
    assert config.query_growth == QueryGrowth(beta=0.1, span=16384)
    assert config == parse_model_config({"model_type": "ministral3"})
    assert (config.rope_theta, config.sliding_window, config.tie_word_embeddings) == (1e6, None, False)
    assert config.rope_scaling is not None
    assert (config.rope_scaling.kind, config.rope_scaling.attention_factor) == ("yarn", 1.0)
    assert num_parameters(config) == 8_489_553_920


def test_queries_that_do_not_grow_are_not_multiplied() -> None:
    assert ministral3(llama_4_scaling_beta=0.0).query_growth is None  # Devstral 2
    assert ministral3(llama_4_scaling_beta=None).query_growth is None
    assert parse_model_config({"model_type": "mistral"}).query_growth is None


def test_growth_goes_with_any_rotation_and_its_span_is_the_whole_context_where_none_is_named() -> None:
    rope = {"rope_theta": 7.0, "llama_4_scaling_beta": 0.3, "max_position_embeddings": 9}
    config = parse_model_config({"model_type": "ministral3", "max_position_embeddings": 99, "rope_parameters": rope})
    assert (config.rope_scaling, config.query_growth) == (None, QueryGrowth(beta=0.3, span=99))


@pytest.mark.parametrize("beta", [-0.1, "0.1", True])
def test_growth_that_makes_no_sense_is_refused(beta: object) -> None:
    with pytest.raises(BadModelFile, match="llama_4_scaling_beta"):
        ministral3(llama_4_scaling_beta=beta)


def test_growth_in_a_family_that_has_none_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"rope_parameters\.llama_4_scaling_beta = 0\.1"):
        parse_model_config({**MINISTRAL3, "model_type": "mistral"})


# --- multimodal models -----------------------------------------------------------------------------------------------

# As the hub has google/gemma-3-27b-it.
WHOLE: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255999,
    "eoi_token_index": 256000,
    "eos_token_id": [1, 106],
    "image_token_index": 262144,
    "initializer_range": 0.02,
    "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "model_type": "gemma3_text",
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "query_pre_attn_scalar": 168,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}


def test_of_a_multimodal_model_the_text_model_is_read() -> None:
    config = parse_model_config(WHOLE)
    assert config == parse_model_config({**WHOLE["text_config"], "eos_token_id": [1, 106]})
    assert (config.model_type, config.vocab_size, config.eos_token_ids) == ("gemma3_text", 262208, (1, 106))
    assert (config.attention_scale, config.window(0), config.window(5)) == (168**-0.5, 1024, None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["Gemma3ForSequenceClassification"]}, "architectures"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config = gptq"),
        ({"audio_config": {"hidden_size": 3}}, "audio_config"),
        ({"text_config": {"model_type": "llama"}}, "text_config.model_type = llama"),
        ({"text_config": {"final_logit_softcapping": 30.0}}, "final_logit_softcapping = 30.0"),
    ],
)
def test_a_multimodal_model_of_another_kind_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        parse_model_config({**WHOLE, **changes})
    assert words in caught.value.message


@pytest.mark.parametrize("text", [None, "gemma3_text", []])
def test_a_multimodal_model_without_its_text_model_is_refused(text: object) -> None:
    with pytest.raises(BadModelFile, match="text_config"):
        parse_model_config({**WHOLE, "text_config": text})


# As the hub has mistralai/Mistral-Small-3.1-24B-Instruct-2503.
MISTRAL_SMALL: dict[str, Any] = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "image_token_index": 10,
    "model_type": "mistral3",
    "multimodal_projector_bias": False,
    "projector_hidden_act": "gelu",
    "spatial_merge_size": 2,
    "text_config": {
        "attention_dropout": 0.0,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 5120,
        "initializer_range": 0.02,
        "intermediate_size": 32768,
        "max_position_embeddings": 131072,
        "model_type": "mistral",
        "num_attention_heads": 32,
        "num_hidden_layers": 40,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000000.0,
        "sliding_window": None,
        "use_cache": True,
        "vocab_size": 131072,
    },
    "torch_dtype": "bfloat16",
    "transformers_version": "4.50.0.dev0",
    "vision_config": {"hidden_size": 1024, "model_type": "pixtral"},
    "vision_feature_layer": -1,
}


def test_of_mistrals_wholes_either_text_model_is_read() -> None:
    small = parse_model_config(MISTRAL_SMALL)
    assert small == parse_model_config(MISTRAL_SMALL["text_config"])
    assert (small.model_type, small.rope_theta, num_parameters(small)) == ("mistral", 1e9, 23_572_403_200)
    unnamed = {key: value for key, value in MISTRAL_SMALL["text_config"].items() if key != "model_type"}
    assert parse_model_config({**MISTRAL_SMALL, "text_config": unnamed}) == small
    assert parse_model_config({**MISTRAL_SMALL, "text_config": MINISTRAL3}) == ministral3()


@pytest.mark.parametrize(
    ("whole", "text", "is_tied"),
    [
        (None, None, False),
        (True, None, True),
        (False, None, False),
        (None, True, True),
        (True, True, True),
        (True, False, False),  # as transformers 5 writes it of every model that is not tied
    ],
)
def test_the_text_model_of_mistrals_wholes_says_first_whether_embeddings_are_tied(
    whole: bool | None, text: bool | None, is_tied: bool
) -> None:
    config = {**MISTRAL_SMALL, "tie_word_embeddings": whole}
    config["text_config"] = {**MISTRAL_SMALL["text_config"], "tie_word_embeddings": text}
    parsed = parse_model_config(config)
    assert parsed.tie_word_embeddings == is_tied
    assert num_parameters(parsed) == config_shape(config).num_parameters


FP8 = {"activation_scheme": "static", "quant_method": "fp8", "weight_block_size": None}


def test_weights_in_fp8_are_read_where_each_matrix_has_one_scale() -> None:
    whole = {**MISTRAL_SMALL, "text_config": MINISTRAL3, "quantization_config": FP8}
    assert parse_model_config(whole) == ministral3()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantization_config": FP8}, "quantization_config = fp8"),
        ({"text_config": MINISTRAL3, "quantization_config": "fp8"}, "quantization_config = fp8"),
        (
            {"text_config": MINISTRAL3, "quantization_config": FP8 | {"weight_block_size": [128, 128]}},
            "quantization_config.weight_block_size = [128, 128]",
        ),
    ],
)
def test_other_compressed_weights_are_refused_with_where_others_are(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        parse_model_config({**MISTRAL_SMALL, **changes})
    assert words in caught.value.message
    assert "BF16 version" in caught.value.hint
