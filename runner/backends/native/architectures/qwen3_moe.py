"""Qwen3 with experts: Qwen3's attention, and in all layers or in some a mixture of experts in place of the MLP."""

from __future__ import annotations

from runner.backends.native.blocks import Attention, Decoder, GatedMlp, Layer
from runner.backends.native.moe import MoE
from runner.model_config import ModelConfig


def build(config: ModelConfig) -> Decoder:
    return Decoder(config, [_layer(config, index) for index in range(config.num_layers)])


def _layer(config: ModelConfig, index: int) -> Layer:
    attention = Attention(
        config,
        bias=config.attention_bias,
        output_bias=config.attention_output_bias,
        norm=config.qk_norm,
        window=config.window(index),
    )
    return Layer(config, attention=attention, mlp=_mlp(config, index))


def _mlp(config: ModelConfig, index: int) -> GatedMlp | MoE:
    if config.experts is None or index not in config.experts.layers:
        return GatedMlp(config)
    return MoE(config)
