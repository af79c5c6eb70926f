"""Which experts each row takes, and with what weight: a softmax over the router's logits and its k largest.

Where there is a shared expert, every row takes it besides: it is the last one, in a slot behind the others, and weighs
the sigmoid of the last logit, which the softmax does not see. Weights may have a factor of their expert's (Gemma 4). A
program is a row. Where a step of few rows is routed, other programs of the same launch round the rows for the experts'
products meanwhile (rotate.py). It knows neither who computes logits nor what an expert is.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from runner.kernels.butterflies import rotated_span, rotation_signs, signs_of_span, span_places
from runner.kernels.compile import Variant
from runner.kernels.epilogues import p_rstd
from runner.kernels.rotate import SPAN, empty_fragments, empty_rows, store_fragments, store_rows
from runner.kernels.sampling import float_of, ordered_bits
from runner.kernels.values import (
    GROUP,
    OPTIONS,
    Int8Fragments,
    Int8Rows,
    Squares,
    cdiv,
    has_pdl,
    is_nvidia,
    next_power_of_2,
    pdl_option,
)

Routing = Literal["softmax_topk", "topk_softmax"]
"""A chosen expert's share of a softmax over all experts, or over the chosen alone. The second is also what dividing
the first by their sum gives."""


def route_ref(
    logits: Tensor, k: int, kind: Routing, *, is_shared: bool = False, factors: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """See route."""
    if factors is not None:
        weights, experts = route_ref(logits, k, kind)
        return weights * factors[experts.long()], experts
    if is_shared:
        weights, experts = route_ref(logits[:, :-1], k, kind)
        last = torch.full_like(experts[:, :1], logits.shape[1] - 1)
        return torch.cat([weights, logits[:, -1:].sigmoid()], 1), torch.cat([experts, last], 1)
    by_size = logits.sort(dim=1, descending=True, stable=True)
    values, experts = by_size.values[:, :k], by_size.indices[:, :k].int()
    if kind == "topk_softmax":
        return values.softmax(1), experts
    return logits.softmax(1).gather(1, experts.long()), experts


@triton.jit
def _choose(
    row, logits, weights, experts, factors, E, k,
    OVER_CHOSEN: tl.constexpr, SHARED: tl.constexpr, FACTORS: tl.constexpr, EXPERTS: tl.constexpr, CHOSEN: tl.constexpr,
):  # fmt: skip
    """The k largest of a row's E logits, one after the other, and their shares.

    OVER_CHOSEN: the softmax is over the chosen alone. SHARED: 1 where a shared expert, whose logit is behind those of
    the others, is in a slot behind theirs, else 0. FACTORS: shares are multiplied by their experts' ones. EXPERTS,
    CHOSEN: powers of two, E and k or more.
    """
    e = tl.arange(0, EXPERTS)
    z = tl.load(logits + row * (E + SHARED) + e, mask=e < E, other=-float("inf"))
    # A NaN is chosen last, and no number that is no expert ever is. Maxima of int32 are one instruction for a warp.
    left = tl.where(e < E, ordered_bits(tl.where(z == z, z, -float("inf"))), -2147483648)
    slot = tl.arange(0, CHOSEN)
    chosen = tl.full((CHOSEN,), -float("inf"), tl.float32)
    numbers = tl.zeros((CHOSEN,), tl.int32)
    for i in range(k):
        largest = tl.max(left, 0)
        number = tl.min(tl.where(left == largest, e, EXPERTS), 0)
        left = tl.where(e == number, -2147483648, left)
        chosen = tl.where(slot == i, float_of(largest), chosen)
        numbers = tl.where(slot == i, number, numbers)
    first = tl.max(chosen, 0)
    share = tl.exp(chosen - first)
    total = tl.sum(share, 0) if OVER_CHOSEN else tl.sum(tl.exp(z - first), 0)
    share = tl.div_rn(share, total)
    if FACTORS:
        share *= tl.load(factors + numbers, mask=slot < k, other=0.0)
    tl.store(weights + row * (k + SHARED) + slot, share, mask=slot < k)
    tl.store(experts + row * (k + SHARED) + slot, numbers, mask=slot < k)
    if SHARED:
        score = tl.load(logits + row * (E + SHARED) + E)
        tl.store(weights + row * (k + SHARED) + k, tl.div_rn(1.0, 1.0 + tl.exp(-score)))
        tl.store(experts + row * (k + SHARED) + k, E)


@triton.jit
def _route(
    logits, weights, experts, factors, E, k,
    OVER_CHOSEN: tl.constexpr, SHARED: tl.constexpr, FACTORS: tl.constexpr, EXPERTS: tl.constexpr, CHOSEN: tl.constexpr,
):  # fmt: skip
    _choose(tl.program_id(0), logits, weights, experts, factors, E, k, OVER_CHOSEN, SHARED, FACTORS, EXPERTS, CHOSEN)


@triton.jit
def _route_and_round(
    logits, weights, experts, factors, E, k, h, gain, signs, parts, words, scale, K, inverse_size, eps,
    OVER_CHOSEN: tl.constexpr, SHARED: tl.constexpr, FACTORS: tl.constexpr, EXPERTS: tl.constexpr, CHOSEN: tl.constexpr,
    HAS_GAIN: tl.constexpr, PARTS: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr, ZERO: tl.constexpr,
    NVIDIA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """ZERO: that of Int8Fragments, each row apart, whose notes `scale` are; None for the scales of Int8Rows."""
    program, row = tl.program_id(0), tl.program_id(1)
    if program == 0:
        if PDL:
            gdc_wait()
            gdc_launch_dependents()
        _choose(row, logits, weights, experts, factors, E, k, OVER_CHOSEN, SHARED, FACTORS, EXPERTS, CHOSEN)
    else:
        span = program - 1
        places = span_places()
        column = span * 256 + places
        signs_there = signs_of_span(signs, places, SIZE, NVIDIA)
        # The stream was written before the router began, so it is there; from L2, since L1 may hold what it was before.
        v = tl.load(h + row.to(tl.int64) * K + column, mask=column < K, other=0.0, cache_modifier=".cg")
        if HAS_GAIN:
            v *= tl.load(gain + column, mask=column < K, other=0.0)
        v = rotated_span(v, signs, signs_there, places, SIZE, NVIDIA)
        if PDL:
            gdc_wait()
            gdc_launch_dependents()
        factor = 1.0
        if PARTS > 0:
            rows = row + tl.arange(0, 1)
            factor = tl.sum(p_rstd(parts, rows, rows >= 0, inverse_size, eps, PARTS, PADDED), 0)
        if ZERO is not None:
            store_fragments(v, places, span, row, K, factor, words, scale, ZERO, 1)
        else:
            store_rows(v, span, row, K, factor, words, scale)


def route(
    logits: Tensor, k: int, kind: Routing, *, is_shared: bool = False, factors: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The weights [M, k] float32 and the numbers [M, k] int32 of the k experts with the largest logits, largest first.

    logits: [M, E] float32, contiguous. Of equal logits the lower number comes first. is_shared: the last expert is a
    shared one, in a slot of its own behind the k of the others. factors: [E] float32, what their experts' weights are
    multiplied by; with no shared one.
    """
    weights, experts = _chosen(logits, k, is_shared)
    _route[(len(logits),)](
        logits, weights, experts, logits if factors is None else factors, logits.shape[1] - is_shared, k,
        **_options(logits, k, kind, is_shared, factors), num_warps=_WARPS, **OPTIONS,
    )  # fmt: skip
    return weights, experts


def route_and_round(
    logits: Tensor,
    k: int,
    kind: Routing,
    h: Tensor,
    *,
    is_shared: bool = False,
    factors: Tensor | None = None,
    gain: Tensor | None,
    squares: Squares | None,
    rotation: int,
    zero: int | None,
    in_lanes: bool,
) -> tuple[Tensor, Tensor, Int8Rows | Int8Fragments]:
    """route, and in the same launch R (h * gain) / rms as int8: neither waits for the other.

    logits: of router_logits, launched last; h, which was written before it: [M, K] float32. gain, rotation, in_lanes:
    see quantize_rows. squares: of the rows of h, None for no norm: its factor goes into the scales. zero: that of
    Int8Fragments, which come in blocks of one row; None for Int8Rows.
    """
    (n_rows, length), n_parts = h.shape, 0 if squares is None else squares.parts.shape[1]
    assert h.is_contiguous()
    assert length % max(GROUP, rotation) == 0
    weights, experts = _chosen(logits, k, is_shared)
    if zero is None:
        words, scale = empty_rows(n_rows, length, h.device)
    else:
        words, scale = empty_fragments(n_rows, length, h.device, apart=True)
    pdl = has_pdl(h)
    _route_and_round[(1 + cdiv(length, SPAN), n_rows)](
        logits, weights, experts, logits if factors is None else factors, logits.shape[1] - is_shared, k, h,
        h if gain is None else gain, rotation_signs(rotation, h.device), h if squares is None else squares.parts,
        words.view(torch.int8), scale, length, 0.0 if squares is None else 1.0 / squares.size,
        0.0 if squares is None else squares.eps,
        **_options(logits, k, kind, is_shared, factors), HAS_GAIN=gain is not None, PARTS=n_parts,
        PADDED=next_power_of_2(max(1, n_parts)), SIZE=rotation, ZERO=zero,
        NVIDIA=in_lanes and is_nvidia(h), PDL=pdl, num_warps=_WARPS, **pdl_option(pdl), **OPTIONS,
    )  # fmt: skip
    if zero is None:
        return weights, experts, Int8Rows(words=words, scale=scale)
    return weights, experts, Int8Fragments(words=words, notes=scale, num_rows=n_rows, zero=zero)


def _chosen(logits: Tensor, k: int, is_shared: bool) -> tuple[Tensor, Tensor]:
    """Room for the weights and the numbers of the chosen."""
    n_rows, n_slots = len(logits), k + is_shared
    assert logits.dtype == torch.float32
    assert logits.is_contiguous()
    assert 1 <= k <= logits.shape[1] - is_shared
    weights = torch.empty(n_rows, n_slots, dtype=torch.float32, device=logits.device)
    return weights, torch.empty(n_rows, n_slots, dtype=torch.int32, device=logits.device)


def _options(logits: Tensor, k: int, kind: Routing, is_shared: bool, factors: Tensor | None) -> dict[str, int]:
    assert factors is None or (len(factors) == logits.shape[1] and not is_shared)
    return {
        "OVER_CHOSEN": kind == "topk_softmax",
        "SHARED": int(is_shared),
        "FACTORS": factors is not None,
        "EXPERTS": next_power_of_2(logits.shape[1] - is_shared),
        "CHOSEN": next_power_of_2(k),
    }


def try_rounding(rotation: int, device: torch.device) -> bool:
    """Whether rows come out of route_and_round in lanes as they do without: see add_parts.rotates."""
    random = torch.Generator().manual_seed(0)
    h, logits = torch.randn(3, 2 * SPAN, generator=random).to(device), torch.zeros(3, 4, device=device)

    def rounded(in_lanes: bool) -> Tensor:
        *_, rows = route_and_round(
            logits, 2, "topk_softmax", h, gain=None, squares=None, rotation=rotation, zero=None, in_lanes=in_lanes
        )
        assert isinstance(rows, Int8Rows)
        return rows.values()

    rows, found = rounded(in_lanes=False), rounded(in_lanes=True)
    return bool((found - rows).norm() < 1e-2 * rows.norm())


rounds_in_lanes = cache(try_rounding)


_WARPS = 1  # maxima over a warp need no barrier, and butterflies none


def variants() -> Iterator[Variant]:
    for n_experts, k, over_chosen, shared, factors in (
        (128, 8, True, 0, False),
        (32, 4, True, 0, False),
        (64, 8, False, 0, False),
        (256, 8, True, 1, False),
        (128, 8, True, 0, True),
    ):
        yield Variant(
            name=f"moe_route {k} of {n_experts}{_more(shared, factors)}",
            kernel=_route,
            signature={
                "logits": "*fp32", "weights": "*fp32", "experts": "*i32", "factors": "*fp32", "E": "i32:16", "k": "i32",
            },
            constants={
                "OVER_CHOSEN": over_chosen, "SHARED": shared, "FACTORS": factors, "EXPERTS": n_experts, "CHOSEN": k,
            },
            num_warps=_WARPS,
            is_decode=False,
        )  # fmt: skip
    for n_experts, shared, factors, zero in (
        (128, 0, False, None),
        (128, 0, False, 0),
        (256, 1, False, 0),
        (128, 0, True, 0),
    ):
        to = "" if zero is None else " to fragments"
        yield Variant(
            name=f"moe_route 8 of {n_experts}{_more(shared, factors)}, rows rounded{to}",
            kernel=_route_and_round,
            signature={
                "logits": "*fp32", "weights": "*fp32", "experts": "*i32", "factors": "*fp32", "E": "i32:16",
                "k": "i32", "h": "*fp32", "gain": "*fp32", "signs": "*fp32", "parts": "*fp32", "words": "*i8",
                "scale": "*fp32", "K": "i32:16", "inverse_size": "fp32", "eps": "fp32",
            },
            constants={
                "OVER_CHOSEN": True, "SHARED": shared, "FACTORS": factors, "EXPERTS": n_experts, "CHOSEN": 8,
                "HAS_GAIN": True,
                "PARTS": 128, "PADDED": 128, "SIZE": 256, "ZERO": zero, "NVIDIA": False,
            },
            nvidia_constants={"NVIDIA": True},
            num_warps=_WARPS,
            has_pdl=True,
            is_nvidia_only=zero is not None,
        )  # fmt: skip


def _more(shared: int, factors: bool) -> str:
    """What of a variant is none of the others'."""
    return " and a shared one" if shared else " with factors" if factors else ""
