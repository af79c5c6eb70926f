"""Mistral: Llama's graph in GGUF, without biases; a sliding window limits the context (see gguf_metadata)."""

from __future__ import annotations

from typing import Final

from runner.quant.architectures import blocks
from runner.quant.tensor_rules import Architecture

ARCHITECTURE: Final = Architecture(
    model_type="mistral",
    gguf_name="llama",
    interleaved_rotary=True,
    has_llama3_rope=True,
    rules=(*blocks.EMBEDDINGS, *blocks.NORMS, *blocks.ATTENTION, *blocks.GATED_MLP),
)
