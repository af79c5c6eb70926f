"""Gemma 4's text models: layers that see everything have wider heads, whose values may be made of what keys are.

The last layers of the small models have no keys and values, and all of theirs an input beside the stream; another one
has a mixture of experts beside the MLP of each layer.
"""

from __future__ import annotations

from runner.backends.native.blocks import Attention, Decoder, GatedMlp, Layer
from runner.backends.native.moe import LayerWithExperts
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
        scale=config.attention_scale,
        rope=config.rope(index),
        heads=config.heads(index),
        has_value_norm=config.has_value_norm,
        shares_cache=config.shares_cache(index),
    )
    mlp = GatedMlp(config, activation=config.activation, width=config.mlp_size(index))
    of_layer = Layer if config.experts is None else LayerWithExperts
    return of_layer(config, attention=attention, mlp=mlp)
