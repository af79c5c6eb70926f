"""Mistral: Llama without biases; early versions let a token see a sliding window only."""

from __future__ import annotations

from runner.backends.native.blocks import Attention, Decoder, GatedMlp, Layer
from runner.model_config import ModelConfig


def build(config: ModelConfig) -> Decoder:
    return Decoder(config, [_layer(config, index) for index in range(config.num_layers)])


def _layer(config: ModelConfig, index: int) -> Layer:
    return Layer(config, attention=Attention(config, window=config.window(index)), mlp=GatedMlp(config))
