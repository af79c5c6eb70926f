"""The mixture of experts that some layers have in place of an MLP: a router, and many gated MLPs of which a token
takes few; and, in some models, one more that every token takes.

The experts' matrices are stacked, so that a kernel can take them all; checkpoints name them one by one. Which model
uses it, and with what, is said in architectures/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.backends.native.blocks import GatedMlp, Pass
from runner.backends.native.linear import Linear
from runner.backends.native.places import Place
from runner.model_config import ModelConfig, Routing


class MoE(nn.Module):
    """sum over the chosen experts of weight * down(act(gate(x)) * up(x)) (arXiv:1701.06538).

    gate_up: [E, 2 I, hidden], an expert's gate rows and then its up rows; down: [E, hidden, I]; their biases [E, 2 I]
    and [E, hidden], or None. router: the experts' scores of a token; router_name: what checkpoints call it. routing,
    activation: see ExpertsConfig. shared_expert: what every token takes besides, times the sigmoid of
    shared_expert_gate; None where there is none.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        experts, hidden_size = config.experts, config.hidden_size
        assert experts is not None
        count, width = experts.count, experts.intermediate_size
        self.num_experts = count
        self.experts_per_token = experts.per_token
        self.intermediate_size = width
        self.routing = experts.routing
        self.activation = experts.activation
        self.router_name = experts.router
        self.router = Linear(hidden_size, count, bias=experts.has_bias)
        self.gate_up = _parameter(count, 2 * width, hidden_size)
        self.gate_up_bias = _parameter(count, 2 * width) if experts.has_bias else None
        self.down = _parameter(count, hidden_size, width)
        self.down_bias = _parameter(count, hidden_size) if experts.has_bias else None
        shared = experts.shared_size
        self.shared_expert = None if shared is None else GatedMlp(config, width=shared)
        self.shared_expert_gate = None if shared is None else Linear(hidden_size, 1)

    def places(self) -> Mapping[str, Place]:
        """See HasStacks."""
        width = self.intermediate_size
        found = {}
        for kind, suffix in (("weight", ""), ("bias", "_bias")) if self.down_bias is not None else (("weight", ""),):
            found[f"{self.router_name}.{kind}"] = Place(parameter=f"router.{kind}")
            for expert in range(self.num_experts):
                name = f"experts.{expert}"
                rows = Place(parameter=f"gate_up{suffix}", part=(expert, slice(0, width)))
                found[f"{name}.gate_proj.{kind}"] = rows
                found[f"{name}.up_proj.{kind}"] = replace(rows, part=(expert, slice(width, 2 * width)))
                found[f"{name}.down_proj.{kind}"] = Place(parameter=f"down{suffix}", part=(expert,))
        return found

    def forward(self, x: Tensor, run: Pass) -> Tensor:
        """x: [..., T, hidden] -> the same; sums over experts are float32, or wider where x is."""
        flat = x.reshape(-1, x.shape[-1])
        wide = torch.promote_types(x.dtype, torch.float32)
        weights, experts = route(self.router(flat).to(wide), self.experts_per_token, self.routing)
        total = torch.zeros(flat.shape, dtype=wide, device=x.device)
        for expert in sorted(set(experts.flatten().tolist())):
            run.checkpoint()
            tokens, slots = torch.where(experts == expert)
            y = self._one(expert, flat[tokens]).to(wide)
            total.index_add_(0, tokens, y * weights[tokens, slots, None])
        if self.shared_expert is not None and self.shared_expert_gate is not None:
            total += self.shared_expert_gate(flat).to(wide).sigmoid() * self.shared_expert(flat, run).to(wide)
        return total.to(x.dtype).view(x.shape)

    def _one(self, expert: int, x: Tensor) -> Tensor:
        """One expert's MLP: [T, hidden] -> [T, hidden]."""
        bias = None if self.gate_up_bias is None else self.gate_up_bias[expert]
        gate, up = functional.linear(x, self.gate_up[expert], bias).chunk(2, dim=-1)
        if self.activation == "silu":
            gated = functional.silu(gate) * up
        else:
            gated = clamped_swiglu(gate, up)
        return functional.linear(gated, self.down[expert], None if self.down_bias is None else self.down_bias[expert])


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
