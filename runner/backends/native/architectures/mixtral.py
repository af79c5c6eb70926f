"""Mixtral: Mistral with a mixture of experts in place of each MLP."""

from __future__ import annotations

from runner.backends.native.blocks import Attention, Decoder, Layer
from runner.backends.native.moe import MoE
from runner.model_config import ModelConfig


def build(config: ModelConfig) -> Decoder:
    return Decoder(config, [_layer(config, index) for index in range(config.num_layers)])


def _layer(config: ModelConfig, index: int) -> Layer:
    return Layer(config, attention=Attention(config, window=config.window(index)), mlp=MoE(config))
