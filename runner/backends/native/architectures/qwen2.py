"""Qwen2 and Qwen2.5: biases on q, k and v, never on o; upper layers may have a sliding window."""

from __future__ import annotations

from runner.backends.native.blocks import Attention, Decoder, GatedMlp, Layer
from runner.model_config import ModelConfig


def build(config: ModelConfig) -> Decoder:
    return Decoder(config, [_layer(config, index) for index in range(config.num_layers)])


def _layer(config: ModelConfig, index: int) -> Layer:
    attention = Attention(config, bias=config.attention_bias, window=config.window(index))
    return Layer(config, attention=attention, mlp=GatedMlp(config))
