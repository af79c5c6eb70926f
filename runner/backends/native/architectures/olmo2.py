"""OLMo 2: norms after the branches and none before them, and a norm on all heads of q and on all of k.

Olmo 3 (olmo3.py) is built here too: windows and a second rotary embedding are its own.
"""

from __future__ import annotations

from runner.backends.native.blocks import Attention, Decoder, GatedMlp, Layer
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
        rope=config.rope(index),
    )
    return Layer(config, attention=attention, mlp=GatedMlp(config))
