"""Makes small real model files: GGUF and safetensors with a few tensors, and the JSON files beside them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from safetensors.numpy import save_file

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
SAMPLING = {"do_sample": True, "temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}


def write_gguf(path: Path, *, hidden: int = 32, sampling: bool = False) -> Path:
    """A GGUF file of a llama with one matrix; `hidden` changes its size, `sampling` adds sampling defaults."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_file_type(1)
    writer.add_chat_template(TEMPLATE)
    writer.add_string("general.license", "mit")
    if sampling:
        writer.add_float32("general.sampling.temp", 0.6)
        writer.add_int32("general.sampling.top_k", 7)
        writer.add_float32("general.sampling.top_p", 3.0)  # impossible: to be left out
    writer.add_tensor("token_embd.weight", np.zeros((16, hidden), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_safetensors(directory: Path, *, shards: int = 1, generation: dict[str, object] | None = None) -> Path:
    """A directory with safetensors weights in `shards` files, config, tokenizer and sampling defaults."""
    directory.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    for number in range(1, shards + 1):
        name = "model.safetensors" if shards == 1 else f"model-{number:05d}-of-{shards:05d}.safetensors"
        save_file({f"model.layers.{number}.weight": np.ones((4, 8), np.float32)}, directory / name)
        weight_map[f"model.layers.{number}.weight"] = name
    if shards > 1:
        index = {"metadata": {"total_size": 128 * shards}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 64}))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    (directory / "generation_config.json").write_text(json.dumps(SAMPLING if generation is None else generation))
    return directory


def read_tree(directory: Path) -> dict[str, bytes]:
    """The bytes of all files below `directory`, by POSIX path: what a hub serves as a repository."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }
