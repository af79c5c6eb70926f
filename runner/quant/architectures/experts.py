"""The tensors of layers that have experts in place of an MLP or beside it, under the names of Hugging Face checkpoints.

A GGUF stacks them, and is not written here.
"""

from __future__ import annotations

from collections.abc import Mapping

from runner.model_config import ExpertsConfig, ModelConfig

Shape = tuple[int, ...]


def with_experts(tensors: Mapping[str, Shape], config: ModelConfig) -> dict[str, Shape]:
    """`tensors` of a model without experts, in the order of a forward pass, with theirs in place of the MLPs, or
    behind them."""
    experts = config.experts
    if experts is None:
        return dict(tensors)
    sparse = {f"model.layers.{layer}.mlp." for layer in experts.layers}
    found: dict[str, Shape] = {}
    for name, shape in tensors.items():
        layer, is_mlp, matrix = name.partition(".mlp.")
        is_sparse = f"{layer}{is_mlp}" in sparse
        if is_sparse and not experts.is_beside:
            found |= _of_layer(f"{layer}.mlp.", config.hidden_size, experts)
            continue
        found[name] = shape
        if is_sparse and matrix == "down_proj.weight":
            found |= _beside(f"{layer}.", config.hidden_size, experts)
    return found


def _beside(prefix: str, hidden: int, experts: ExpertsConfig) -> dict[str, Shape]:
    """What a layer has that has them beside its MLP: more norms, and a router with scales."""
    norms = ("post_feedforward_layernorm_1", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2")
    found: dict[str, Shape] = {f"{prefix}{norm}.weight": (hidden,) for norm in norms}
    found |= {f"{prefix}router.scale": (hidden,), f"{prefix}router.per_expert_scale": (experts.count,)}
    return found | _of_layer(prefix, hidden, experts)


def _of_layer(prefix: str, hidden: int, experts: ExpertsConfig) -> dict[str, Shape]:
    width, count = experts.intermediate_size, experts.count
    found: dict[str, Shape] = {f"{prefix}{experts.router}.weight": (count, hidden)}
    if experts.has_bias:
        found[f"{prefix}{experts.router}.bias"] = (count,)
    for expert in range(count):
        for name, shape in _of_expert(f"{prefix}experts.{expert}.", hidden, width).items():
            found[f"{name}.weight"] = shape
            if experts.has_bias:
                found[f"{name}.bias"] = shape[:1]
    if experts.shared_size is not None:
        found[f"{prefix}shared_expert_gate.weight"] = (1, hidden)
        shared = _of_expert(f"{prefix}shared_expert.", hidden, experts.shared_size)
        found |= {f"{name}.weight": shape for name, shape in shared.items()}
    return found


def _of_expert(prefix: str, hidden: int, width: int) -> dict[str, Shape]:
    return {
        f"{prefix}gate_proj": (width, hidden),
        f"{prefix}up_proj": (width, hidden),
        f"{prefix}down_proj": (hidden, width),
    }
