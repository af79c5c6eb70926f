"""gpt-oss: a mixture of experts in every layer, biases everywhere, sinks, and a window in every other layer."""

from __future__ import annotations

from runner.backends.native.blocks import Attention, Decoder, Layer
from runner.backends.native.moe import MoE
from runner.model_config import ModelConfig


def build(config: ModelConfig) -> Decoder:
    return Decoder(config, [_layer(config, index) for index in range(config.num_layers)])


def _layer(config: ModelConfig, index: int) -> Layer:
    attention = Attention(
        config,
        bias=config.attention_bias,
        output_bias=config.attention_output_bias,
        window=config.window(index),
        sinks=config.has_sinks,
    )
    return Layer(config, attention=attention, mlp=MoE(config))
