"""Qwen3.5's text model: a gated delta net in most layers, and in every fourth attention whose heads are gated."""

from __future__ import annotations

from runner.backends.native.blocks import Attention, Decoder, GatedMlp, Layer
from runner.backends.native.delta_net import DeltaNet
from runner.model_config import ModelConfig


def build(config: ModelConfig) -> Decoder:
    return Decoder(config, [_layer(config, index) for index in range(config.num_layers)])


def _layer(config: ModelConfig, index: int) -> Layer:
    return Layer(config, attention=attention(config, index), mlp=GatedMlp(config))


def attention(config: ModelConfig, index: int) -> Attention | DeltaNet:
    if config.has_delta(index):
        return DeltaNet(config)
    return Attention(
        config,
        bias=config.attention_bias,
        output_bias=config.attention_output_bias,
        norm=config.qk_norm,
        is_gated=config.is_gated,
    )
