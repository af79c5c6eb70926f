"""Spends bits on the matrices that gain most by them: which of a recipe's 4-bit matrices become 6-bit for a budget.

The order was measured on the demo model (docs/LOG.md): gain in KL divergence for each bit. It knows sizes from a plan
and nothing of weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from runner.errors import UsageError
from runner.quant.mq.formats import MQ6
from runner.quant.mq.plan import PackedPlan, TensorPlan
from runner.quant.mq.recipe import Recipe, Rule

_EXPERT: Final = re.compile(r"\.(?:experts\.\d+|shared_expert)\.")
_ALL_EXPERTS: Final = ".*expert*."
_EVERYWHERE: Final = "self_attn.v_proj"  # small with grouped queries, and the most sensitive of all
# By layer, the first and the last ones before those between them. Those of delta nets were not measured: each stands
# after what it does the same as.
_BY_LAYER: Final = (
    "mlp.down_proj",
    "self_attn.o_proj",
    "linear_attn.out_proj",
    "self_attn.qkv_proj",
    "self_attn.k_proj",
    "linear_attn.in_proj_qkv",
    "mlp.gate_proj",
    "mlp.gate_up_proj",
    "self_attn.q_proj",
    "linear_attn.in_proj_z",
)


def spend(plan: PackedPlan, bpw: float) -> Recipe:
    """The plan's recipe with rules that raise matrices to mq6 while the body stays within `bpw` bits a weight.

    Only matrices are raised that the recipe's last rule decides, the one for all that is left: what a user's own rules
    say stands. Raises UsageError for a budget that the recipe itself exceeds.
    """
    recipe, tensors = plan.recipe, plan.by_name
    used, budget = plan.bpw_body * plan.num_body_weights, bpw * plan.num_body_weights
    if not used <= budget:  # NaN is no budget either
        raise UsageError(
            f"{recipe.name} takes {plan.bpw_body:.2f} bits a weight, more than the budget of {bpw:g}.",
            hint="Give a larger --bpw, or leave it out.",
        )
    rules = []
    for pattern, names in _candidates(plan):
        more = sum(_more_bits(recipe, tensors[name]) for name in names)
        if 0 < more <= budget - used:
            used += more
            rules.append(Rule(tensors=pattern, format=MQ6.name))
    return replace(recipe, name=f"{recipe.name}-{bpw:g}", rules=(*recipe.rules[:-1], *rules, recipe.rules[-1]))


def _more_bits(recipe: Recipe, tensor: TensorPlan) -> int:
    """The bits that a matrix takes more as mq6; 0 for one that is not to be raised."""
    is_free = next(rule for rule in recipe.rules if rule.matches(tensor.name)) is recipe.rules[-1]
    if not is_free or tensor.is_kept:
        return 0
    raised = sum(part.nbytes for part in MQ6.parts(tensor.matrix_shape).values())
    return 8 * max(0, raised - tensor.nbytes)


def _candidates(plan: PackedPlan) -> Iterator[tuple[str, list[str]]]:
    """What may be raised, best first: a pattern of names, and the names of the matrices that it means.

    The experts of a layer are raised together, the shared one with them: kernels have them in one format.
    """
    by_pattern: dict[str, list[str]] = {}
    for tensor in plan.body:
        pattern = _EXPERT.sub(_ALL_EXPERTS, tensor.name)
        if pattern.endswith(f".{_EVERYWHERE}.weight"):
            pattern = f"model.layers.*.{_EVERYWHERE}.weight"
        by_pattern.setdefault(pattern, []).append(tensor.name)
    layers = _from_the_edges(plan.config.num_layers)
    wanted = [f"model.layers.*.{_EVERYWHERE}.weight"]
    of_values = [index for index in layers if plan.config.heads(index).shares_projection]  # values are these keys
    wanted += [f"model.layers.{index}.self_attn.k_proj.weight" for index in of_values]
    for matrix in _BY_LAYER:
        for index in layers:
            name = f"model.layers.{index}.{matrix}.weight"
            # An MLP, experts in place of it, experts beside it.
            wanted += [name, *(name.replace(".mlp.", f"{before}{_ALL_EXPERTS}") for before in (".mlp", ""))]
    yield from ((pattern, by_pattern[pattern]) for pattern in dict.fromkeys(wanted) if pattern in by_pattern)


def _from_the_edges(count: int) -> list[int]:
    """0, count - 1, 1, count - 2, ..."""
    return [index // 2 if index % 2 == 0 else count - 1 - index // 2 for index in range(count)]
