"""The pairs of a row and an expert, sorted by expert on the device: what products of many rows go by.

A program is an expert, which looks at every pair. It knows numbers of experts alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from runner.kernels.compile import Variant
from runner.kernels.values import OPTIONS


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Pair p = m * k + s is row m's slot s. order: int32 [M * k], the pairs by expert, and those of one expert in their
    order; counts: int32 [E], how many each expert has."""

    order: Tensor
    counts: Tensor


def group_pairs_ref(experts: Tensor, num_experts: int) -> Groups:
    """See group_pairs."""
    flat = experts.flatten().long()
    return Groups(order=flat.argsort(stable=True).int(), counts=torch.bincount(flat, minlength=num_experts).int())


@triton.jit
def _group_pairs(experts, order, counts, P, BLOCK: tl.constexpr):
    mine = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    before = tl.zeros((BLOCK,), tl.int32)
    same = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, P, BLOCK):
        expert = tl.load(experts + first + i, mask=first + i < P, other=2147483647)
        before += (expert < mine).to(tl.int32)
        same += (expert == mine).to(tl.int32)
    tl.store(counts + mine, tl.sum(same, 0))
    place = tl.sum(before, 0)
    for first in range(0, P, BLOCK):
        is_mine = tl.load(experts + first + i, mask=first + i < P, other=2147483647) == mine
        rank = tl.cumsum(is_mine.to(tl.int32), 0)
        tl.store(order + place + rank - 1, first + i, mask=is_mine)
        place += tl.sum(is_mine.to(tl.int32), 0)


def group_pairs(experts: Tensor, num_experts: int) -> Groups:
    """Sort the pairs of experts [M, k] int32, each number below num_experts, without waiting for the device."""
    assert experts.dtype == torch.int32
    assert experts.is_contiguous()
    order = torch.empty(experts.numel(), dtype=torch.int32, device=experts.device)
    counts = torch.empty(num_experts, dtype=torch.int32, device=experts.device)
    _group_pairs[(num_experts,)](
        experts, order, counts, experts.numel(), BLOCK=_BLOCK, num_warps=_WARPS, **OPTIONS
    )  # fmt: skip
    return Groups(order=order, counts=counts)


_BLOCK, _WARPS = 1024, 4


def variants() -> Iterator[Variant]:
    yield Variant(
        name="moe_groups",
        kernel=_group_pairs,
        signature={"experts": "*i32", "order": "*i32", "counts": "*i32", "P": "i32:16"},
        constants={"BLOCK": _BLOCK},
        num_warps=_WARPS,
        is_decode=False,
    )
