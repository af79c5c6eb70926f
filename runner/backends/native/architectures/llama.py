"""Llama 2 and 3, and what shares their shape (SmolLM2, TinyLlama): optional biases on all projections."""

from __future__ import annotations

from runner.backends.native.blocks import Attention, Decoder, GatedMlp, Layer
from runner.model_config import ModelConfig


def build(config: ModelConfig) -> Decoder:
    return Decoder(config, [_layer(config) for _ in range(config.num_layers)])


def _layer(config: ModelConfig) -> Layer:
    attention = Attention(config, bias=config.attention_bias, output_bias=config.attention_output_bias)
    return Layer(config, attention=attention, mlp=GatedMlp(config, bias=config.mlp_bias))
