"""Weights of the blocks that decoders are built of, counted. Pure arithmetic; it knows no config.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.model_config.shape import LayerCache


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer: its weights, those of them that a token does not pass through (idle experts), and what it keeps."""

    weights: int
    idle: int = 0
    cache: LayerCache


@dataclass(frozen=True, kw_only=True)
class Mlp:
    weights: int
    idle: int = 0


def attention(hidden: int, heads: int, kv_heads: int, head_dim: int) -> int:
    """The q, k, v and o matrices, without biases and norms."""
    return 2 * hidden * (heads + kv_heads) * head_dim


def gated_mlp(hidden: int, intermediate: int, *, has_bias: bool = False) -> int:
    """The gate, up and down matrices."""
    return 3 * hidden * intermediate + (2 * intermediate + hidden if has_bias else 0)


def routed_experts(*, router: int, expert: int, count: int, used: int, shared: int = 0) -> Mlp:
    """`count` experts of `expert` weights each, `used` of them for one token; shared: what every token takes."""
    return Mlp(weights=router + shared + count * expert, idle=max(0, count - used) * expert)


def totals(layers: Sequence[Layer], rest: int) -> tuple[int, int]:
    """(weights in all, weights that one token passes through); rest: embeddings, output and what is outside layers."""
    weights = rest + sum(layer.weights for layer in layers)
    return weights, weights - sum(layer.idle for layer in layers)
