"""Random tiny models of every architecture, made by transformers and saved as it saves them, with a byte tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from runner.backends import native
from runner.backends.native.backend import NativeBackend
from runner.config import LoadOptions
from runner.types import CancelToken, ReadyModel

VOCAB = 263  # 256 bytes, three special tokens, four rows that no token uses

_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 76,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": 257,
    "eos_token_id": 258,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_EXPERTS = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 20}
_GPT_OSS = {"num_local_experts": 7, "num_experts_per_tok": 3, "sliding_window": 6, "pad_token_id": None}
_TWO_KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
_GEMMA = {"head_dim": 18, "pad_token_id": 0, "query_pre_attn_scalar": 30, "sliding_window": 6}
_GEMMA4 = {
    "head_dim": 18,
    "global_head_dim": 28,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "pad_token_id": 0,
    "sliding_window": 6,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 9.0,
}
_GEMMA4_MOE = {
    **_GEMMA4,
    "enable_moe_block": True,
    "num_experts": 7,
    "top_k_experts": 3,
    "moe_intermediate_size": 20,
}
_S, _F = "sliding_attention", "full_attention"
_GEMMA4_SMALL = _GEMMA4 | {
    "head_dim": 8,  # scores are not divided by its root, and so many layers of large ones make much of the last bits
    "global_head_dim": 12,
    "num_hidden_layers": 6,
    "layer_types": [_F, _S, _F, _S, _S, _F],
    "num_kv_shared_layers": 2,
    "rms_norm_eps": 0.01,
    "use_double_wide_mlp": True,
    "attention_k_eq_v": False,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": VOCAB,
}
_QWEN3_5 = {
    "head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "full_attention_interval": 2,
}
_GRANITE = {"embedding_multiplier": 6.0, "attention_multiplier": 0.2, "residual_multiplier": 0.4, "logits_scaling": 3.0}
_LOCAL_ROPE = {"rope_type": "default", "rope_theta": 50.0}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.25, 1.5],
    "long_factor": [2.0, 3.5, 6.0],
}
_YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 32}
_GROWING = {**_YARN, "original_max_position_embeddings": 8, "mscale": 1.0, "mscale_all_dim": 1.0}
_GROWING |= {"llama_4_scaling_beta": 0.2}

# By name: the model_type and what is special about it.
TINY: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-untied-one-kv-head": ("llama", {"num_key_value_heads": 1}),
    "llama-no-gqa": ("llama", {"num_key_value_heads": 6}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3-rope": ("llama", {"rope_parameters": _LLAMA3}),
    "llama-linear-rope": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 99.0}}),
    "llama-yarn-rope": ("llama", {"rope_parameters": _YARN}),
    "mistral-window": ("mistral", {"sliding_window": 7, "head_dim": 12}),
    "mistral": ("mistral", {"sliding_window": None}),
    "ministral3": ("ministral3", {"head_dim": 18, "rope_parameters": _GROWING}),
    "ministral3-window-tied-plain-rope": (
        "ministral3",
        {
            "head_dim": 12,
            "sliding_window": 7,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_theta": 99.0,
                "original_max_position_embeddings": 5,
                "llama_4_scaling_beta": 0.4,
            },
        },
    ),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-window-in-upper-layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 18, "tie_word_embeddings": True}),
    "qwen3-biases": ("qwen3", {"head_dim": 10, "attention_bias": True}),
    "qwen3-5": ("qwen3_5_text", {**_QWEN3_5, "tie_word_embeddings": True}),
    "qwen3-5-biases-untied-wide-rope": (
        "qwen3_5_text",
        {
            **_QWEN3_5,
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "linear_conv_kernel_dim": 3,
            "rms_norm_eps": 0.01,
            "attention_bias": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 99.0,
                "partial_rotary_factor": 0.5,
                "mrope_interleaved": True,
                "mrope_section": [3, 2, 1],
            },
        },
    ),
    "qwen3-5-moe": ("qwen3_5_moe_text", {**_QWEN3_5, **_EXPERTS, "shared_expert_intermediate_size": 20}),
    "qwen3-5-moe-biases-tied-wide-shared-expert": (
        "qwen3_5_moe_text",
        {
            **_QWEN3_5,
            **_EXPERTS,
            "shared_expert_intermediate_size": 28,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "gemma2": ("gemma2", {**_GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma2-biases-untied-no-caps": (
        "gemma2",
        {
            **_GEMMA,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
        },
    ),
    "gemma3": ("gemma3_text", {**_GEMMA, "sliding_window_pattern": 3}),
    "gemma3-global-rope-scaled-in-first-layer": (
        "gemma3_text",
        {
            **_GEMMA,
            "attention_bias": True,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 99.0},
                "sliding_attention": _LOCAL_ROPE,
            },
        },
    ),
    "gemma3-untied-no-window": (
        "gemma3_text",
        {**_GEMMA, "tie_word_embeddings": False, "layer_types": ["full_attention"] * 3, "query_pre_attn_scalar": 18},
    ),
    "gemma4": ("gemma4_text", _GEMMA4),
    "gemma4-biases-untied-values-apart": (
        "gemma4_text",
        {
            **_GEMMA4,
            "attention_k_eq_v": False,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "final_logit_softcapping": None,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "proportional",
                    "partial_rotary_factor": 0.4,
                    "factor": 2.0,
                    "rope_theta": 99.0,
                },
                "sliding_attention": _LOCAL_ROPE,
            },
        },
    ),
    "gemma4-heads-of-one-size": (
        "gemma4_text",
        {**_GEMMA4, "global_head_dim": 18, "num_global_key_value_heads": 2, "layer_types": ["full_attention"] * 3},
    ),
    "gemma4-moe": ("gemma4_text", _GEMMA4_MOE),
    "gemma4-moe-untied-values-apart-all-see-everything": (
        "gemma4_text",
        {
            **_GEMMA4_MOE,
            "attention_k_eq_v": False,
            "tie_word_embeddings": False,
            "layer_types": ["full_attention"] * 3,
            "top_k_experts": 1,
        },
    ),
    "gemma4-inputs-by-layer-and-shared-caches": ("gemma4_text", _GEMMA4_SMALL),
    "gemma4-inputs-by-layer-alone": (
        "gemma4_text",
        {**_GEMMA4, "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": VOCAB + 5},
    ),
    "gemma4-shared-caches-biases-untied-values-of-keys": (
        "gemma4_text",
        {
            **_GEMMA4_SMALL,
            "use_double_wide_mlp": False,
            "attention_k_eq_v": True,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "phi3": ("phi3", {"pad_token_id": 0}),
    "phi3-partial-rope-and-window": (
        "phi3",
        {"pad_token_id": 0, "partial_rotary_factor": 0.5, "sliding_window": 6, "tie_word_embeddings": True},
    ),
    "phi3-short-rope": (
        "phi3",
        {"pad_token_id": 0, "rope_parameters": _LONGROPE, "original_max_position_embeddings": 128},
    ),
    "phi3-long-rope": (
        "phi3",
        {"pad_token_id": 0, "rope_parameters": _LONGROPE, "original_max_position_embeddings": 16},
    ),
    "olmo2": ("olmo2", {"pad_token_id": 0}),
    "olmo2-biases-tied-one-kv-head": (
        "olmo2",
        {"pad_token_id": 0, "attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 1},
    ),
    "olmo3": ("olmo3", {"pad_token_id": 0, "sliding_window": 6}),
    "olmo3-biases-tied-long-rope": (
        "olmo3",
        {
            "pad_token_id": 0,
            "sliding_window": 6,
            "layer_types": _TWO_KINDS,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": {"full_attention": _YARN, "sliding_attention": {"rope_type": "default"}},
        },
    ),
    "granite": ("granite", {**_GRANITE, "tie_word_embeddings": True}),
    "granite-biases-untied": ("granite", {**_GRANITE, "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 0.3}),
    "smollm3": ("smollm3", {"pad_token_id": 0, "no_rope_layer_interval": 2}),
    "smollm3-biases-untied-layers-named": (
        "smollm3",
        {
            "pad_token_id": 0,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": False,
            "no_rope_layers": [0, 1, 0, 1],
            "rope_parameters": _YARN,
        },
    ),
    "mixtral": ("mixtral", {"head_dim": 18, "num_local_experts": 7, "num_experts_per_tok": 3, "sliding_window": 6}),
    "qwen3-moe": ("qwen3_moe", {"head_dim": 18, **_EXPERTS, "norm_topk_prob": True, "tie_word_embeddings": True}),
    "qwen3-moe-in-some-layers": ("qwen3_moe", {"head_dim": 18, **_EXPERTS, "mlp_only_layers": [1]}),
    "gpt-oss": ("gpt_oss", {"head_dim": 18, **_GPT_OSS}),
    "gpt-oss-plain-rope": (
        "gpt_oss",
        {"head_dim": 18, **_GPT_OSS, "attention_bias": False, "rope_parameters": {"rope_theta": 99.0}},
    ),
    "qwen3-moe-window": (
        "qwen3_moe",
        {"head_dim": 18, **_EXPERTS, "decoder_sparse_step": 2, "use_sliding_window": True, "sliding_window": 6},
    ),
}


def make(name: str, **more: Any) -> PreTrainedModel:
    """The tiny model of that name in float32, all its weights random, norms and biases too."""
    model_type, special = TINY[name]
    config = AutoConfig.for_model(model_type, **{**_SHAPE, **special, **more})
    torch.manual_seed(7)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.mul_(0.4 + torch.rand_like(buffer))
    return model


def save(model: PreTrainedModel, directory: Path, **options: Any) -> Path:
    """The model's files in `directory`, with those of the byte tokenizer."""
    model.save_pretrained(directory, **options)
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|begin|>", "eos_token": "<|end|>", "add_bos_token": False})
    )
    return directory


def stack_experts(directory: Path) -> None:
    """Store the experts of a saved model as Qwen3.5's are published: stacked, the rows of gate before those of up."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    stacks: dict[str, list[torch.Tensor]] = {}
    for name in sorted((name for name in tensors if ".mlp.experts." in name), key=_expert_of):
        mlp, _, _ = name.partition("experts.")
        stack = "down_proj" if "down_proj" in name else "gate_up_proj"
        stacks.setdefault(f"{mlp}experts.{stack}", []).append(tensors.pop(name))
    for name, parts in stacks.items():
        count = len(parts) if name.endswith("down_proj") else len(parts) // 2
        tensors[name] = torch.cat(parts).view(count, -1, parts[0].shape[1])
    save_file(tensors, path, {"format": "pt"})


def _expert_of(name: str) -> tuple[int, str]:
    expert, _, matrix = name.partition(".mlp.experts.")[2].partition(".")
    return int(expert), matrix  # gate_proj before up_proj


def byte_tokenizer() -> Tokenizer:
    """One token a byte, in the alphabet and the layout of Qwen's byte-level BPE, and three special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|pad|>", "<|begin|>", "<|end|>")])
    return tokenizer


def ready(directory: Path, *weights: Path) -> ReadyModel:
    """`directory` as a model to load: these weights, or all safetensors in it."""
    files = weights or tuple(sorted(directory.glob("*.safetensors")))
    return ReadyModel(
        name=directory.name,
        format="gguf" if files[0].suffix == ".gguf" else "safetensors",
        weights=files,
        directory=directory,
        size_bytes=sum(path.stat().st_size for path in files),
    )


def load(model: ReadyModel, **options: Any) -> NativeBackend:
    settings = LoadOptions(**{"n_threads": 1, "n_gpu_layers": 0, **options})
    backend = native.load(model, settings, lambda _: None, CancelToken())
    assert isinstance(backend, NativeBackend)
    return backend
