"""The residual stream of a fused decoder, and the steps that every block makes of it: activations, products, branches.

It knows blocks as little as models: who multiplies what is said in fused.py and fused_moe.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from runner.backends.native.blocks import Attention, RmsNorm
from runner.backends.native.matrices import MatrixReader, Product, join
from runner.kernels.add_norm import add_normed
from runner.kernels.add_parts import Reader, add_normed_for
from runner.kernels.fragment_products import ZEROS
from runner.kernels.gates import GatedRows, gate_blocks, gate_fragments, gate_rows
from runner.kernels.gemm_fragments import most_decoded_rows
from runner.kernels.gemm_int8 import takes_int8
from runner.kernels.layouts import best_layout
from runner.kernels.matmul import Rows, linear, linear_parts, linear_residual, linear_residual_for, linear_squares
from runner.kernels.pack import chosen_rows
from runner.kernels.rotate import quantize_blocks, quantize_fragments, quantize_rows, rotate_rows
from runner.kernels.splits import Splits, combine, combine_blocks, combine_fragments
from runner.kernels.values import FEW_ROWS, Int8Blocks, Int8Fragments, Matrix, Parts, Squares


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The residual stream of M tokens: h [M, hidden] float32, and the sums of its squares.

    eps: of the norms before its readers. ready: h as the product that reads it next wants it, but for its norm's
    factor, where the one before could leave it.
    """

    h: Tensor
    eps: float
    squares: Squares
    ready: Int8Fragments | Int8Blocks | None = None

    def row(self, number: Tensor) -> Stream:
        """The stream of one token. number: int64 [1], on the device."""
        parts = self.squares.parts.index_select(0, number)
        return Stream(h=self.h.index_select(0, number), eps=self.eps, squares=replace(self.squares, parts=parts))


@dataclass(frozen=True, kw_only=True)
class Norm:
    """gain [size] float32, any constant that the model adds to its weight included."""

    gain: Tensor
    eps: float


Mixed = Tensor | Splits | GatedRows
"""What an output product reads: rows [M, K]; attention's splits, which are still to be put together; or rows that are
still to be gated."""


def activations(
    x: Mixed, gain: Tensor | None, w: Matrix, dtype: torch.dtype, squares: Squares | None = None
) -> tuple[Rows, Squares | None]:
    """x [M, K], times the gain, as a product with w wants it, and what of the norm is left for the product to do.

    x: none but a tensor has a gain. squares: of the rows of x, if a norm stands before the product.
    """
    if not isinstance(x, Tensor):
        if not isinstance(w, Tensor) and takes_int8(w, len(x)):
            return _as_blocks(x, w.rotation), None
        if not isinstance(w, Tensor) and w.layout == "fragments" and len(x) <= FEW_ROWS:
            return _as_fragments(x, w.rotation, ZEROS[w.format]), None
        x = combine(x) if isinstance(x, Splits) else gate_rows(x)
    if isinstance(w, Tensor):
        return x if gain is None and x.dtype == dtype else rotate_rows(x, gain, 1, dtype), squares
    if takes_int8(w, len(x)):
        return quantize_blocks(x, gain, w.rotation, in_lanes=True), squares
    if len(x) > FEW_ROWS:
        return rotate_rows(x, gain, w.rotation, dtype, in_lanes=w.layout == "fragments"), squares
    if w.layout == "fragments":
        return quantize_fragments(x, gain, w.rotation, ZEROS[w.format], squares), None
    return quantize_rows(x, gain, w.rotation), squares


def _as_blocks(x: Splits | GatedRows, rotation: int) -> Int8Blocks:
    return combine_blocks(x, rotation) if isinstance(x, Splits) else gate_blocks(x, rotation)


def _as_fragments(x: Splits | GatedRows, rotation: int, zero: int) -> Int8Fragments:
    return combine_fragments(x, rotation, zero) if isinstance(x, Splits) else gate_fragments(x, rotation, zero)


def multiply(stream: Stream, before: Norm | None, product: Product, dtype: torch.dtype) -> Tensor:
    """norm(h) @ w.T + bias, [M, N] `dtype`."""
    outputs = []
    for w, bias in zip(product.parts, product.biases, strict=True):
        rows, squares = normed(stream, before, w, dtype_of(w, dtype))
        outputs.append(linear(rows, w, bias=bias, squares=squares, dtype=dtype))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)


def multiply_in_parts(stream: Stream, before: Norm | None, product: Product, dtype: torch.dtype) -> Tensor | Parts:
    """multiply, for who puts parts together, where they come."""
    if len(product.parts) > 1:
        return multiply(stream, before, product, dtype)
    (w,), (bias,) = product.parts, product.biases
    rows, squares = normed(stream, before, w, dtype_of(w, dtype))
    parts = linear_parts(rows, w, bias=bias, squares=squares, dtype=dtype)
    return linear(rows, w, bias=bias, squares=squares, dtype=dtype) if parts is None else parts


def multiply_with_sums(
    stream: Stream, before: Norm | None, product: Product, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """multiply, and the squares of every 16 columns, [M, N / 16] float32, where the product leaves them."""
    if len(product.parts) > 1:
        return multiply(stream, before, product, dtype), None
    (w,), (bias,) = product.parts, product.biases
    rows, squares = normed(stream, before, w, dtype_of(w, dtype))
    if not isinstance(rows, Int8Fragments):
        return linear(rows, w, bias=bias, squares=squares, dtype=dtype), None
    found, of_found = linear_squares(rows, w, bias=bias, squares=squares, eps=0.0, dtype=dtype)
    return found, of_found.parts


def normed(stream: Stream, before: Norm | None, w: Matrix, dtype: torch.dtype) -> tuple[Rows, Squares | None]:
    """norm(h), or h without one, as a product with w wants it; see activations."""
    gain, squares = norm_of(stream, before)
    if stream.ready is not None:
        return stream.ready, squares
    return activations(stream.h, gain, w, dtype, squares)


def norm_of(stream: Stream, before: Norm | None) -> tuple[Tensor | None, Squares | None]:
    """The gain, and the squares of the stream, that a norm before a product takes."""
    if before is None:
        return None, None
    assert stream.eps == before.eps
    return before.gain, stream.squares


def dtype_of(w: Matrix, dtype: torch.dtype) -> torch.dtype:
    return w.dtype if isinstance(w, Tensor) else dtype


def add_branch(
    stream: Stream,
    x: Mixed,
    product: Product,
    after: Norm | None,
    dtype: torch.dtype,
    reader: Reader | None = None,
    scale: float = 1.0,
) -> Stream:
    """h + x @ w.T, or (h + norm(x @ w.T)) * scale where a norm follows the branch; h is changed in place.

    reader: who reads the new h; of few rows, and of those of a prompt that come in parts, its own are made there.
    """
    h, eps = stream.h, stream.eps
    reader = reader_for(reader, len(h), product)
    if after is not None:
        y, of_y, is_int8 = branch_product(x, product, after.eps, dtype)
        return add_normed_branch(stream, y, of_y, after, reader if is_int8 else None, scale)
    assert scale == 1
    (w,), (bias,) = product.parts, product.biases
    rows, _ = activations(x, None, w, dtype)
    if reader is None:
        return Stream(h=h, eps=eps, squares=linear_residual(rows, w, h, bias=bias, eps=eps))
    squares, ready = linear_residual_for(rows, w, h, reader, bias=bias, eps=eps)
    return Stream(h=h, eps=eps, squares=squares, ready=ready)


def reader_for(reader: Reader | None, n_rows: int, product: Product) -> Reader | None:
    """Who reads so many rows behind the product of a branch, and how; None where they are made apart."""
    if reader is not None and takes_int8(reader.w, n_rows):
        (w,) = product.parts
        return replace(reader, in_blocks=True) if n_rows <= most_decoded_rows(*w.shape) else None
    return reader if n_rows <= FEW_ROWS else None


def branch_product(x: Mixed, product: Product, eps: float, dtype: torch.dtype) -> tuple[Tensor, Squares, bool]:
    """x @ w.T, float32, and its squares, for a norm behind it; and whether it was multiplied in int8, in fragments."""
    (w,), (bias,) = product.parts, product.biases
    rows, _ = activations(x, None, w, dtype)
    y, squares = linear_squares(rows, w, bias=bias, eps=eps, dtype=torch.float32)
    return y, squares, isinstance(rows, Int8Fragments | Int8Blocks)


def add_normed_branch(
    stream: Stream, y: Tensor, of_y: Squares, after: Norm, reader: Reader | None, scale: float
) -> Stream:
    """(h + norm(y)) * scale; h is changed in place. of_y: the squares of y. reader: see reader_for."""
    h, eps = stream.h, stream.eps
    if reader is None:
        return Stream(h=h, eps=eps, squares=add_normed(h, y, of_y, after.gain, scale))
    sums, made = add_normed_for(h, y, of_y, after.gain, reader, scale)
    return Stream(h=h, eps=eps, squares=Squares(parts=sums, size=h.shape[1], eps=eps), ready=made)


def reader_of(product: Product, before: Norm | None) -> Reader | None:
    """Who reads what a norm, or nothing, stands before; None where it is no single product in fragments."""
    return matrix_reader(product.parts[0], before) if len(product.parts) == 1 else None


def matrix_reader(w: Matrix, before: Norm | None) -> Reader | None:
    if isinstance(w, Tensor) or w.layout != "fragments":
        return None
    return Reader(gain=None if before is None else before.gain, w=w, zero=ZEROS[w.format])


def read_product(reader: MatrixReader, name: str, members: list[str], *, is_paired: bool = False) -> Product:
    """The product of the matrices `members` of a module. is_paired: the first and the second are gate and up."""
    product = reader.product(
        [f"{name}.{member}.weight" for member in members], [f"{name}.{member}.bias" for member in members]
    )
    is_one = len(product.parts) == 1
    return Product(
        parts=tuple(laid_out(w, w.shape[0] // 2 if is_paired and is_one else 0) for w in product.parts),
        biases=product.biases,
    )


def read_gated(reader: MatrixReader, name: str, module: Attention) -> Product:
    """The product of a gated attention: queries, keys, values, and behind them the gates of all heads.

    q_proj has [H, 2, D] rows, of each head the queries and the gates.
    """
    read = [
        reader.product([f"{name}.{member}.weight"], [f"{name}.{member}.bias"])
        for member in ("q_proj", "k_proj", "v_proj")
    ]
    (q,), (q_bias,) = read[0].parts, read[0].biases
    rows = torch.arange(q.shape[0], device=reader.device).view(module.num_heads, 2, module.head_dim)
    queries, gates = (rows[:, i].flatten() for i in range(2))
    joined = join(
        [chosen_rows(q, queries), read[1].parts[0], read[2].parts[0], chosen_rows(q, gates)],
        [
            None if q_bias is None else q_bias[queries],
            read[1].biases[0],
            read[2].biases[0],
            None if q_bias is None else q_bias[gates],
        ],
    )
    return Product(parts=tuple(laid_out(w) for w in joined.parts), biases=joined.biases)


def laid_out(w: Matrix, pair: int = 0) -> Matrix:
    """The same weights, in the layout that the device multiplies fastest."""
    if isinstance(w, Tensor):
        return w
    return best_layout(w, pair)


def read_optional_norm(reader: MatrixReader, module: nn.Module, name: str, leaf: str | None) -> Norm | None:
    """See read_norm; None for None."""
    return None if leaf is None else read_norm(reader, module, name, leaf)


def read_norm(reader: MatrixReader, module: nn.Module, name: str, leaf: str) -> Norm:
    """The norm `leaf` of a module, whose name in the checkpoint is `name`."""
    norm = module.get_submodule(leaf)
    assert isinstance(norm, RmsNorm)
    return Norm(gain=norm.gain_of(reader.vector(f"{name}.{leaf}.weight")), eps=norm.eps)
