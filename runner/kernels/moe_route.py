"""Which experts each row takes, and with what weight: a softmax over the router's logits and its k largest.

A program is a row. It knows logits alone; who computes them and what an expert is, is the callers' business.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from runner.kernels.compile import Variant
from runner.kernels.values import OPTIONS

Routing = Literal["softmax_topk", "topk_softmax"]
"""A chosen expert's share of a softmax over all experts, or over the chosen alone. The second is also what dividing
the first by their sum gives."""


def route_ref(logits: Tensor, k: int, kind: Routing) -> tuple[Tensor, Tensor]:
    """See route."""
    by_size = logits.sort(dim=1, descending=True, stable=True)
    values, experts = by_size.values[:, :k], by_size.indices[:, :k].int()
    if kind == "topk_softmax":
        return values.softmax(1), experts
    return logits.softmax(1).gather(1, experts.long()), experts


@triton.jit
def _route(logits, weights, experts, E, k, OVER_CHOSEN: tl.constexpr, EXPERTS: tl.constexpr, CHOSEN: tl.constexpr):
    """OVER_CHOSEN: the softmax is over the chosen alone. EXPERTS, CHOSEN: powers of two, E and k or more."""
    row = tl.program_id(0)
    e = tl.arange(0, EXPERTS)
    z = tl.load(logits + row * E + e, mask=e < E, other=-float("inf"))
    size = tl.where(z == z, z, -float("inf"))  # a NaN is chosen last, and no number that is no expert ever is
    is_left = e < E
    slot = tl.arange(0, CHOSEN)
    chosen = tl.full((CHOSEN,), -float("inf"), tl.float32)
    numbers = tl.zeros((CHOSEN,), tl.int32)
    for i in range(k):
        largest = tl.max(tl.where(is_left, size, -float("inf")), 0)
        number = tl.min(tl.where(is_left & (size == largest), e, EXPERTS), 0)
        is_left = is_left & (e != number)
        chosen = tl.where(slot == i, tl.sum(tl.where(e == number, z, 0.0), 0), chosen)
        numbers = tl.where(slot == i, number, numbers)
    first = tl.max(size, 0)
    share = tl.exp(chosen - first)
    total = tl.sum(share, 0) if OVER_CHOSEN else tl.sum(tl.exp(z - first), 0)
    tl.store(weights + row * k + slot, tl.div_rn(share, total), mask=slot < k)
    tl.store(experts + row * k + slot, numbers, mask=slot < k)


def route(logits: Tensor, k: int, kind: Routing) -> tuple[Tensor, Tensor]:
    """The weights [M, k] float32 and the numbers [M, k] int32 of the k experts with the largest logits, largest first.

    logits: [M, E] float32, contiguous. Of equal logits the lower number comes first.
    """
    n_rows, n_experts = logits.shape
    assert logits.dtype == torch.float32
    assert logits.is_contiguous()
    assert 1 <= k <= n_experts
    weights = torch.empty(n_rows, k, dtype=torch.float32, device=logits.device)
    experts = torch.empty(n_rows, k, dtype=torch.int32, device=logits.device)
    _route[(n_rows,)](
        logits, weights, experts, n_experts, k,
        OVER_CHOSEN=kind == "topk_softmax", EXPERTS=triton.next_power_of_2(n_experts),
        CHOSEN=triton.next_power_of_2(k), num_warps=_WARPS, **OPTIONS,
    )  # fmt: skip
    return weights, experts


_WARPS = 1  # maxima over a warp need no barrier


def variants() -> Iterator[Variant]:
    for n_experts, k, over_chosen in ((128, 8, True), (32, 4, True), (64, 8, False)):
        yield Variant(
            name=f"moe_route {k} of {n_experts}",
            kernel=_route,
            signature={"logits": "*fp32", "weights": "*fp32", "experts": "*i32", "E": "i32:16", "k": "i32"},
            constants={"OVER_CHOSEN": over_chosen, "EXPERTS": n_experts, "CHOSEN": k},
            num_warps=_WARPS,
        )
