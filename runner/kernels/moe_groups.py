"""The pairs of a row and an expert, sorted by expert on the device: what products that share weights go by.

A program is an expert, which looks at every pair. It knows numbers of experts alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.compile import Variant
from runner.kernels.values import OPTIONS, has_pdl, pdl_option


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Pair p = m * k + s is row m's slot s. order: int32 [M * k], the pairs by expert, and those of one expert in their
    order; firsts: int32 [E + 1], the place in it where the pairs of each expert begin, and behind them M * k."""

    order: Tensor
    firsts: Tensor

    @property
    def num_experts(self) -> int:
        return len(self.firsts) - 1

    def are_few(self, rows: int) -> bool:
        """Which of its two ways block_of has to number blocks of so many pairs: the one that wants fewer numbers."""
        return len(self.order) <= len(self.order) // rows + self.num_experts

    def num_blocks(self, rows: int) -> int:
        """How many numbers blocks of so many pairs have; the counts are on the device, so some have no pairs."""
        n_pairs = len(self.order)
        return n_pairs if self.are_few(rows) else n_pairs // rows + self.num_experts


def group_pairs_ref(experts: Tensor, num_experts: int) -> Groups:
    """See group_pairs."""
    flat = experts.flatten().long()
    counts = torch.bincount(flat, minlength=num_experts)
    return Groups(
        order=flat.argsort(stable=True).int(), firsts=torch.cat((counts.new_zeros(1), counts.cumsum(0))).int()
    )


@triton.jit
def block_of(firsts, block, E, EXPERTS: tl.constexpr, BM: tl.constexpr, FEW: tl.constexpr):
    """The expert of a block of up to BM pairs, and which of the sorted pairs are its: from `first` on, before `end`.

    An expert's blocks are numbered from its first pair's place on, or, not FEW, from place // BM + expert on: so one
    comparison finds it, and it has as many numbers as it wants, or some more, for which first is not before end. All
    programs read the same, from L1: of L2 they would ask one slice.
    """
    e = tl.arange(0, EXPERTS)
    place = tl.load(firsts + e, mask=e < E, other=2**30)
    expert = tl.sum(((place if FEW else place // BM + e) <= block).to(tl.int32), 0) - 1
    first = tl.load(firsts + expert)
    begin = first if FEW else first // BM + expert
    return expert, first + (block - begin) * BM, tl.load(firsts + expert + 1)


@triton.jit(do_not_specialize=["P"])
def _group_pairs(experts, order, firsts, P, BLOCK: tl.constexpr, PDL: tl.constexpr):
    mine = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    before = tl.zeros((BLOCK,), tl.int32)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for first in range(0, P, BLOCK):
        before += (tl.load(experts + first + i, mask=first + i < P, other=2147483647) < mine).to(tl.int32)
    place = tl.sum(before, 0)
    tl.store(firsts + mine, place)
    if mine == tl.num_programs(0) - 1:
        tl.store(firsts + mine + 1, P)
    for first in range(0, P, BLOCK):
        is_mine = tl.load(experts + first + i, mask=first + i < P, other=2147483647) == mine
        rank = tl.cumsum(is_mine.to(tl.int32), 0)
        tl.store(order + place + rank - 1, first + i, mask=is_mine)
        place += tl.sum(is_mine.to(tl.int32), 0)


def group_pairs(experts: Tensor, num_experts: int) -> Groups:
    """Sort the pairs of experts [M, k] int32, each number below num_experts, without waiting for the device."""
    assert experts.dtype == torch.int32
    assert experts.is_contiguous()
    n_pairs, pdl = experts.numel(), has_pdl(experts)
    order = torch.empty(n_pairs, dtype=torch.int32, device=experts.device)
    firsts = torch.empty(num_experts + 1, dtype=torch.int32, device=experts.device)
    block = _FEW if n_pairs <= _FEW else _MANY
    _group_pairs[(num_experts,)](
        experts, order, firsts, n_pairs, BLOCK=block, PDL=pdl, num_warps=_warps(block), **pdl_option(pdl), **OPTIONS
    )  # fmt: skip
    return Groups(order=order, firsts=firsts)


def _warps(block: int) -> int:
    return block // 256


_FEW, _MANY = 256, 1024  # pairs that are looked at at once


def variants() -> Iterator[Variant]:
    for block in (_FEW, _MANY):
        yield Variant(
            name=f"moe_groups {block}",
            kernel=_group_pairs,
            signature={"experts": "*i32", "order": "*i32", "firsts": "*i32", "P": "i32"},
            constants={"BLOCK": block},
            num_warps=_warps(block),
            has_pdl=True,
            is_decode=block == _FEW,
        )
