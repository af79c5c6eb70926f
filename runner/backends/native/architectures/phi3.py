"""Phi-3 and Phi-4: Llama with q, k and v in one matrix, gate and up in another; heads may be turned in part."""

from __future__ import annotations

from runner.backends.native.blocks import Attention, Decoder, GatedMlp, Layer
from runner.model_config import ModelConfig


def build(config: ModelConfig) -> Decoder:
    return Decoder(config, [_layer(config, index) for index in range(config.num_layers)])


def _layer(config: ModelConfig, index: int) -> Layer:
    attention = Attention(config, window=config.window(index), is_joined=config.is_joined)
    return Layer(config, attention=attention, mlp=GatedMlp(config, is_joined=config.is_joined))
