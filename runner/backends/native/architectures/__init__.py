"""One small file for each model_type, composed of the shared blocks. They import torch; this file does not.

To add one, write `build(config) -> Decoder` in a file named after the model_type and name it here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast

from runner.errors import UnsupportedModel
from runner.model_config import ModelConfig

if TYPE_CHECKING:
    from runner.backends.native.blocks import Decoder

ARCHITECTURES = (
    "gemma2",
    "gemma3_text",
    "gemma4_text",
    "gpt_oss",
    "granite",
    "llama",
    "mimo",
    "ministral3",
    "mistral",
    "mixtral",
    "olmo2",
    "olmo3",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_moe",
    "smollm3",
)


class ArchitectureModule(Protocol):
    def build(self, config: ModelConfig) -> Decoder:
        """The model, its parameters uninitialized."""
        ...


def build(config: ModelConfig) -> Decoder:
    """The model of `config`, its parameters uninitialized. Raises UnsupportedModel."""
    if config.model_type not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{config.model_type}: model type not supported by the native backend.",
            hint=f"Supported: {', '.join(ARCHITECTURES)}. Use --backend llamacpp with a GGUF of it.",
        )
    module = importlib.import_module(f"{__name__}.{config.model_type}")
    return cast(ArchitectureModule, module).build(config)
