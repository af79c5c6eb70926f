"""Qwen3.5's text model with experts: its layers, with a mixture of experts and a shared one in place of the MLP."""

from __future__ import annotations

from runner.backends.native.architectures.qwen3_5_text import attention
from runner.backends.native.blocks import Decoder, Layer
from runner.backends.native.moe import MoE
from runner.model_config import ModelConfig


def build(config: ModelConfig) -> Decoder:
    layers = range(config.num_layers)
    return Decoder(config, [Layer(config, attention=attention(config, index), mlp=MoE(config)) for index in layers])
