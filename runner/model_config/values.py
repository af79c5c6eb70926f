"""ModelConfig and RopeScaling, and the numbers that follow from them. Where they come from is parse.py's business."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["linear", "llama3", "yarn"]


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the context of pretraining.

    linear: all frequencies divided by `factor`. llama3 (Llama 3.1): low ones divided, high ones kept, a ramp between
    original_max_position_embeddings / low_freq_factor and / high_freq_factor. yarn (arXiv:2309.00071): a ramp over the
    dimensions between beta_fast and beta_slow rotations; attention_factor multiplies cos and sin.
    """

    kind: RopeKind
    factor: float
    original_max_position_embeddings: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A dense decoder of the Llama family: RMSNorm, rotary positions, grouped-query attention, gated SiLU MLP.

    attention_bias: q, k and v projections; attention_output_bias: the o projection. qk_norm: RMSNorm on each head of
    q and k. sliding_window: a token of the layers `sliding_layers` sees that many tokens, itself included; None when
    every layer sees all. eos_token_ids: every id that config.json names, in its order.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    attention_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_window: int | None
    sliding_layers: tuple[int, ...]
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    def window(self, layer: int) -> int | None:
        """Tokens that a token of this layer sees, itself included; None for all."""
        return self.sliding_window if layer in self.sliding_layers else None


def num_parameters(config: ModelConfig) -> int:
    """Weights of the model, exactly; tied embeddings are counted once."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = hidden * (2 * q_size + 2 * kv_size)
    attention += (q_size + 2 * kv_size) if config.attention_bias else 0
    attention += hidden if config.attention_output_bias else 0
    attention += 2 * config.head_dim if config.qk_norm else 0
    mlp = 3 * hidden * intermediate + (2 * intermediate + hidden if config.mlp_bias else 0)
    embeddings = config.vocab_size * hidden * (1 if config.tie_word_embeddings else 2)
    return embeddings + config.num_layers * (attention + mlp + 2 * hidden) + hidden
