"""MiMo: Qwen2, with a multi-token head of its own beside it (heads/mtp.py)."""

from __future__ import annotations

from runner.backends.native.architectures import qwen2
from runner.backends.native.blocks import Decoder
from runner.model_config import ModelConfig


def build(config: ModelConfig) -> Decoder:
    return qwen2.build(config)
