"""SmolLM3: Llama, but every fourth layer, or what config.json says, does not turn its heads by their positions."""

from __future__ import annotations

from runner.backends.native.blocks import Attention, Decoder, GatedMlp, Layer
from runner.model_config import ModelConfig


def build(config: ModelConfig) -> Decoder:
    return Decoder(config, [_layer(config, index) for index in range(config.num_layers)])


def _layer(config: ModelConfig, index: int) -> Layer:
    attention = Attention(
        config, bias=config.attention_bias, output_bias=config.attention_output_bias, rope=config.rope(index)
    )
    return Layer(config, attention=attention, mlp=GatedMlp(config, bias=config.mlp_bias))
