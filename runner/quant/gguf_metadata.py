"""Writes what a GGUF says about a model and its tokenizer, from ModelConfig and Vocabulary, with gguf's own writer.

It knows llama.cpp's metadata keys, and nothing of weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

import numpy as np
from gguf import GGUFWriter, Keys, RopeScalingType
from numpy.typing import NDArray

from runner.errors import UnsupportedModel
from runner.model_config import DeltaConfig, ModelConfig, QueryGrowth, RopeScaling
from runner.quant.special_tokens import SpecialTokens
from runner.quant.vocabulary import Vocabulary

QUANTIZATION_VERSION: Final = 2
MAX_NAME: Final = 200
NOT_BY_LLAMA_CPP: Final = "Run it with --backend native, or quantize it to mq4."  # a hint


def write_model(writer: GGUFWriter, config: ModelConfig, *, name: str) -> None:
    """Write the architecture's keys. `name` is shown to people."""
    writer.add_type("model")
    writer.add_name(name[:MAX_NAME])
    writer.add_context_length(context_length(config))
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_dimension_count(config.ropes["global"].dim)
    writer.add_rope_freq_base(config.rope_theta)
    if config.rope_scaling is not None:
        _write_rope_scaling(writer, config.rope_scaling)
    if config.query_growth is not None:
        _write_growth(writer, config.query_growth, config.rope_scaling)
    if config.model_type == "granite":
        _write_factors(writer, config)
    if config.delta is not None:
        _write_delta_net(writer, config, config.delta)


def _write_delta_net(writer: GGUFWriter, config: ModelConfig, delta: DeltaConfig) -> None:
    """Qwen3.5's, under the names that state space models have for it."""
    writer.add_ssm_conv_kernel(delta.taps)
    writer.add_ssm_state_size(delta.key_dim)
    writer.add_ssm_inner_size(delta.values_size)
    writer.add_ssm_time_step_rank(delta.value_heads)
    writer.add_ssm_group_count(delta.key_heads)
    writer.add_full_attention_interval(attention_interval(config))
    # Pairs of elements that turn with time, height and width of an image, by turns: in text these are equal.
    pairs = config.ropes["global"].dim // 2
    writer.add_rope_dimension_sections([(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0])


def attention_interval(config: ModelConfig) -> int:
    """The n of a model that has attention in each n-th layer, and delta nets in the others: all that a GGUF says of it.

    Raises UnsupportedModel where other layers have it: of such a file llama.cpp takes layers for what they are not, and
    without any attention it aborts.
    """
    layers = config.attention_layers
    every = layers[0] + 1 if layers else 0
    if every < 2 or layers != tuple(range(every - 1, config.num_layers, every)):
        raise UnsupportedModel(
            "llama.cpp wants attention in each n-th layer of such a model and delta nets in the others, and "
            "config.json says otherwise (layer_types).",
            hint=NOT_BY_LLAMA_CPP,
        )
    return every


def _write_growth(writer: GGUFWriter, growth: QueryGrowth, scaling: RopeScaling | None) -> None:
    """Its span is where YaRN has its original context, whether there is YaRN or not."""
    writer.add_attn_temperature_scale(growth.beta)
    if scaling is None or scaling.kind != "yarn":
        writer.add_rope_scaling_orig_ctx_len(growth.span)


def _write_factors(writer: GGUFWriter, config: ModelConfig) -> None:
    """Granite's, as ModelConfig has them: the same model with a residual_multiplier of 1."""
    writer.add_embedding_scale(config.embedding_factor)
    writer.add_residual_scale(1.0)
    writer.add_attention_scale(config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale)
    writer.add_logit_scale(1 / config.logit_factor)  # llama.cpp divides by it


def context_length(config: ModelConfig) -> int:
    """The context that a GGUF of this model may use (tokens).

    llama.cpp's graphs of these architectures attend to everything. Within the first `sliding_window` tokens that is
    what a sliding window does as well, so the context ends there.
    """
    if config.sliding_window is None:
        return config.max_position_embeddings
    return min(config.max_position_embeddings, config.sliding_window)


def rope_factors(config: ModelConfig) -> NDArray[np.float32] | None:
    """Llama 3's per-frequency divisors [head_dim / 2] float32, or None when the model has none.

    Long wavelengths are stretched by `factor`, short ones stay, and between the two the change is smooth
    (Llama 3.1's rope scaling, as in transformers' _compute_llama3_parameters).
    """
    scaling = config.rope_scaling
    if scaling is None or scaling.kind != "llama3":
        return None
    low, high, original = scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_max_position_embeddings
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    wavelengths = 2 * math.pi * config.rope_theta**exponents
    smooth = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / scaling.factor + smooth)).astype(np.float32)


def _write_rope_scaling(writer: GGUFWriter, scaling: RopeScaling) -> None:
    if scaling.kind == "llama3":
        return  # the rope_freqs tensor says it all
    if scaling.kind == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling.factor)
        return
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(scaling.factor)
    writer.add_rope_scaling_orig_ctx_len(scaling.original_max_position_embeddings)
    # llama.cpp multiplies its own 0.1 ln(factor) + 1 by this.
    writer.add_rope_scaling_attn_factors(scaling.attention_factor / (0.1 * math.log(scaling.factor) + 1.0))
    writer.add_rope_scaling_yarn_beta_fast(scaling.beta_fast)
    writer.add_rope_scaling_yarn_beta_slow(scaling.beta_slow)


def write_vocabulary(writer: GGUFWriter, vocabulary: Vocabulary) -> None:
    """Write the tokenizer's keys and the chat templates."""
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    if vocabulary.scores:
        writer.add_token_scores(vocabulary.scores)
    writer.add_token_types(vocabulary.types)
    if vocabulary.merges:
        writer.add_token_merges(vocabulary.merges)
    if vocabulary.add_space_prefix is not None:
        writer.add_add_space_prefix(vocabulary.add_space_prefix)
    _write_special_tokens(writer, vocabulary.special)
    _write_chat_templates(writer, vocabulary.chat_templates)


def _write_chat_templates(writer: GGUFWriter, templates: Mapping[str, str]) -> None:
    # The writer's own method for several templates orders them by a hash that changes from run to run.
    if default := templates.get("default"):
        writer.add_chat_template(default)
    named = {re.sub(r"[^A-Za-z0-9]", "_", name): text for name, text in sorted(templates.items()) if name != "default"}
    for name, text in named.items():
        writer.add_string(Keys.Tokenizer.CHAT_TEMPLATE_N.format(name=name), text)
    writer.add_array(Keys.Tokenizer.CHAT_TEMPLATES, list(named))


def _write_special_tokens(writer: GGUFWriter, special: SpecialTokens) -> None:
    for number, add in (
        (special.bos_id, writer.add_bos_token_id),
        (special.eos_id, writer.add_eos_token_id),
        (special.unk_id, writer.add_unk_token_id),
        (special.pad_id, writer.add_pad_token_id),
    ):
        if number is not None:
            add(number)
    # GGUF has three places for tokens that end an answer: end of text, of turn and of message.
    others = [number for number in special.end_ids if number != special.eos_id]
    for number, add in zip(others, (writer.add_eot_token_id, writer.add_eom_token_id), strict=False):
        add(number)
    writer.add_add_bos_token(special.add_bos)
    writer.add_add_eos_token(special.add_eos)
