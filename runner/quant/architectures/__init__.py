"""The architectures that can be converted to GGUF, by config.json's model_type: one file each.

To add one, write its file from the rules of blocks.py and name it in ARCHITECTURES.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from runner.errors import UnsupportedModel
from runner.quant.architectures import granite, llama, ministral3, mistral, qwen2, qwen3, qwen3_5_text, smollm3
from runner.quant.tensor_rules import Architecture

ARCHITECTURES: Final[Mapping[str, Architecture]] = MappingProxyType(
    {
        module.ARCHITECTURE.model_type: module.ARCHITECTURE
        for module in (granite, llama, ministral3, mistral, qwen2, qwen3, qwen3_5_text, smollm3)
    }
)


def architecture_of(model_type: str) -> Architecture:
    """The architecture of that model_type. Raises UnsupportedModel with the ones that can be converted."""
    found = ARCHITECTURES.get(model_type)
    if found is None:
        raise UnsupportedModel(
            f"Models of type {model_type!r} cannot be converted to GGUF.",
            hint=f"Types that can: {', '.join(sorted(ARCHITECTURES))}. For others, look for a ready GGUF, or try mq4, "
            "which the native backend reads.",
        )
    return found
