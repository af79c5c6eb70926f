"""What transformers fixes for each model_type, and which keys of a config.json mean what: tables alone.

It knows nothing of how values are read and checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from runner.model_config.values import Activation, ExpertActivation, HeadNorm, NormPlacement, RopeKind, RouterName


@dataclass(frozen=True, kw_only=True)
class Family:
    """What transformers fixes for a model_type.

    defaults: of keys that are missing; None of a head count means "as many as attention heads", of head_dim
    "hidden_size / num_attention_heads". own_keys: what it reads beside the common keys. attention_bias: "key" reads
    the key for q, k, v and o, is_biased being its default; "qkv" always has it on q, k, v alone; "none" never has it.
    activation, qk_norm, has_sinks, norms, norm_offset, is_joined, is_gated: see ModelConfig. is_tied: when no key says
    it. scales_embeddings: by sqrt(hidden_size), rounded. logit_cap, score_cap: when no key says them. attention_scale:
    of the scores; None where it follows from head_dim or from a key. experts: see ExpertKeys. has_delta: layers may
    have a gated delta net (delta.py).
    has_full_heads: the layers that are not sliding have heads of their own (heads.py). has_value_norm,
    has_layer_scalars: see ModelConfig. quant_methods: the compressed checkpoints that can be read. fixed: keys that may
    only have that value, or one of a tuple.

    window: which layers see `sliding_window` tokens, that being its default: "all" of them; "upper", those from
    max_window_layers on; "pattern", all but each window_every-th. Where they are among own_keys, layer_types says
    otherwise, and without use_sliding_window no layer has it. ends_full: the last layer never has it.

    rope, rope_theta: the rotary embedding of a config.json that says nothing of it. local_rope_theta: of the sliding
    layers where they have their own. rope_names: its older names of kinds. has_proportional_rope: it
    knows that kind. partial_rotary: the default of partial_rotary_factor; None where it is not read (proportional has
    it always). rope_keys: of that object, what makes no difference here. original_context: the default of
    original_max_position_embeddings. has_query_growth: the rope has llama_4_scaling_beta. unrotated_every: each such
    layer is not rotated, unless no_rope_layers or no_rope_layer_interval says otherwise; None where all are.
    """

    architectures: tuple[str, ...]
    defaults: Mapping[str, int | None]
    own_keys: frozenset[str]
    attention_bias: Literal["key", "qkv", "none"]
    is_biased: bool = False
    activation: Activation = "silu"
    qk_norm: HeadNorm = "none"
    has_sinks: bool = False
    norms: NormPlacement = "before"
    norm_offset: float = 0.0
    is_joined: bool = False
    is_gated: bool = False
    is_tied: bool = False
    scales_embeddings: bool = False
    logit_cap: float | None = None
    score_cap: float | None = None
    attention_scale: float | None = None
    experts: ExpertKeys | None = None
    has_delta: bool = False
    has_full_heads: bool = False
    has_value_norm: bool = False
    has_layer_scalars: bool = False
    quant_methods: tuple[str, ...] = ()
    fixed: Mapping[str, object] = field(default_factory=dict)
    rms_norm_eps: float = 1e-6
    window: Literal["none", "all", "upper", "pattern"] = "none"
    sliding_window: int | None = 4096
    window_every: int = 2
    ends_full: bool = False
    rope: Mapping[str, Any] | None = None
    rope_theta: float = 10000.0
    local_rope_theta: float | None = None
    rope_names: Mapping[str, RopeKind] = field(default_factory=dict)
    has_proportional_rope: bool = False
    partial_rotary: float | None = None
    rope_keys: frozenset[str] = frozenset()
    original_context: int | None = None
    has_query_growth: bool = False
    unrotated_every: int | None = None


@dataclass(frozen=True, kw_only=True)
class ExpertKeys:
    """How a family spells its mixture of experts, and what it fixes for it (see ExpertsConfig).

    count: the names of the number of experts; least: the least number that makes sense. width: the name of the size of
    one; shared_width: of that of the shared one, "" where there is none; per_token: of how many a token takes.
    switch: the key that says whether there are any, "" where there always are. fixed: keys that may only have that
    value.
    """

    count: tuple[str, ...]
    least: int
    width: str
    routing: Literal["softmax_topk", "topk_softmax"]
    activation: ExpertActivation
    has_bias: bool
    router: RouterName
    fixed: Mapping[str, float]
    shared_width: str = ""
    per_token: str = "num_experts_per_tok"
    switch: str = ""
    is_beside: bool = False


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
_MIXTRAL = _MISTRAL | {"num_local_experts": 8, "num_experts_per_tok": 2}
_MINISTRAL3 = _MISTRAL | {
    "vocab_size": 131072,
    "num_hidden_layers": 34,
    "head_dim": 128,
    "max_position_embeddings": 262144,
}
_QWEN = _LLAMA | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "bos_token_id": None,
    "eos_token_id": None,
}
_QWEN_MOE = _QWEN | {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
_GPT_OSS = _QWEN | {
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
}
_GEMMA3 = _LLAMA | {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
_GEMMA4 = _GEMMA3 | {
    "vocab_size": 262144,
    "num_hidden_layers": 30,
    "global_head_dim": 512,
    "hidden_size_per_layer_input": 256,
    "num_experts": None,
    "top_k_experts": None,
    "moe_intermediate_size": None,
    "vocab_size_per_layer_input": 262144,
}
_PHI3 = _LLAMA | {
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "eos_token_id": 32000,
}
_OLMO2 = _LLAMA | {"vocab_size": 50304, "bos_token_id": None, "eos_token_id": 50279}
_SMOLLM3 = _LLAMA | {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
_QWEN3_5 = _QWEN | {
    "vocab_size": 248320,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
_QWEN3_5_MOE = _QWEN3_5 | {
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
_QWEN_KEYS = _names("attention_bias use_sliding_window sliding_window max_window_layers layer_types")

_QWEN3_5_DENSE = Family(
    architectures=("Qwen3_5ForCausalLM",),
    defaults=_QWEN3_5,
    own_keys=_names(
        "attention_bias layer_types full_attention_interval linear_num_key_heads linear_num_value_heads "
        "linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim attn_output_gate mamba_ssm_dtype"
    ),
    attention_bias="key",
    qk_norm="head",
    norm_offset=1.0,
    is_gated=True,
    has_delta=True,
    fixed={"attn_output_gate": True, "mamba_ssm_dtype": "float32"},
    partial_rotary=0.25,
    rope_keys=_names("mrope_section mrope_interleaved"),  # which of a token's three positions, equal in text
)

FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        architectures=("LlamaForCausalLM", "LLaMAForCausalLM"),
        defaults=_LLAMA,
        own_keys=_names("attention_bias mlp_bias"),
        attention_bias="key",
    ),
    "granite": Family(
        architectures=("GraniteForCausalLM",),
        defaults=_LLAMA,
        own_keys=_names(
            "attention_bias mlp_bias embedding_multiplier attention_multiplier residual_multiplier logits_scaling"
        ),
        attention_bias="key",
    ),
    "mistral": Family(
        architectures=("MistralForCausalLM",),
        defaults=_MISTRAL,
        own_keys=_names("sliding_window"),
        attention_bias="none",
        window="all",
    ),
    "mixtral": Family(
        architectures=("MixtralForCausalLM",),
        defaults=_MIXTRAL,
        own_keys=_names("sliding_window num_local_experts num_experts_per_tok router_jitter_noise"),
        attention_bias="none",
        rms_norm_eps=1e-5,
        window="all",
        sliding_window=None,
        rope_theta=1e6,
        experts=ExpertKeys(
            count=("num_local_experts",),
            least=1,
            width="intermediate_size",
            routing="topk_softmax",
            activation="silu",
            has_bias=False,
            router="gate",
            fixed={"decoder_sparse_step": 1},
        ),
    ),
    "ministral3": Family(
        architectures=("Ministral3ForCausalLM",),
        defaults=_MINISTRAL3,
        own_keys=_names("sliding_window"),
        attention_bias="none",
        quant_methods=("fp8",),
        rms_norm_eps=1e-5,
        window="all",
        sliding_window=None,
        rope={
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 16384,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
        has_query_growth=True,
    ),
    "qwen2": Family(
        architectures=("Qwen2ForCausalLM",),
        defaults=_QWEN,
        own_keys=_QWEN_KEYS,
        attention_bias="qkv",
        window="upper",
    ),
    "mimo": Family(
        architectures=("MiMoForCausalLM",),
        defaults=_QWEN,
        own_keys=_QWEN_KEYS | _names("use_mrope auto_map"),
        attention_bias="qkv",
        fixed={"use_mrope": False},
        window="upper",
    ),
    "qwen3": Family(
        architectures=("Qwen3ForCausalLM",),
        defaults=_QWEN | {"head_dim": 128},
        own_keys=_QWEN_KEYS,
        attention_bias="key",
        qk_norm="head",
        window="upper",
    ),
    "qwen3_moe": Family(
        architectures=("Qwen3MoeForCausalLM",),
        defaults=_QWEN_MOE,
        own_keys=_names(
            "attention_bias use_sliding_window sliding_window max_window_layers num_experts num_local_experts "
            "num_experts_per_tok moe_intermediate_size norm_topk_prob decoder_sparse_step mlp_only_layers"
        ),
        attention_bias="key",
        qk_norm="head",
        window="all",
        experts=ExpertKeys(
            count=("num_experts", "num_local_experts"),
            least=0,
            width="moe_intermediate_size",
            routing="softmax_topk",
            activation="silu",
            has_bias=False,
            router="gate",
            fixed={},
        ),
    ),
    "qwen3_5_text": _QWEN3_5_DENSE,
    "qwen3_5_moe_text": replace(
        _QWEN3_5_DENSE,
        architectures=("Qwen3_5MoeForCausalLM",),
        defaults=_QWEN3_5_MOE,
        own_keys=_QWEN3_5_DENSE.own_keys
        | _names(
            "num_experts num_experts_per_tok moe_intermediate_size shared_expert_intermediate_size norm_topk_prob "
            "decoder_sparse_step"
        ),
        experts=ExpertKeys(
            count=("num_experts",),
            least=1,
            width="moe_intermediate_size",
            routing="topk_softmax",
            activation="silu",
            has_bias=False,
            router="gate",
            fixed={"norm_topk_prob": True, "decoder_sparse_step": 1},
            shared_width="shared_expert_intermediate_size",
        ),
    ),
    "gpt_oss": Family(
        architectures=("GptOssForCausalLM",),
        defaults=_GPT_OSS,
        # The last two say again, in its maker's words, what other keys say.
        own_keys=_names(
            "attention_bias sliding_window layer_types num_local_experts num_experts_per_tok swiglu_alpha swiglu_limit "
            "experts_per_token initial_context_length"
        ),
        attention_bias="key",
        is_biased=True,
        has_sinks=True,
        window="pattern",
        sliding_window=128,
        experts=ExpertKeys(
            count=("num_local_experts",),
            least=1,
            width="intermediate_size",
            routing="topk_softmax",
            activation="clamped_swiglu",
            has_bias=True,
            router="router",
            fixed={"swiglu_alpha": 1.702, "swiglu_limit": 7.0},
        ),
        quant_methods=("mxfp4",),
        rms_norm_eps=1e-5,
        rope={
            "rope_type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
        rope_theta=150000.0,
    ),
    "gemma2": Family(
        architectures=("Gemma2ForCausalLM",),
        defaults=_GEMMA3 | {"vocab_size": 256000, "max_position_embeddings": 8192},
        own_keys=_names(
            "attention_bias sliding_window layer_types query_pre_attn_scalar hidden_activation "
            "final_logit_softcapping attn_logit_softcapping "
            "sliding_window_size"  # published files say the window twice; transformers reads the other one
        ),
        attention_bias="key",
        activation="gelu_tanh",
        norms="around",
        norm_offset=1.0,
        is_tied=True,
        scales_embeddings=True,
        logit_cap=30.0,
        score_cap=50.0,
        window="pattern",
        window_every=2,
    ),
    "gemma3_text": Family(
        architectures=("Gemma3ForCausalLM",),
        defaults=_GEMMA3,
        # Older configs have sliding_window_pattern in place of layer_types; transformers 5 notes it with a dash before.
        own_keys=_names(
            "attention_bias sliding_window sliding_window_pattern _sliding_window_pattern layer_types "
            "query_pre_attn_scalar rope_local_base_freq hidden_activation"
        ),
        attention_bias="key",
        activation="gelu_tanh",
        qk_norm="head",
        norms="around",
        norm_offset=1.0,
        is_tied=True,
        scales_embeddings=True,
        window="pattern",
        window_every=6,
        rope_theta=1000000.0,
        local_rope_theta=10000.0,
    ),
    "gemma4_text": Family(
        architectures=("Gemma4ForCausalLM",),
        defaults=_GEMMA4,
        # Those of experts say nothing without enable_moe_block.
        own_keys=_names(
            "attention_bias sliding_window layer_types hidden_activation attention_k_eq_v global_head_dim "
            "num_global_key_value_heads per_layer_config final_logit_softcapping use_bidirectional_attention "
            "hidden_size_per_layer_input vocab_size_per_layer_input num_kv_shared_layers use_double_wide_mlp "
            "enable_moe_block num_experts top_k_experts moe_intermediate_size"
        ),
        attention_bias="key",
        activation="gelu_tanh",
        qk_norm="head",
        norms="around",
        is_tied=True,
        scales_embeddings=True,
        attention_scale=1.0,
        has_full_heads=True,
        has_value_norm=True,
        has_layer_scalars=True,
        experts=ExpertKeys(
            count=("num_experts",),
            least=1,
            width="moe_intermediate_size",
            routing="topk_softmax",
            activation="gelu_tanh",
            has_bias=False,
            router="router.proj",
            fixed={},
            per_token="top_k_experts",
            switch="enable_moe_block",
            is_beside=True,
        ),
        fixed={
            "use_bidirectional_attention": (None, "vision"),  # of the tokens of images alone, and none ever comes
        },
        window="pattern",
        sliding_window=512,
        window_every=6,
        ends_full=True,
        rope={"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
        local_rope_theta=10000.0,
        has_proportional_rope=True,
    ),
    "phi3": Family(
        architectures=("Phi3ForCausalLM",),
        defaults=_PHI3,
        # Its maker's files name the code that transformers took over; what is fixed here is read by neither.
        own_keys=_names("sliding_window auto_map full_attn_mod interpolate_factor"),
        attention_bias="none",
        is_joined=True,
        fixed={"full_attn_mod": 1, "interpolate_factor": 1},
        rms_norm_eps=1e-5,
        window="all",
        sliding_window=None,
        rope_names={"su": "longrope", "yarn": "longrope"},
        partial_rotary=1.0,
        original_context=4096,
    ),
    "olmo2": Family(
        architectures=("Olmo2ForCausalLM",),
        defaults=_OLMO2,
        own_keys=_names("attention_bias"),
        attention_bias="key",
        qk_norm="row",
        norms="after",
        rms_norm_eps=1e-5,
    ),
    "olmo3": Family(
        architectures=("Olmo3ForCausalLM",),
        defaults=_OLMO2,
        own_keys=_names("attention_bias sliding_window layer_types"),
        attention_bias="key",
        qk_norm="row",
        norms="after",
        rms_norm_eps=1e-5,
        window="pattern",
        window_every=4,
        rope_theta=500000.0,
        local_rope_theta=500000.0,
    ),
    "smollm3": Family(
        architectures=("SmolLM3ForCausalLM",),
        defaults=_SMOLLM3,
        # Without a window the last two say nothing: transformers reads one of them not at all.
        own_keys=_names(
            "attention_bias mlp_bias no_rope_layers no_rope_layer_interval use_sliding_window layer_types "
            "sliding_window max_window_layers"
        ),
        attention_bias="key",
        is_tied=True,
        fixed={"use_sliding_window": False},
        window="all",
        unrotated_every=4,
        rope_theta=2000000.0,
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
    "use_cache cache_implementation pretraining_tp chunk_size_feed_forward return_dict output_attentions "
    "output_hidden_states attn_implementation _attn_implementation _attn_implementation_autoset "
    "_flash_attn_2_enabled output_router_logits router_aux_loss_coef "
    # Heads that draft for the model, whose tensors are set aside (quant/draft_tensors.py).
    "num_nextn_predict_layers mtp_num_hidden_layers mtp_use_dedicated_embeddings "
    # Labels of classification heads; a causal model has none.
    "id2label label2id num_labels problem_type task_specific_params "
    # Padding of batches, and defaults of sampling: the tokenizer's and the sampler's business.
    "pad_token_id sep_token_id do_sample temperature top_k top_p typical_p repetition_penalty max_length min_length "
    "max_new_tokens num_beams num_return_sequences length_penalty early_stopping no_repeat_ngram_size"
)

ROPE_KEYS = _names(
    "rope_type type rope_theta factor low_freq_factor high_freq_factor original_max_position_embeddings "
    "attention_factor beta_fast beta_slow mscale mscale_all_dim partial_rotary_factor truncate short_factor long_factor"
)
# Beside those where queries grow; what the context is, other keys say.
GROWTH_KEYS = _names("llama_4_scaling_beta max_position_embeddings")
