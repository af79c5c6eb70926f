"""Shapes of models that the benchmarks make with random weights: what their config.json says. Data alone."""

from __future__ import annotations

from typing import Any

_LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5}
_QWEN = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "rms_norm_eps": 1e-6, "head_dim": 128}
_QWEN_SIZES = {"vocab_size": 151936, "rope_theta": 1e6, "max_position_embeddings": 40960}
_MOE = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}
_QWEN3_5 = (
    {"model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "rms_norm_eps": 1e-6, "head_dim": 256}
    | {"vocab_size": 248320, "max_position_embeddings": 262144, "full_attention_interval": 4}
    | {"linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
    | {"linear_conv_kernel_dim": 4}
    | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}}
)
_MINISTRAL = (
    {"model_type": "ministral3", "architectures": ["Ministral3ForCausalLM"], "rms_norm_eps": 1e-5}
    | {"vocab_size": 131072, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    | {"max_position_embeddings": 262144, "sliding_window": None}
)  # its rope is the default
_QWEN2 = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 32768,
}
_OLMO3_ROPE = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
_GEMMA2 = (
    {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "rms_norm_eps": 1e-6, "head_dim": 256}
    | {"vocab_size": 256000, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096}
    | {"max_position_embeddings": 8192, "query_pre_attn_scalar": 256, "tie_word_embeddings": True}
)
_GEMMA = (
    {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "rms_norm_eps": 1e-6}
    | {"vocab_size": 262144, "hidden_activation": "gelu_pytorch_tanh", "sliding_window_pattern": 6}
    | {"rope_theta": 1e6, "rope_local_base_freq": 10000.0, "tie_word_embeddings": True}
)
# Their checkpoints have 64 rows of vocabulary more, for images; GGUFs do not.
_GEMMA_LONG = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "max_position_embeddings": 131072}
# Layers that see everything have heads of their own, whose values are made of what keys are.
_GEMMA4 = (
    {"model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"], "rms_norm_eps": 1e-6}
    | {"vocab_size": 262144, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
    | {"attention_k_eq_v": True, "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 0}
    | {"max_position_embeddings": 262144}
)  # its ropes are the default
# Layers have inputs, and the last ones see what earlier ones keep.
_GEMMA4_SMALL = (
    _GEMMA4
    | {"attention_k_eq_v": False, "max_position_embeddings": 131072, "sliding_window": 512}
    | {"hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144}
    | {"num_attention_heads": 8, "head_dim": 256, "global_head_dim": 512}
)
_GPT_OSS = (
    {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "rms_norm_eps": 1e-5}
    | {"vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880}
    | {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "attention_bias": True}
    | {"num_experts_per_tok": 4, "sliding_window": 128, "swiglu_limit": 7.0}
    | {"rope_theta": 150000, "max_position_embeddings": 131072, "initial_context_length": 4096}
    | {"rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}}
)

SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": _LLAMA
    | {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "rope_theta": 500000.0, "max_position_embeddings": 131072},
    "qwen3-8b": _QWEN
    | _QWEN_SIZES
    | {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36}
    | {"num_attention_heads": 32, "num_key_value_heads": 8},
    "qwen3-0.6b": _QWEN
    | _QWEN_SIZES
    | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28}
    | {"num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": True},
    "qwen3-1.7b": _QWEN
    | _QWEN_SIZES
    | {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28}
    | {"num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": True},
    "llama-2-7b": _LLAMA
    | {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 32, "rope_theta": 10000.0, "max_position_embeddings": 4096},
    "llama-3.2-1b": _LLAMA
    | {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True}
    | {"rope_theta": 500000.0, "max_position_embeddings": 131072},
    "llama-3.2-3b": _LLAMA
    | {"vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28}
    | {"num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True}
    | {"rope_theta": 500000.0, "max_position_embeddings": 131072},
    "llama-3.3-70b": _LLAMA
    | {"vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80}
    | {"num_attention_heads": 64, "num_key_value_heads": 8, "rope_theta": 500000.0, "max_position_embeddings": 131072},
    "qwen3-4b": _QWEN
    | _QWEN_SIZES
    | {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True},
    "qwen3-14b": _QWEN
    | _QWEN_SIZES
    | {"hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40}
    | {"num_attention_heads": 40, "num_key_value_heads": 8},
    "qwen3-32b": _QWEN
    | _QWEN_SIZES
    | {"hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64}
    | {"num_attention_heads": 64, "num_key_value_heads": 8},
    "qwen2.5-7b": _QWEN2
    | {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28}
    | {"num_attention_heads": 28, "num_key_value_heads": 4},
    "qwen2.5-0.5b": _QWEN2
    | {"vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
    | {"num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen2.5-1.5b": _QWEN2
    | {"vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28}
    | {"num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen2.5-3b": _QWEN2
    | {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36}
    | {"num_attention_heads": 16, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen2.5-14b": _QWEN2
    | {"vocab_size": 152064, "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 48}
    | {"num_attention_heads": 40, "num_key_value_heads": 8},
    "qwen2.5-32b": _QWEN2
    | {"vocab_size": 152064, "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64}
    | {"num_attention_heads": 40, "num_key_value_heads": 8},
    "smollm2-360m": _LLAMA
    | {"vocab_size": 49152, "hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32}
    | {"num_attention_heads": 15, "num_key_value_heads": 5, "head_dim": 64, "tie_word_embeddings": True}
    | {"rope_theta": 100000.0, "max_position_embeddings": 8192},
    "smollm3-3b": {"model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"], "rms_norm_eps": 1e-6}
    | {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36}
    | {"num_attention_heads": 16, "num_key_value_heads": 4, "no_rope_layer_interval": 4, "tie_word_embeddings": True}
    | {"rope_theta": 5e6, "max_position_embeddings": 65536},
    "granite-3.3-2b": {"model_type": "granite", "architectures": ["GraniteForCausalLM"], "rms_norm_eps": 1e-5}
    | {"vocab_size": 49159, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 40}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True}
    | {"attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "residual_multiplier": 0.22}
    | {"logits_scaling": 8.0, "rope_theta": 1e7, "max_position_embeddings": 131072},
    "gemma-2-2b": _GEMMA2
    | {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26}
    | {"num_attention_heads": 8, "num_key_value_heads": 4},
    "gemma-2-9b": _GEMMA2
    | {"hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42}
    | {"num_attention_heads": 16, "num_key_value_heads": 8},
    "gemma-3-1b": _GEMMA
    | {"hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26, "sliding_window": 512}
    | {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "query_pre_attn_scalar": 256}
    | {"max_position_embeddings": 32768},
    "gemma-3-4b": _GEMMA
    | _GEMMA_LONG
    | {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    | {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256},
    "gemma-3-12b": _GEMMA
    | _GEMMA_LONG
    | {"hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48, "sliding_window": 1024}
    | {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "query_pre_attn_scalar": 256},
    "gemma-3-27b": _GEMMA
    | _GEMMA_LONG
    | {"hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62, "sliding_window": 1024}
    | {"num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 168},
    "gemma-4-e2b": _GEMMA4_SMALL
    | {"hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35, "num_key_value_heads": 1}
    | {"layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7}
    | {"num_kv_shared_layers": 20, "use_double_wide_mlp": True},
    "gemma-4-e4b": _GEMMA4_SMALL
    | {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 42, "num_key_value_heads": 2}
    | {"layer_types": [*["sliding_attention"] * 5, "full_attention"] * 7}
    | {"num_kv_shared_layers": 18},
    "gemma-4-31b": _GEMMA4
    | {"hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 60, "sliding_window": 1024}
    | {"num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 256}
    | {"num_global_key_value_heads": 4, "global_head_dim": 512},
    "gemma-4-26b-a4b": _GEMMA4
    | {"hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30, "sliding_window": 1024}
    | {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256}
    | {"num_global_key_value_heads": 2, "global_head_dim": 512, "enable_moe_block": True}
    | {"num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704},
    "mistral-nemo-12b": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "rms_norm_eps": 1e-5}
    | {"vocab_size": 131072, "hidden_size": 5120, "intermediate_size": 14336, "num_hidden_layers": 40}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "sliding_window": None}
    | {"rope_theta": 1e6, "max_position_embeddings": 131072},
    "mistral-small-3.2": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "rms_norm_eps": 1e-5}
    | {"vocab_size": 131072, "hidden_size": 5120, "intermediate_size": 32768, "num_hidden_layers": 40}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "sliding_window": None}
    | {"rope_theta": 1e9, "max_position_embeddings": 131072},
    # Of the first Mistral 7B, whose heads see 4096 positions back.
    "mistral-7b": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "rms_norm_eps": 1e-5}
    | {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "sliding_window": 4096}
    | {"rope_theta": 10000.0, "max_position_embeddings": 32768},
    # The text models of Ministral 3.
    "ministral-3-3b": _MINISTRAL
    | {"hidden_size": 3072, "intermediate_size": 9216, "num_hidden_layers": 26, "tie_word_embeddings": True},
    "ministral-3-8b": _MINISTRAL | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34},
    "phi-3-mini": {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "rms_norm_eps": 1e-5}
    | {"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 32, "sliding_window": 2047}
    | {"rope_theta": 10000.0, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096},
    "phi-4": {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "rms_norm_eps": 1e-5}
    | {"vocab_size": 100352, "hidden_size": 5120, "intermediate_size": 17920, "num_hidden_layers": 40}
    | {"num_attention_heads": 40, "num_key_value_heads": 10, "sliding_window": None}
    | {"rope_theta": 250000.0, "max_position_embeddings": 16384, "original_max_position_embeddings": 16384},
    "olmo-2-1b": {"model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], "rms_norm_eps": 1e-6}
    | {"vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
    | {"num_attention_heads": 16, "num_key_value_heads": 16, "rope_theta": 500000.0}
    | {"max_position_embeddings": 4096},
    "olmo-3-7b": {"model_type": "olmo3", "architectures": ["Olmo3ForCausalLM"], "rms_norm_eps": 1e-6}
    | {"vocab_size": 100278, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 32, "sliding_window": 4096, "rope_theta": 5e5}
    | {"max_position_embeddings": 65536, "rope_scaling": _OLMO3_ROPE, "eos_token_id": 100257},
    "mixtral-8x7b": {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "rms_norm_eps": 1e-5}
    | {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "rope_theta": 1e6, "max_position_embeddings": 32768}
    | {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen3-30b-a3b": _QWEN
    | _MOE
    | _QWEN_SIZES
    | {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48}
    | {"num_attention_heads": 32, "num_key_value_heads": 4, "norm_topk_prob": True}
    | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
    "qwen3.5-0.8b": _QWEN3_5
    | {"hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24, "tie_word_embeddings": True}
    | {"num_attention_heads": 8, "num_key_value_heads": 2, "linear_num_value_heads": 16},
    "qwen3.5-4b": _QWEN3_5
    | {"hidden_size": 2560, "intermediate_size": 9216, "num_hidden_layers": 32, "tie_word_embeddings": True}
    | {"num_attention_heads": 16, "num_key_value_heads": 4, "linear_num_value_heads": 32},
    "qwen3.5-9b": _QWEN3_5
    | {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32}
    | {"num_attention_heads": 16, "num_key_value_heads": 4, "linear_num_value_heads": 32},
    "qwen3.5-27b": _QWEN3_5
    | {"hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64}
    | {"num_attention_heads": 24, "num_key_value_heads": 4, "linear_num_value_heads": 48},
    "qwen3.5-35b-a3b": _QWEN3_5
    | {"model_type": "qwen3_5_moe_text", "architectures": ["Qwen3_5MoeForCausalLM"]}
    | {"hidden_size": 2048, "num_hidden_layers": 40, "linear_num_value_heads": 32}
    | {"num_attention_heads": 16, "num_key_value_heads": 2, "num_experts": 256, "num_experts_per_tok": 8}
    | {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512},
    "gpt-oss-20b": _GPT_OSS | {"num_hidden_layers": 24, "num_local_experts": 32},
    "gpt-oss-120b": _GPT_OSS | {"num_hidden_layers": 36, "num_local_experts": 128},
    # As large as the demo model, whose tokenizer fits it: for trying a benchmark out.
    "demo": _QWEN
    | {"vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 6, "head_dim": 64}
    | {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 2048},
    # The same with experts.
    "demo-moe": _QWEN
    | _MOE
    | {"vocab_size": 8192, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048, "norm_topk_prob": True}
    | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256},
    # So small that Triton's interpreter runs it.
    "tiny": _QWEN
    | {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 32}
    | {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 1024},
}


def config_of(shape: str, layers: int | None = None) -> dict[str, Any]:
    """config.json of that shape; layers: fewer or more than it has, as large a share of which see what others keep."""
    found = SHAPES[shape]
    if layers is None:
        return found
    count = found["num_hidden_layers"]
    types = found.get("layer_types", [])
    of_layers = {"layer_types": (types * (layers // count + 1))[:layers]}
    shared = found.get("num_kv_shared_layers", 0) * layers // count
    while shared and set(of_layers["layer_types"][: layers - shared]) != set(types):  # of each kind one keeps its own
        shared -= 1
    of_layers["num_kv_shared_layers"] = shared
    return found | {key: value for key, value in of_layers.items() if key in found} | {"num_hidden_layers": layers}
