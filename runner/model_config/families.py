"""What transformers fixes for each model_type, and which keys of a config.json mean what: tables alone.

It knows nothing of how values are read and checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Family:
    """What transformers fixes for a model_type.

    defaults: of keys that are missing; None of a head count means "as many as attention heads", of head_dim
    "hidden_size / num_attention_heads". own_keys: what it reads beside the common keys. attention_bias: "key" reads
    the key for q, k, v and o; "qkv" always has it on q, k, v alone; "none" never has it.
    """

    architectures: tuple[str, ...]
    defaults: Mapping[str, int | None]
    own_keys: frozenset[str]
    attention_bias: Literal["key", "qkv", "none"]
    qk_norm: bool = False


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MISTRAL = _LLAMA | {"intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072}
_QWEN = _LLAMA | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "bos_token_id": None,
    "eos_token_id": None,
}
_QWEN_KEYS = _names("attention_bias use_sliding_window sliding_window max_window_layers layer_types")

FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        architectures=("LlamaForCausalLM", "LLaMAForCausalLM"),
        defaults=_LLAMA,
        own_keys=_names("attention_bias mlp_bias"),
        attention_bias="key",
    ),
    "mistral": Family(
        architectures=("MistralForCausalLM",),
        defaults=_MISTRAL,
        own_keys=_names("sliding_window"),
        attention_bias="none",
    ),
    "qwen2": Family(
        architectures=("Qwen2ForCausalLM",),
        defaults=_QWEN,
        own_keys=_QWEN_KEYS,
        attention_bias="qkv",
    ),
    "qwen3": Family(
        architectures=("Qwen3ForCausalLM",),
        defaults=_QWEN | {"head_dim": 128},
        own_keys=_QWEN_KEYS,
        attention_bias="key",
        qk_norm=True,
    ),
}

SUPPORTED_MODEL_TYPES: tuple[str, ...] = tuple(FAMILIES)

COMMON_KEYS = _names(
    "model_type architectures vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads head_dim hidden_act max_position_embeddings rms_norm_eps rope_theta rope_scaling "
    "rope_parameters original_max_position_embeddings partial_rotary_factor tie_word_embeddings bos_token_id "
    "eos_token_id quantization_config"
)

# Keys that do not change the logits of a forward pass, each group with its reason.
INERT_KEYS = _names(
    # Where the file came from, and how it was stored.
    "_name_or_path _commit_hash name_or_path transformers_version torch_dtype dtype tokenizer_class is_llama_config "
    "unsloth_version unsloth_fixed transformers.js_config model_max_length max_sequence_length "
    # Training alone: initial values, dropout, checkpointing.
    "initializer_range attention_dropout hidden_dropout resid_pdrop embd_pdrop gradient_checkpointing "
    # How the sums are split or cached, which kernel computes them, what is returned beside the logits.
    "use_cache pretraining_tp chunk_size_feed_forward return_dict output_attentions output_hidden_states "
    "attn_implementation _attn_implementation _attn_implementation_autoset _flash_attn_2_enabled "
    # Labels of classification heads; a causal model has none.
    "id2label label2id num_labels problem_type task_specific_params "
    # Padding of batches, and defaults of sampling: the tokenizer's and the sampler's business.
    "pad_token_id sep_token_id do_sample temperature top_k top_p typical_p repetition_penalty max_length min_length "
    "max_new_tokens num_beams num_return_sequences length_penalty early_stopping no_repeat_ngram_size"
)

ROPE_KEYS = _names(
    "rope_type type rope_theta factor low_freq_factor high_freq_factor original_max_position_embeddings "
    "attention_factor beta_fast beta_slow mscale mscale_all_dim partial_rotary_factor truncate"
)
