"""Gemma 3's text model: norms around each branch, and in most layers a window with a rotary embedding of its own.

Gemma 2 (gemma2.py) is built here too: the cap is its own.
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
        scale=config.attention_scale,
        cap=config.score_cap,
        rope=config.rope(index),
    )
    return Layer(config, attention=attention, mlp=GatedMlp(config, activation=config.activation))
