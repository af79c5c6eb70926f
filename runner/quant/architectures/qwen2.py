"""Qwen2 and Qwen2.5: biases on q, k and v; rotary halves in GGUF as in the checkpoint."""

from __future__ import annotations

from typing import Final

from runner.quant.architectures import blocks
from runner.quant.tensor_rules import Architecture

ARCHITECTURE: Final = Architecture(
    model_type="qwen2",
    gguf_name="qwen2",
    interleaved_rotary=False,
    rules=(*blocks.EMBEDDINGS, *blocks.NORMS, *blocks.ATTENTION, *blocks.QKV_BIASES, *blocks.GATED_MLP),
)
