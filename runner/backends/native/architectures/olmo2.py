"""OLMo 2: norms after the branches and none before them, and a norm on all heads of q and on all of k."""

from __future__ import annotations

from runner.backends.native.blocks import Attention, Decoder, GatedMlp, Layer
from runner.model_config import ModelConfig


def build(config: ModelConfig) -> Decoder:
    return Decoder(config, [_layer(config) for _ in range(config.num_layers)])


def _layer(config: ModelConfig) -> Layer:
    attention = Attention(
        config, bias=config.attention_bias, output_bias=config.attention_output_bias, norm=config.qk_norm
    )
    return Layer(config, attention=attention, mlp=GatedMlp(config))
