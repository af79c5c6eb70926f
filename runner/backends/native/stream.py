"""The residual stream of a fused decoder, and the steps that every block makes of it: activations, products, branches.

It knows blocks as little as models: who multiplies what is said in fused.py and fused_moe.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from runner.backends.native.blocks import RmsNorm
from runner.backends.native.matrices import MatrixReader, Product, join
from runner.kernels.add_norm import add_normed
from runner.kernels.matmul import Rows, linear, linear_residual, linear_squares
from runner.kernels.rotate import quantize_rows, rotate_rows
from runner.kernels.values import MOST_ROWS, Matrix, Squares


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The residual stream of M tokens: h [M, hidden] float32, and the sums of its squares."""

    h: Tensor
    squares: Squares


@dataclass(frozen=True, kw_only=True)
class Norm:
    """gain [size] float32, any constant that the model adds to its weight included."""

    gain: Tensor
    eps: float


def activations(x: Tensor, gain: Tensor | None, w: Matrix, dtype: torch.dtype, *, is_few: bool | None = None) -> Rows:
    """x [M, K], times the gain, as a product with w wants it; is_few: the product is one of up to 16 rows."""
    if isinstance(w, Tensor):
        return x if gain is None and x.dtype == dtype else rotate_rows(x, gain, 1, dtype, planes=False)
    if len(x) <= MOST_ROWS if is_few is None else is_few:
        return quantize_rows(x, gain, w.rotation)
    return rotate_rows(x, gain, w.rotation, dtype, planes=True)


def multiply(stream: Stream, before: Norm | None, product: Product, dtype: torch.dtype) -> Tensor:
    """norm(h) @ w.T + bias, [M, N] `dtype`."""
    gain, squares = (None, None) if before is None else (before.gain, stream.squares)
    if before is not None:
        assert stream.squares.eps == before.eps
    outputs = [
        linear(activations(stream.h, gain, w, dtype_of(w, dtype)), w, bias=bias, squares=squares, dtype=dtype)
        for w, bias in zip(product.parts, product.biases, strict=True)
    ]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)


def dtype_of(w: Matrix, dtype: torch.dtype) -> torch.dtype:
    return w.dtype if isinstance(w, Tensor) else dtype


def add_branch(stream: Stream, x: Tensor, product: Product, after: Norm | None, dtype: torch.dtype) -> Stream:
    """h + x @ w.T, or h + norm(x @ w.T) where a norm follows the branch; h is changed in place."""
    (w,), (bias,) = product.parts, product.biases
    rows = activations(x, None, w, dtype)
    eps = stream.squares.eps
    if after is None:
        return Stream(h=stream.h, squares=linear_residual(rows, w, stream.h, bias=bias, eps=eps))
    y, squares = linear_squares(rows, w, bias=bias, eps=after.eps, dtype=torch.float32)
    return Stream(h=stream.h, squares=add_normed(stream.h, y, squares, after.gain))


def read_product(reader: MatrixReader, name: str, members: list[str]) -> Product:
    matrices = [reader.matrix(f"{name}.{member}.weight") for member in members]
    return join(matrices, [reader.optional_vector(f"{name}.{member}.bias") for member in members])


def read_norm(reader: MatrixReader, module: nn.Module, name: str, leaf: str | None) -> Norm | None:
    """The norm `leaf` of a module, whose name in the checkpoint is `name`; None for None."""
    if leaf is None:
        return None
    norm = module.get_submodule(leaf)
    assert isinstance(norm, RmsNorm)
    return Norm(gain=reader.vector(f"{name}.{leaf}.weight") + norm.offset, eps=norm.eps)
