"""The sum over a row's slots of weight * product, added to the residual stream or by itself: one order of summation for
all.

Slots are taken in rounds of up to eight; within a round the first half is added to the second, and so on. In
moe_fragments.py the kernel that multiplies adds them too. Where rows of a step share experts, their products come from
moe_blocks.py, and where several rows have more slots than a round, one by one from moe_fragments.py: then the kernel
here adds them. It knows neither experts nor weights.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.compile import Variant
from runner.kernels.epilogues import p_squares, p_store
from runner.kernels.fragment_products import sum_by_halves
from runner.kernels.fragments import TILE
from runner.kernels.values import OPTIONS, has_pdl, next_power_of_2, pdl_option


@triton.jit
def slots_of_round(row, round, K: tl.constexpr, V: tl.constexpr, COLUMNS: tl.constexpr):
    """Of a round's V slots, each for COLUMNS numbers: which are there, and their pairs, or else the row's first one."""
    slot = round * V + tl.arange(0, V * COLUMNS) // COLUMNS
    return slot < K, row * K + tl.where(slot < K, slot, 0)


@triton.jit
def added_slots(total, y, share, is_there, V: tl.constexpr):
    """total [16] plus the sum over a round's slots of share * y, all [V * 16]."""
    return total + sum_by_halves(tl.reshape(tl.where(is_there, y * share, 0.0), (V, 16)), V, 16)


@triton.jit
def row_before(h, row, n, N, ADDS: tl.constexpr):
    """A row's columns n [16] of the stream, which the sum is added to; ADDS: there is one, else h is written alone."""
    if ADDS:
        return tl.load(h + row.to(tl.int64) * N + n)
    else:
        return tl.zeros((16,), tl.float32)


@triton.jit
def store_row(total, h, parts, row, tile, N, n_tiles):
    """A row's 16 columns [16] of the stream and the sum of their squares."""
    rows, n = row + tl.arange(0, 1), tile * 16 + tl.arange(0, 16)
    p_store(h, total[None, :], rows, rows >= 0, n, n >= 0, N)
    p_squares(total[None, :], parts, rows, rows >= 0, n >= 0, tile, n_tiles)


@triton.jit
def _add_slots(
    y, weights, h, parts, N, n_tiles, K: tl.constexpr, V: tl.constexpr, ADDS: tl.constexpr, PDL: tl.constexpr
):
    """What moe_fragments' sum does behind its products, y [M * K, N], bias included."""
    row, tile = tl.program_id(0), tl.program_id(1)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    total = row_before(h, row, tile * 16 + tl.arange(0, 16), N, ADDS)
    for r in tl.static_range((K + V - 1) // V):
        is_there, pair = slots_of_round(row, r, K, V, 16)
        products = tl.load(y + pair.to(tl.int64) * N + tile * 16 + tl.arange(0, V * 16) % 16)
        total = added_slots(total, products, tl.load(weights + pair), is_there, V)
    store_row(total, h, parts, row, tile, N, n_tiles)


def slots_at_once(k: int) -> int:
    """Slots of a round, a warp each: two programs of eight have all registers of a multiprocessor."""
    return min(8, next_power_of_2(k))


def add_slots(y: Tensor, weights: Tensor, h: Tensor, parts: Tensor, *, adds: bool = True) -> None:
    """What GemvFragmentsOfExperts.sum does, of products that are there, y [M * k, N] float32, bias included."""
    (n_rows, k), n, pdl = weights.shape, h.shape[1], has_pdl(h)
    assert y.shape == (n_rows * k, n)
    assert n % TILE == 0
    assert y.dtype == torch.float32
    _add_slots[(n_rows, n // TILE)](
        y, weights, h, parts, n, n // TILE,
        K=k, V=slots_at_once(k), ADDS=adds, PDL=pdl, num_warps=1, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip


def variants() -> Iterator[Variant]:
    for k, adds in ((4, True), (9, True), (8, False)):
        yield Variant(
            name=f"moe_slots add {k}{'' if adds else ', no stream'}",
            kernel=_add_slots,
            signature={
                **dict.fromkeys(("y", "weights", "h", "parts"), "*fp32"), "N": "i32:16", "n_tiles": "i32"
            },
            constants={"K": k, "V": slots_at_once(k), "ADDS": adds},
            num_warps=1,
            has_pdl=True,
        )  # fmt: skip
