"""Gemma 2: Gemma 3 without norms of heads, but with scores that stay below a cap; its layers turn heads alike."""

from __future__ import annotations

from runner.backends.native.architectures import gemma3_text
from runner.backends.native.blocks import Decoder
from runner.model_config import ModelConfig


def build(config: ModelConfig) -> Decoder:
    return gemma3_text.build(config)
