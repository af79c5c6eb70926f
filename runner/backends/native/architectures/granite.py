"""Granite 3: Llama with factors of its own, which its configuration has put where other models have some (parse.py)."""

from __future__ import annotations

from runner.backends.native.blocks import Attention, Decoder, GatedMlp, Layer
from runner.model_config import ModelConfig


def build(config: ModelConfig) -> Decoder:
    return Decoder(config, [_layer(config) for _ in range(config.num_layers)])


def _layer(config: ModelConfig) -> Layer:
    attention = Attention(
        config, bias=config.attention_bias, output_bias=config.attention_output_bias, scale=config.attention_scale
    )
    return Layer(config, attention=attention, mlp=GatedMlp(config, bias=config.mlp_bias))
