"""Llama: grouped-query attention, gated MLP, optional biases; rotary pairs interleaved in GGUF."""

from __future__ import annotations

from typing import Final

from runner.quant.architectures import blocks
from runner.quant.tensor_rules import Architecture

ARCHITECTURE: Final = Architecture(
    model_type="llama",
    gguf_name="llama",
    interleaved_rotary=True,
    has_llama3_rope=True,
    rules=(
        *blocks.EMBEDDINGS,
        *blocks.NORMS,
        *blocks.ATTENTION,
        *blocks.QKV_BIASES,
        *blocks.OUTPUT_BIAS,
        *blocks.GATED_MLP,
        *blocks.MLP_BIASES,
    ),
)
