"""Hugging Face directories for the conversion tests: tiny random models, and the demo model as safetensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

from runner.model_config import parse_model_config
from runner.quant.architectures import architecture_of
from runner.quant.gguf_file import read_header
from runner.quant.tensor_rules import tensors_of

CONFIGS = {
    "granite": transformers.GraniteConfig,
    "llama": transformers.LlamaConfig,
    "ministral3": transformers.Ministral3Config,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "qwen3_5_text": transformers.Qwen3_5TextConfig,
    "smollm3": transformers.SmolLM3Config,
}
SIZES = {
    "vocab_size": 8192,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 2,
}

# The fourth layer has attention, and a quarter of its heads' elements is rotated; three value heads a key head.
QWEN35 = {"num_hidden_layers": 4, "head_dim": 32, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
QWEN35 |= {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "pad_token_id": 0}


def random_model(
    directory: Path,
    demo: Path,
    model_type: str,
    *,
    dtype: torch.dtype = torch.float32,
    shard_size: str = "1GB",
    **options: Any,
) -> transformers.PreTrainedModel:
    """Save a random model with the demo's tokenizer to `directory`. Weights are large enough that every part of it
    matters, and norms and biases are not what they start as. Returns the model in float32."""
    torch.manual_seed(7)
    config = CONFIGS[model_type](**{**SIZES, **options})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.mul_(4)
    model.to(dtype).save_pretrained(directory, max_shard_size=shard_size)
    copy_tokenizer(demo, directory)
    # Loaded afresh: a cast model keeps a rounded rotary table.
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def copy_tokenizer(demo: Path, directory: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(demo / name, directory / name)


def demo_as_safetensors(directory: Path, demo: Path) -> Path:
    """The demo model's own weights as float16 safetensors under Hugging Face names, with its other files."""
    header = read_header(demo / "demo-q8_0.gguf")
    config = parse_model_config(json.loads((demo / "config.json").read_text()))
    tensors = {}
    for planned in tensors_of(architecture_of(config.model_type), config):
        stored = header.tensor(planned.target)
        assert stored is not None
        tensors[planned.source] = header.read_f32(stored).astype(np.float16)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    for name in ("config.json", "generation_config.json"):
        shutil.copyfile(demo / name, directory / name)
    copy_tokenizer(demo, directory)
    return directory


def edit_json(path: Path, change: Mapping[str, Any]) -> None:
    """Put `change` into the JSON object in `path`."""
    value = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(value | dict(change)))
