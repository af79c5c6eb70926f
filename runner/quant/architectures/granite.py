"""Granite 3: Llama's tensors; a graph of its own in GGUF, with factors (see gguf_metadata)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from runner.quant.architectures import llama
from runner.quant.tensor_rules import Architecture

ARCHITECTURE: Final[Architecture] = replace(llama.ARCHITECTURE, model_type="granite", gguf_name="granite")
