"""SmolLM3: Llama without biases, and in each fourth layer without rotation, which llama.cpp's graph has fixed."""

from __future__ import annotations

from typing import Final

from runner.quant.architectures import blocks
from runner.quant.tensor_rules import Architecture

ARCHITECTURE: Final = Architecture(
    model_type="smollm3",
    gguf_name="smollm3",
    interleaved_rotary=True,
    unrotated_every=4,
    rules=(*blocks.EMBEDDINGS, *blocks.NORMS, *blocks.ATTENTION, *blocks.GATED_MLP),
)
