"""Spends bits on the matrices that gain most by them: which of a recipe's 4-bit matrices become 6-bit for a budget.

The order was measured on the demo model (docs/LOG.md): gain in KL divergence for each bit. It knows sizes from a
ModelConfig and nothing of weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from runner.errors import UsageError
from runner.model_config import ModelConfig
from runner.quant.mq.formats import MQ6, TENSOR_FORMATS
from runner.quant.mq.recipe import Recipe, Rule
from runner.quant.mq.tensor_format import bits_per_weight

_EVERYWHERE: Final = "self_attn.v_proj"  # small with grouped queries, and the most sensitive of all
# By layer, the first and the last ones before those between them.
_BY_LAYER: Final = ("mlp.down_proj", "self_attn.o_proj", "self_attn.k_proj", "mlp.gate_proj", "self_attn.q_proj")


def spend(recipe: Recipe, config: ModelConfig, bpw: float) -> Recipe:
    """`recipe` with rules before its own that raise matrices to mq6 while the body stays within `bpw` bits a weight.

    Raises UsageError for a budget that the recipe itself exceeds.
    """
    sizes = {matrix: shape[0] * shape[1] for matrix, shape in _shapes(config).items()}
    total = config.num_layers * sum(sizes.values())
    bits = {
        matrix: bits_per_weight(TENSOR_FORMATS[recipe.format_for(f"model.layers.0.{matrix}.weight")], shape)
        for matrix, shape in _shapes(config).items()
    }
    used = config.num_layers * sum(sizes[matrix] * bits[matrix] for matrix in sizes)
    if bpw * total < used:
        raise UsageError(
            f"{recipe.name} takes {used / total:.2f} bits a weight, more than the budget of {bpw:g}.",
            hint="Give a larger --bpw, or leave it out.",
        )
    rules = []
    for pattern, matrix, count in _candidates(config):
        more = count * sizes[matrix] * (bits_per_weight(MQ6, _shapes(config)[matrix]) - bits[matrix])
        if more > 0 and used + more <= bpw * total:
            used += more
            rules.append(Rule(tensors=pattern, format=MQ6.name))
    return replace(recipe, name=f"{recipe.name}-{bpw:g}", rules=(*rules, *recipe.rules))


def _candidates(config: ModelConfig) -> Iterator[tuple[str, str, int]]:
    """What may be raised, best first: a pattern of names, the matrix, and how many layers the pattern means."""
    yield f"model.layers.*.{_EVERYWHERE}.weight", _EVERYWHERE, config.num_layers
    for matrix in _BY_LAYER:
        for layer in _from_the_edges(config.num_layers):
            yield f"model.layers.{layer}.{matrix}.weight", matrix, 1


def _from_the_edges(count: int) -> list[int]:
    """0, count - 1, 1, count - 2, ..."""
    return [index // 2 if index % 2 == 0 else count - 1 - index // 2 for index in range(count)]


def _shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """[N, K] of the matrices of a layer."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (intermediate, hidden),
        "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
    }
