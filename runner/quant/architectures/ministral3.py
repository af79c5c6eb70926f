"""Ministral 3: Mistral's tensors; a graph of its own in GGUF, whose queries grow (see gguf_metadata)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from runner.quant.architectures import mistral
from runner.quant.tensor_rules import Architecture

ARCHITECTURE: Final[Architecture] = replace(
    mistral.ARCHITECTURE, model_type="ministral3", gguf_name="mistral3", has_beta_slow=False
)
