"""The products of a decoder with what follows them: x @ w.T and an epilogue program.

Which kernel runs follows from the weights and from the number of rows: packed or dense, up to 16 rows or more. Up to 16
rows, row m has the same bits whatever M is. Each operation stands beside its reference. A new fusion is a program in
epilogues.py, and here a reference and a launcher of ten lines. It knows no models.

Activations x of M rows come as the weights want them, from rotate.py:
    dense weights               [M, K], contiguous
    packed weights, few rows    Int8Rows or, where the weights are in fragments, Int8Fragments, rotated
    packed weights, more rows   [M, K], rotated, or Int8Blocks where gemm_int8.takes_int8 says so; of these up to
                                most_decoded_rows are multiplied by gemm_fragments.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from runner.kernels import epilogues
from runner.kernels.add_parts import Reader, add_parts
from runner.kernels.fragments import activation_rows
from runner.kernels.gemm import Gemm
from runner.kernels.gemm_fragments import GemmFragments, most_decoded_rows
from runner.kernels.gemm_int8 import GemmInt8
from runner.kernels.gemv_dense import GemvDense
from runner.kernels.gemv_fragments import GemvFragments
from runner.kernels.gemv_packed import GemvPacked
from runner.kernels.pack import dequantize_ref
from runner.kernels.row_blocks import RowBlocks, row_blocks
from runner.kernels.values import (
    MOST_ROWS,
    Int8Blocks,
    Int8Fragments,
    Int8Rows,
    Matrix,
    Parts,
    Squares,
    next_power_of_2,
    rstd_ref,
)

Activation = Literal["silu", "gelu_tanh", "clamped_swiglu"]
Rows = Tensor | Int8Rows | Int8Fragments | Int8Blocks


# --- references ------------------------------------------------------------------------------------------------------


def product_ref(x: Rows, w: Matrix) -> Tensor:
    """x @ w.T [M, N] in float32, of activations as they come and weights as they are stored."""
    weights = w.float() if isinstance(w, Tensor) else dequantize_ref(w)
    return dense_rows(x).float() @ weights.T


def dense_rows(x: Rows) -> Tensor:
    """Activations in natural order [M, K]."""
    if isinstance(x, Int8Fragments):
        return activation_rows(x)
    if isinstance(x, Int8Rows | Int8Blocks):
        return x.values()
    return x


def linear_ref(x: Rows, w: Matrix, *, bias: Tensor | None, squares: Squares | None, dtype: torch.dtype) -> Tensor:
    """See linear."""
    return _scaled_ref(product_ref(x, w), bias, squares).to(dtype)


def _scaled_ref(y: Tensor, bias: Tensor | None, squares: Squares | None) -> Tensor:
    y = y if squares is None else y * rstd_ref(squares)[:, None]
    return y if bias is None else y + bias.float()


def gate_ref(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """act(gate) * up."""
    if activation == "silu":
        return functional.silu(gate) * up
    if activation == "gelu_tanh":
        return functional.gelu(gate, approximate="tanh") * up
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


def linear_gated_ref(
    x: Rows, w: Matrix, activation: Activation, *, bias: Tensor | None, squares: Squares | None, dtype: torch.dtype
) -> Tensor:
    """See linear_gated."""
    gate, up = _scaled_ref(product_ref(x, w), bias, squares).chunk(2, dim=1)
    return gate_ref(gate, up, activation).to(dtype)


def linear_gated_by_ref(x: Rows, w: Matrix, by: Tensor, activation: Activation, *, dtype: torch.dtype) -> Tensor:
    """See linear_gated_by."""
    return gate_ref(product_ref(x, w), by.float(), activation).to(dtype)


# --- operations ------------------------------------------------------------------------------------------------------


def linear(
    x: Rows, w: Matrix, *, bias: Tensor | None = None, squares: Squares | None = None, dtype: torch.dtype
) -> Tensor:
    """x @ w.T / rms + bias.

    x: see above. bias: [N]. squares: of the rows that x was made of; the norm's gain is in x. Returns [M, N] `dtype`.
    """
    launch = product(x, w)
    out = torch.empty(launch.num_rows, w.shape[0], dtype=dtype, device=_device(w))
    norm, config = _norm(squares, out)
    args = (out, w.shape[0], norm, out if bias is None else bias)
    launch.run(epilogues.store, args, (*config, bias is not None))
    return out


def linear_parts(
    x: Rows, w: Matrix, *, bias: Tensor | None, squares: Squares | None, dtype: torch.dtype
) -> Parts | None:
    """The same, still to be put together; None where it does not come in parts."""
    launch = product(x, w)
    values = launch.parts() if isinstance(launch, GemmFragments) else None
    return None if values is None else Parts(values=values, squares=squares, bias=bias, dtype=dtype)


def linear_squares(
    x: Rows, w: Matrix, *, bias: Tensor | None = None, squares: Squares | None = None, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Squares]:
    """The same, with the sums of squares of the result: for a norm after the product."""
    launch = product(x, w)
    n_tiles = launch.n_tiles
    out = torch.empty(launch.num_rows, w.shape[0], dtype=dtype, device=_device(w))
    parts = torch.empty(launch.num_rows, n_tiles, dtype=torch.float32, device=out.device)
    norm, config = _norm(squares, out)
    args = (out, w.shape[0], norm, out if bias is None else bias, parts, n_tiles)
    launch.run(epilogues.store_squares, args, (*config, bias is not None))
    return out, Squares(parts=parts, size=w.shape[0], eps=eps)


def linear_residual(x: Rows, w: Matrix, h: Tensor, *, bias: Tensor | None = None, eps: float) -> Squares:
    """h += x @ w.T + bias in place, h [M, N] float32; returns the sums of squares of the new h."""
    assert h.shape == (x.shape[0], w.shape[0])
    assert h.is_contiguous()
    launch = product(x, w)
    n_tiles = launch.n_tiles
    parts = torch.empty(len(h), n_tiles, dtype=torch.float32, device=h.device)
    norm, config = _norm(None, h)
    args = (h, w.shape[0], norm, h if bias is None else bias, parts, n_tiles)
    launch.run(epilogues.add_residual, args, (*config, bias is not None))
    return Squares(parts=parts, size=w.shape[0], eps=eps)


def linear_gated(
    x: Rows,
    w: Matrix,
    activation: Activation,
    *,
    bias: Tensor | None = None,
    squares: Squares | None = None,
    dtype: torch.dtype,
) -> Tensor:
    """act(x @ gate.T) * (x @ up.T), w [2 I, K] the rows of gate and then those of up; returns [M, I] `dtype`."""
    launch = product(x, w, pair=w.shape[0] // 2)
    width = w.shape[0] // 2
    out = torch.empty(launch.num_rows, width, dtype=dtype, device=_device(w))
    norm, config = _norm(squares, out)
    args = (out, width, norm, out if bias is None else bias)
    launch.run(epilogues.gate, args, (*config, bias is not None, epilogues.ACTIVATIONS[activation]))
    return out


def linear_gated_by(x: Rows, w: Matrix, by: Tensor, activation: Activation, *, dtype: torch.dtype) -> Tensor:
    """act(x @ w.T) * by, [M, N] `dtype`. by: the same shape, whose rows may lie apart."""
    launch = product(x, w)
    assert by.shape == (launch.num_rows, w.shape[0]), (by.shape, w.shape)
    assert by.stride(1) == 1
    out = torch.empty(launch.num_rows, w.shape[0], dtype=dtype, device=_device(w))
    norm, config = _norm(None, out)
    args = (out, w.shape[0], norm, out, by, by.stride(0))
    launch.run(epilogues.gate_by, args, (*config, False, epilogues.ACTIVATIONS[activation]))
    return out


def linear_residual_for(
    x: Rows, w: Matrix, h: Tensor, reader: Reader, *, bias: Tensor | None = None, eps: float
) -> tuple[Squares, Int8Fragments | Int8Blocks | None]:
    """linear_residual, and the new h as `reader` wants it, without its norm's factor; None where it must ask for it."""
    launch = product(x, w)
    if isinstance(launch, GemvFragments):
        parts = launch.add_to(h, bias)
    else:
        parts = launch.parts() if isinstance(launch, GemmFragments) else None
        if parts is None:
            return linear_residual(x, w, h, bias=bias, eps=eps), None
    sums, rows = add_parts(h, parts, None if parts is None else bias, reader)
    return Squares(parts=sums, size=w.shape[0], eps=eps), rows


@dataclass(frozen=True, kw_only=True)
class Logits:
    """Logits [M, N] float32, and of each tile of columns t: the largest [M, T], the lowest id that has it [M, T] int32,
    and sum exp(z - largest) [M, T]."""

    values: Tensor
    maxima: Tensor
    arguments: Tensor
    sums: Tensor

    def log_sum_exp(self) -> Tensor:
        """log sum exp over all columns, [M] float32, from the tiles."""
        return torch.logsumexp(self.maxima + self.sums.log(), 1)


def linear_logits(x: Rows, w: Matrix, *, squares: Squares | None, cap: float | None = None) -> Logits:
    """The logits x @ w.T / rms, and what their tiles say of them: greedy decoding reads no logit again.

    cap: c, where they are c * tanh(logits / c).
    """
    launch = product(x, w)
    n_rows, n_tiles, device = launch.num_rows, launch.n_tiles, _device(w)
    out = torch.empty(n_rows, w.shape[0], dtype=torch.float32, device=device)
    maxima = torch.empty(n_rows, n_tiles, dtype=torch.float32, device=device)
    arguments = torch.empty(n_rows, n_tiles, dtype=torch.int32, device=device)
    sums = torch.empty_like(maxima)
    norm, config = _norm(squares, out)
    args = (out, w.shape[0], norm, out, maxima, arguments, sums, n_tiles)
    if cap is None:
        launch.run(epilogues.logits, args, (*config, False))
    else:
        launch.run(epilogues.capped_logits, (*args, cap), (*config, False))
    return Logits(values=out, maxima=maxima, arguments=arguments, sums=sums)


# --- which kernel ----------------------------------------------------------------------------------------------------


def product(
    x: Rows, w: Matrix, *, pair: int = 0
) -> GemvFragments | GemvPacked | GemvDense | Gemm | GemmFragments | GemmInt8 | RowBlocks:
    """x @ w.T, to be `run` with an epilogue program. pair: the rows of w come in pairs (n, n + pair), see columns."""
    if isinstance(x, Tensor):
        is_few = isinstance(w, Tensor) and len(x) <= MOST_ROWS
        return GemvDense(x=x, w=w, pair=pair) if is_few else Gemm(x=x, w=w, pair=pair)  # type: ignore[arg-type]
    assert not isinstance(w, Tensor), "int8 activations are for packed weights"
    if isinstance(x, Int8Fragments):
        return GemvFragments(x=x, w=w, pair=pair)
    if isinstance(x, Int8Blocks):
        return (GemmFragments if x.shape[0] <= most_decoded_rows(*w.shape) else GemmInt8)(x=x, w=w, pair=pair)
    if x.shape[0] <= MOST_ROWS:
        return GemvPacked(x=x, w=w, pair=pair)
    launches = tuple(GemvPacked(x=block, w=w, pair=pair) for block in row_blocks(x))
    return RowBlocks(num_rows=x.shape[0], launches=launches)


def _device(w: Matrix) -> torch.device:
    return w.device if isinstance(w, Tensor) else w.packed.device


def _norm(squares: Squares | None, unused: Tensor) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The arguments of a program's norm, and its constants (PARTS, PADDED)."""
    if squares is None:
        return (unused, 0.0, 0.0), (0, 0)
    n_parts = squares.parts.shape[1]
    return (squares.parts, 1.0 / squares.size, squares.eps), (n_parts, next_power_of_2(n_parts))
