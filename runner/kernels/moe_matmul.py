"""The products of a mixture of experts with what follows them: each row times the matrices of the experts it takes.

w is [E * N, K], dense or packed, the rows of expert e from e * N on. Up to 16 rows a product is one vector a pair of a
row and an expert (moe_fragments.py, or moe_gemv.py where weights are dense or in planes), or, where rows share experts,
those of an expert are multiplied together (moe_blocks.py), and a row has the same bits whatever M is. Above, pairs are
sorted by expert in any case (moe_blocks.py for few of each, moe_int8.py on Hopper, moe_gemm.py).
Pair p = m * k + s is row m's slot s. Activations come as matmul.py wants them, by the number of rows M, those of pairs
too, but Int8Fragments in blocks of one row, also above 16 rows where moe_blocks takes them, and Int8Blocks for
moe_int8.py. It knows no models.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from runner.kernels.compile import Variant
from runner.kernels.epilogues import ACTIVATIONS
from runner.kernels.fragments import TILE
from runner.kernels.matmul import Activation, dense_rows, gate_ref
from runner.kernels.moe_blocks import BlocksOfExperts
from runner.kernels.moe_fragments import PAIRS_WARPS, GemvFragmentsOfExperts, multiplies_one_by_one, warps_of_slot
from runner.kernels.moe_gemm import Gemm
from runner.kernels.moe_gemv import Gemv
from runner.kernels.moe_groups import Groups, group_pairs
from runner.kernels.moe_int8 import Int8OfExperts
from runner.kernels.moe_pairs import gate_pairs, store_pairs
from runner.kernels.moe_slots import add_slots
from runner.kernels.pack import dequantize_ref
from runner.kernels.values import (
    MOST_ROWS,
    OPTIONS,
    Int8Blocks,
    Int8Fragments,
    Int8Rows,
    Matrix,
    PackedMatrix,
    Squares,
    cdiv,
    next_power_of_2,
    rstd_ref,
)

MoeRows = Tensor | Int8Rows | Int8Fragments | Int8Blocks
"""Activations as experts' matrices want them."""


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """The experts of M rows, k each: weights [M, k] float32, experts [M, k] int32 (moe_route.route).

    groups: their pairs by expert, for more than 16 rows, and for fewer where they share weights in fragments.
    """

    weights: Tensor
    experts: Tensor
    num_experts: int
    groups: Groups | None


def dispatch(weights: Tensor, experts: Tensor, num_experts: int, *, is_sorted: bool = False) -> Dispatch:
    """What the products of a mixture of experts share. is_sorted: moe_blocks.shares_blocks; above 16 rows all are."""
    assert weights.shape == experts.shape
    groups = group_pairs(experts, num_experts) if is_sorted or len(experts) > MOST_ROWS else None
    return Dispatch(weights=weights, experts=experts, num_experts=num_experts, groups=groups)


# --- references ------------------------------------------------------------------------------------------------------


def moe_linear_ref(
    x: MoeRows, w: Matrix, to: Dispatch, *, bias: Tensor | None, squares: Squares | None, dtype: torch.dtype
) -> Tensor:
    """See moe_linear."""
    rows = dense_rows(x).float()
    if squares is not None:
        rows = rows * rstd_ref(squares)[:, None]
    rows = rows.repeat_interleave(to.experts.shape[1], 0)
    return _products_ref(rows, w, to, bias).to(dtype)


def moe_linear_gated_ref(
    x: MoeRows,
    w: Matrix,
    to: Dispatch,
    activation: Activation,
    *,
    bias: Tensor | None,
    squares: Squares | None,
    dtype: torch.dtype,
) -> Tensor:
    """See moe_linear_gated."""
    gate, up = moe_linear_ref(x, w, to, bias=bias, squares=squares, dtype=torch.float32).chunk(2, 1)
    return gate_ref(gate, up, activation).to(dtype)


def moe_linear_residual_ref(x: MoeRows, w: Matrix, to: Dispatch, h: Tensor, *, bias: Tensor | None) -> Tensor:
    """The new h; see moe_linear_residual."""
    y = _products_ref(dense_rows(x).float(), w, to, bias).view(*to.experts.shape, -1)
    return h + (y * to.weights[:, :, None]).sum(1)


def moe_linear_squares_ref(x: MoeRows, w: Matrix, to: Dispatch, *, bias: Tensor | None) -> Tensor:
    """See moe_linear_squares."""
    nothing = torch.zeros(len(to.experts), w.shape[0] // to.num_experts, device=to.weights.device)
    return moe_linear_residual_ref(x, w, to, nothing, bias=bias)


def _products_ref(rows: Tensor, w: Matrix, to: Dispatch, bias: Tensor | None) -> Tensor:
    """[P, N] of the pairs' rows [P, K]."""
    experts = to.experts.flatten().long()
    weights = (w.float() if isinstance(w, Tensor) else dequantize_ref(w)).view(to.num_experts, -1, rows.shape[1])
    y: Tensor = torch.einsum("pk,pnk->pn", rows, weights[experts])
    return y if bias is None else y + bias[experts].float()


# --- operations ------------------------------------------------------------------------------------------------------


def moe_linear(
    x: MoeRows,
    w: Matrix,
    to: Dispatch,
    *,
    bias: Tensor | None = None,
    squares: Squares | None = None,
    dtype: torch.dtype,
) -> Tensor:
    """Row m times the matrix of each of its experts, / rms + bias: [M * k, N] `dtype`.

    x: of M rows. bias: [E, N]. squares: of the rows that x was made of.
    """
    return _pairs(x, w, to, bias, squares, dtype, None)


def moe_linear_gated(
    x: MoeRows,
    w: Matrix,
    to: Dispatch,
    activation: Activation,
    *,
    bias: Tensor | None = None,
    squares: Squares | None = None,
    dtype: torch.dtype,
) -> Tensor:
    """act(x @ gate.T) * (x @ up.T), N = 2 I the rows of gate and then those of up: [M * k, I] `dtype`."""
    return _pairs(x, w, to, bias, squares, dtype, activation)


def moe_linear_residual(
    x: MoeRows,
    w: Matrix,
    to: Dispatch,
    h: Tensor,
    *,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    eps: float,
) -> Squares:
    """h += the sum over a row's slots, in their order, of weight * (x @ w.T + bias); the sums of squares of the new h.

    x: of the M * k pairs. h: [M, N] float32, in place. bias: [E, N]. dtype: of the pairs' products until they are added
    up, for more than 16 rows; for fewer it is float32.
    """
    return _sum(x, w, to, h, bias, dtype, eps, adds=True)


def moe_linear_squares(
    x: MoeRows,
    w: Matrix,
    to: Dispatch,
    *,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    eps: float,
) -> tuple[Tensor, Squares]:
    """The sum that moe_linear_residual adds, by itself: [M, N] float32, and its squares, for a norm behind it."""
    y = torch.empty(len(to.experts), w.shape[0] // to.num_experts, dtype=torch.float32, device=to.weights.device)
    return y, _sum(x, w, to, y, bias, dtype, eps, adds=False)


def _sum(
    x: MoeRows, w: Matrix, to: Dispatch, h: Tensor, bias: Tensor | None, dtype: torch.dtype, eps: float, *, adds: bool
) -> Squares:
    """See both. adds: else h holds nothing yet."""
    (n_rows, _), n = to.experts.shape, w.shape[0] // to.num_experts
    assert h.shape == (n_rows, n)
    assert h.is_contiguous()
    if to.groups is None and not _is_one_by_one(x, to):
        gemv = _gemv(x, w, to, n)
        parts = torch.empty(n_rows, gemv.n_sum_tiles, dtype=torch.float32, device=h.device)
        gemv.sum(to.weights, h, bias, parts, adds=adds)
        return Squares(parts=parts, size=n, eps=eps)
    if n_rows > MOST_ROWS:
        y = _pairs(x, w, to, bias, None, dtype, None, is_residual=True)
        return _add_pairs(h, y, to.weights, eps, adds=adds)
    parts = torch.empty(n_rows, n // TILE, dtype=torch.float32, device=h.device)
    y = _pairs(x, w, to, bias, None, torch.float32, None, is_residual=True)
    add_slots(y, to.weights, h, parts, adds=adds)
    return Squares(parts=parts, size=n, eps=eps)


def _pairs(
    x: MoeRows,
    w: Matrix,
    to: Dispatch,
    bias: Tensor | None,
    squares: Squares | None,
    dtype: torch.dtype,
    activation: Activation | None,
    *,
    is_residual: bool = False,
) -> Tensor:
    """The pairs' products [P, N], or [P, N / 2] gated. x: of rows, or, for the residual stream, of pairs."""
    n = w.shape[0] // to.num_experts
    width = n if activation is None else n // 2
    out = torch.empty(to.experts.numel(), width, dtype=dtype, device=to.experts.device)
    norm: tuple[Any, ...] = (out, 0.0, 0.0)
    parts = 0
    if squares is not None:
        norm, parts = (squares.parts, 1.0 / squares.size, squares.eps), squares.parts.shape[1]
    args = (out, width, norm, out if bias is None else bias, (to.experts, to.experts.shape[1], n))
    config: tuple[Any, ...] = (parts, next_power_of_2(parts) if parts else 0, bias is not None)
    if activation is not None:
        config = (*config, ACTIVATIONS[activation])
    epilogue, pair = (store_pairs, 0) if activation is None else (gate_pairs, width)
    if to.groups is None and is_residual:
        assert isinstance(x, Int8Fragments)
        assert isinstance(w, PackedMatrix)
        GemvFragmentsOfExperts(x=x, w=w, experts=to.experts, num_rows=n).products(epilogue, args, config)
    elif to.groups is None:
        _gemv(x, w, to, n).pairs(epilogue, args, config, pair, width)
    elif isinstance(x, Int8Fragments):
        assert isinstance(w, PackedMatrix)
        few = len(to.experts) <= MOST_ROWS  # whose bits are those of moe_fragments.py
        warps = None if not few else warps_of_slot(w.shape[1], to.experts.shape[1]) if is_residual else PAIRS_WARPS
        blocks = BlocksOfExperts(x=x, w=w, groups=to.groups, warps=warps)
        blocks.pairs(epilogue, args, config, pair, width)
    elif isinstance(x, Int8Blocks):
        assert isinstance(w, PackedMatrix)
        Int8OfExperts(x=x, w=w, groups=to.groups).pairs(epilogue, args, config, pair, width)
    else:
        assert isinstance(x, Tensor)
        Gemm(x=x, w=w, groups=to.groups).pairs(epilogue, args, config, pair, width)
    return out


def _is_one_by_one(x: MoeRows, to: Dispatch) -> bool:
    return isinstance(x, Int8Fragments) and multiplies_one_by_one(*to.experts.shape)


def _gemv(x: MoeRows, w: Matrix, to: Dispatch, n: int) -> Gemv | GemvFragmentsOfExperts:
    """The products of up to 16 rows. n: rows of an expert's matrix."""
    if isinstance(x, Int8Fragments):
        assert isinstance(w, PackedMatrix)
        return GemvFragmentsOfExperts(x=x, w=w, experts=to.experts, num_rows=n)
    assert not isinstance(x, Int8Blocks)
    return Gemv(x=x, w=w, experts=to.experts, num_rows=n)


# --- the sum over slots, for many rows -------------------------------------------------------------------------------


@triton.jit
def _add(h, y, weights, parts, N, k, n_spans, ADDS: tl.constexpr, SPAN: tl.constexpr):
    row = tl.program_id(1)
    n = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    n_ok = n < N
    total = tl.zeros((SPAN,), tl.float32)
    for slot in range(k):
        pair = row * k + slot
        value = tl.load(y + pair.to(tl.int64) * N + n, mask=n_ok, other=0.0).to(tl.float32)
        total = tl.fma(tl.zeros_like(total) + tl.load(weights + pair), value, total)
    at = row.to(tl.int64) * N + n
    if ADDS:
        total += tl.load(h + at, mask=n_ok, other=0.0)
    tl.store(h + at, total, mask=n_ok)
    tl.store(parts + row * n_spans + tl.program_id(0), tl.sum(tl.where(n_ok, total * total, 0.0), 0))


def _add_pairs(h: Tensor, y: Tensor, weights: Tensor, eps: float, *, adds: bool) -> Squares:
    """h [M, N] += the sum over slots of weights [M, k] * y [M * k, N]. adds: else h is that sum."""
    (n_rows, n), k = h.shape, weights.shape[1]
    n_spans = cdiv(n, _SPAN)
    parts = torch.empty(n_rows, n_spans, dtype=torch.float32, device=h.device)
    _add[(n_spans, n_rows)](h, y, weights, parts, n, k, n_spans, ADDS=adds, SPAN=_SPAN, num_warps=_WARPS, **OPTIONS)
    return Squares(parts=parts, size=n, eps=eps)


_SPAN, _WARPS = 1024, 4


def variants() -> Iterator[Variant]:
    yield Variant(
        name="moe_matmul add bf16",
        kernel=_add,
        signature={
            "h": "*fp32", "y": "*bf16", "weights": "*fp32", "parts": "*fp32", "N": "i32:16", "k": "i32",
            "n_spans": "i32",
        },
        constants={"ADDS": True, "SPAN": _SPAN},
        num_warps=_WARPS,
        is_decode=False,
    )  # fmt: skip
