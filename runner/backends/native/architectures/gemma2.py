"""Gemma 2: norms around each branch, every other layer a window, and scores and logits that stay below a cap."""

from __future__ import annotations

from runner.backends.native.blocks import Attention, Decoder, GatedMlp, Layer
from runner.model_config import ModelConfig


def build(config: ModelConfig) -> Decoder:
    return Decoder(config, [_layer(config, index) for index in range(config.num_layers)])


def _layer(config: ModelConfig, index: int) -> Layer:
    attention = Attention(
        config,
        bias=config.attention_bias,
        output_bias=config.attention_output_bias,
        window=config.window(index),
        scale=config.attention_scale,
        cap=config.score_cap,
    )
    return Layer(config, attention=attention, mlp=GatedMlp(config, activation=config.activation))
