"""Ministral 3: Mistral, with queries that grow with their position."""

from __future__ import annotations

from runner.backends.native.blocks import Attention, Decoder, GatedMlp, Layer
from runner.model_config import ModelConfig


def build(config: ModelConfig) -> Decoder:
    return Decoder(config, [_layer(config, index) for index in range(config.num_layers)])


def _layer(config: ModelConfig, index: int) -> Layer:
    attention = Attention(config, window=config.window(index), growth=config.query_growth)
    return Layer(config, attention=attention, mlp=GatedMlp(config))
