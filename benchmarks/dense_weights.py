"""A GGUF's weights, decoded, as a Hugging Face directory in float32, so that they run where their source runs.

Its divergence is that of the weights alone: llama.cpp rounds activations as well. All weights are in memory at once.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors.numpy import save_file

from runner.model_config import parse_model_config
from runner.quant.json_file import read_json
from runner.quant.weights import open_source
from runner.quant.work_directory import COMPANIONS


def write_dense(source: Path, gguf: Path, target: Path) -> Path:
    """The tensors of `gguf`, with the files beside the weights of `source`, in the directory `target`."""
    weights = open_source(source, gguf, parse_model_config(read_json(source / "config.json")))
    target.mkdir(parents=True, exist_ok=True)
    for name in COMPANIONS:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    save_file({name: weights.read(name) for name in weights.shapes}, target / "model.safetensors")
    return target
