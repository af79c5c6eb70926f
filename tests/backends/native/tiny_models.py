"""Random tiny models of every architecture, made by transformers and saved as it saves them, with a byte tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel

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
_YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 32}

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
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-window-in-upper-layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 18, "tie_word_embeddings": True}),
    "qwen3-biases": ("qwen3", {"head_dim": 10, "attention_bias": True}),
}
_CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def make(name: str, **more: Any) -> PreTrainedModel:
    """The tiny model of that name in float32, all its weights random, norms and biases too."""
    model_type, special = TINY[name]
    prefix = _CLASSES[model_type]
    config = getattr(transformers, f"{prefix}Config")(**{**_SHAPE, **special, **more})
    torch.manual_seed(7)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def save(model: PreTrainedModel, directory: Path, **options: Any) -> Path:
    """The model's files in `directory`, with those of the byte tokenizer."""
    model.save_pretrained(directory, **options)
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|begin|>", "eos_token": "<|end|>", "add_bos_token": False})
    )
    return directory


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
