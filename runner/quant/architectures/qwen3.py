"""Qwen3, dense: RMS norms on the heads of q and k instead of biases."""

from __future__ import annotations

from typing import Final

from runner.quant.architectures import blocks
from runner.quant.tensor_rules import Architecture

ARCHITECTURE: Final = Architecture(
    model_type="qwen3",
    gguf_name="qwen3",
    interleaved_rotary=False,
    rules=(*blocks.EMBEDDINGS, *blocks.NORMS, *blocks.ATTENTION, *blocks.QK_NORMS, *blocks.GATED_MLP),
)
