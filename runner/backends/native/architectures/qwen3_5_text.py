"""Qwen3.5's text model: a gated delta net in most layers, and in every fourth attention whose heads are gated."""

from __future__ import annotations

from runner.backends.native.blocks import Attention, Decoder, GatedMlp, Layer
from runner.backends.native.delta_net import DeltaNet
from runner.model_config import ModelConfig


def build(config: ModelConfig) -> Decoder:
    return Decoder(config, [_layer(config, index) for index in range(config.num_layers)])


def _layer(config: ModelConfig, index: int) -> Layer:
    attention = DeltaNet(config) if config.has_delta(index) else _attention(config)
    return Layer(config, attention=attention, mlp=GatedMlp(config))


def _attention(config: ModelConfig) -> Attention:
    return Attention(
        config,
        bias=config.attention_bias,
        output_bias=config.attention_output_bias,
        norm=config.qk_norm,
        is_gated=config.is_gated,
    )
