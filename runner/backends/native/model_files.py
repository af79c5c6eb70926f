"""The small Hugging Face files beside the weights: where they are and what the backend needs of them.

Reads JSON of limited size and nothing else; weights are quant.weights', text is tokenizer.py's.
"""

from __future__ import annotations

from pathlib import Path

from runner.errors import UnsupportedModel
from runner.model_config import ModelConfig, parse_model_config
from runner.quant.chat_templates import read_chat_templates
from runner.quant.json_file import read_json


def read_config(directory: Path) -> ModelConfig:
    """config.json of `directory`. Raises UnsupportedModel where there is none, or by the name of what it asks for."""
    path = directory / "config.json"
    if not path.is_file():
        raise UnsupportedModel(
            f"There is no config.json in {directory}.",
            hint="Put the model's Hugging Face files beside the weights.",
        )
    return parse_model_config(read_json(path))


def tokenizer_path(directory: Path) -> Path:
    """tokenizer.json of `directory`. Raises UnsupportedModel where there is none."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise UnsupportedModel(
            f"There is no tokenizer.json in {directory}.",
            hint="Fetch it from the model's repository, or use a GGUF of the model with --backend llamacpp.",
        )
    return path


def chat_template(directory: Path) -> str | None:
    """The chat template that these files carry, or None. Raises BadModelFile."""
    return read_chat_templates(directory).get("default")
