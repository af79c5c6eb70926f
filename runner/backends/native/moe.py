"""The mixture of experts that some layers have in place of an MLP, or beside it: a router, and many gated MLPs of which
a token takes few; and, in some models, one more that every token takes.

The experts' matrices are stacked, so that a kernel can take them all; checkpoints name them one by one. Which model
uses it, and with what, is said in architectures/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.backends.native.blocks import Attention, Checkpointed, GatedMlp, Layer, Mixing, RmsNorm, activated
from runner.backends.native.linear import Linear
from runner.backends.native.places import Place
from runner.model_config import ModelConfig, Routing


class Experts(nn.Module):
    """sum over the chosen experts of weight * down(act(gate(x)) * up(x)) (arXiv:1701.06538).

    gate_up: [E, 2 I, hidden], an expert's gate rows and then its up rows; down: [E, hidden, I]; their biases [E, 2 I]
    and [E, hidden], or None. config: see ExpertsConfig.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        experts, hidden_size = config.experts, config.hidden_size
        assert experts is not None
        count, width = experts.count, experts.intermediate_size
        self.config = experts
        self.gate_up = _parameter(count, 2 * width, hidden_size)
        self.gate_up_bias = _parameter(count, 2 * width) if experts.has_bias else None
        self.down = _parameter(count, hidden_size, width)
        self.down_bias = _parameter(count, hidden_size) if experts.has_bias else None

    def places(self) -> Mapping[str, Place]:
        """See HasStacks."""
        width = self.config.intermediate_size
        found = {}
        for kind, suffix in (("weight", ""), ("bias", "_bias")) if self.down_bias is not None else (("weight", ""),):
            for expert in range(self.config.count):
                rows = Place(parameter=f"gate_up{suffix}", part=(expert, slice(0, width)))
                found[f"{expert}.gate_proj.{kind}"] = rows
                found[f"{expert}.up_proj.{kind}"] = replace(rows, part=(expert, slice(width, 2 * width)))
                found[f"{expert}.down_proj.{kind}"] = Place(parameter=f"down{suffix}", part=(expert,))
        return found

    def forward(self, x: Tensor, weights: Tensor, experts: Tensor, run: Checkpointed) -> Tensor:
        """x: [T, hidden] -> the same in float32, or wider where x is. weights, experts: [T, k], as route gives them."""
        total = torch.zeros(x.shape, dtype=_wide(x), device=x.device)
        for expert in sorted(set(experts.flatten().tolist())):
            run.checkpoint()
            tokens, slots = torch.where(experts == expert)
            y = self._one(expert, x[tokens]).to(total.dtype)
            total.index_add_(0, tokens, y * weights[tokens, slots, None])
        return total

    def _one(self, expert: int, x: Tensor) -> Tensor:
        """One expert's MLP: [T, hidden] -> [T, hidden]."""
        bias = None if self.gate_up_bias is None else self.gate_up_bias[expert]
        gate, up = functional.linear(x, self.gate_up[expert], bias).chunk(2, dim=-1)
        kind = self.config.activation
        gated = clamped_swiglu(gate, up) if kind == "clamped_swiglu" else activated(gate, kind) * up
        return functional.linear(gated, self.down[expert], None if self.down_bias is None else self.down_bias[expert])


class MoE(nn.Module):
    """What a layer has in place of its MLP: a router, whose scores choose the experts, and these.

    shared_expert: what every token takes besides, times the sigmoid of shared_expert_gate; None where there is none.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.experts = Experts(config)
        self.config = self.experts.config
        self.router = Linear(config.hidden_size, self.config.count, bias=self.config.has_bias)
        shared = self.config.shared_size
        self.shared_expert = None if shared is None else GatedMlp(config, width=shared)
        self.shared_expert_gate = None if shared is None else Linear(config.hidden_size, 1)

    def places(self) -> Mapping[str, Place]:
        """See HasStacks: checkpoints call the router otherwise."""
        kinds = ("weight", "bias") if self.config.has_bias else ("weight",)
        return {f"{self.config.router}.{kind}": Place(parameter=f"router.{kind}") for kind in kinds}

    def forward(self, x: Tensor, run: Checkpointed) -> Tensor:
        """x: [..., T, hidden] -> the same; sums over experts are float32, or wider where x is."""
        flat = x.reshape(-1, x.shape[-1])
        wide = _wide(x)
        weights, experts = route(self.router(flat).to(wide), self.config.per_token, self.config.routing)
        total: Tensor = self.experts(flat, weights, experts, run)
        if self.shared_expert is not None and self.shared_expert_gate is not None:
            total += self.shared_expert_gate(flat).to(wide).sigmoid() * self.shared_expert(flat, run).to(wide)
        return total.to(x.dtype).view(x.shape)


class ScaledRouter(nn.Module):
    """A router that norms the stream itself, without weights, before it is multiplied by scale / sqrt(hidden), and
    multiplies a chosen expert's weight by its number of per_expert_scale [E] (Gemma 4)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        experts = config.experts
        assert experts is not None
        self.proj = Linear(config.hidden_size, experts.count)
        self.scale = _parameter(config.hidden_size)
        self.per_expert_scale = _parameter(experts.count)
        self.config = experts
        self.eps = config.rms_norm_eps

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The weights [T, k] and the numbers [T, k] of the experts that the rows of the stream [T, hidden] take."""
        x = functional.rms_norm(x, x.shape[-1:], None, self.eps) * self.scale * x.shape[-1] ** -0.5
        weights, experts = route(self.proj(x).to(_wide(x)), self.config.per_token, self.config.routing)
        return weights * self.per_expert_scale[experts], experts


class LayerWithExperts(Layer):
    """A layer that has experts beside its MLP: both read the stream, behind norms of their own, and what comes of each
    is normed before they are added (Gemma 4)."""

    def __init__(self, config: ModelConfig, *, attention: Attention, mlp: GatedMlp) -> None:
        super().__init__(config, attention=attention, mlp=mlp)
        self.router = ScaledRouter(config)
        self.experts = Experts(config)
        for name in (AFTER_DENSE, BEFORE_EXPERTS, AFTER_EXPERTS):
            self.add_module(name, RmsNorm(config.hidden_size, config.rms_norm_eps, config.norm_offset))

    def branch(self, x: Tensor, run: Mixing) -> Tensor:
        """See Layer."""
        dense = self._normed(AFTER_DENSE, super().branch(x, run))
        flat = x.reshape(-1, x.shape[-1])
        found = self.experts(self._normed(BEFORE_EXPERTS, flat), *self.router(flat), run)
        return dense + self._normed(AFTER_EXPERTS, found.to(x.dtype).view(x.shape))


# The norms of what a layer's MLP gives, and of what its experts read and give.
AFTER_DENSE = "post_feedforward_layernorm_1"
BEFORE_EXPERTS = "pre_feedforward_layernorm_2"
AFTER_EXPERTS = "post_feedforward_layernorm_2"


def route(logits: Tensor, k: int, routing: Routing) -> tuple[Tensor, Tensor]:
    """The weights [T, k] and the numbers [T, k] int64 of the k experts with the largest logits [T, E], largest first.

    Of equal logits the lower number comes first. routing: see ExpertsConfig.
    """
    by_size = logits.sort(dim=-1, descending=True, stable=True)
    values, experts = by_size.values[:, :k], by_size.indices[:, :k]
    if routing == "topk_softmax":
        return values.softmax(dim=-1), experts
    return logits.softmax(dim=-1).gather(-1, experts), experts


def clamped_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """gate * sigmoid(1.702 gate) * (up + 1), gate clamped from above at 7 and up on both sides (gpt-oss)."""
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape), requires_grad=False)


def _wide(x: Tensor) -> torch.dtype:
    """What sums over experts, and the scores of these, are computed in."""
    return torch.promote_types(x.dtype, torch.float32)
