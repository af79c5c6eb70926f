"""Qwen3.5, dense, its text alone: gated delta nets in most layers, attention with a gate in the others."""

from __future__ import annotations

from typing import Final

from runner.quant.architectures import blocks
from runner.quant.tensor_rules import Architecture

ARCHITECTURE: Final = Architecture(
    model_type="qwen3_5_text",
    gguf_name="qwen35",
    interleaved_rotary=False,
    has_delta_nets=True,
    rules=(
        *blocks.EMBEDDINGS,
        *blocks.NORMS_AS_CALLED,
        *blocks.ATTENTION,
        *blocks.QK_NORMS,
        *blocks.DELTA_NET,
        *blocks.GATED_MLP,
    ),
)
