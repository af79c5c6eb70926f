"""Olmo 3: OLMo 2 with a window in most layers, whose rotary embedding is not scaled as that of the others is."""

from __future__ import annotations

from runner.backends.native.architectures import olmo2
from runner.backends.native.blocks import Decoder
from runner.model_config import ModelConfig


def build(config: ModelConfig) -> Decoder:
    return olmo2.build(config)
