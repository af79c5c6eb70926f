"""The products against float64, with every epilogue, odd shapes, and the same bits for a row in every batch."""

from __future__ import annotations

import pytest
import torch
from kernel_data import DEVICE, close, packed, random
from torch import Tensor

from runner.kernels import matmul
from runner.kernels.grids import FORMATS
from runner.kernels.matmul import (
    Activation,
    Rows,
    dense_rows,
    linear,
    linear_gated,
    linear_gated_by,
    linear_gated_by_ref,
    linear_gated_ref,
    linear_logits,
    linear_ref,
    linear_residual,
    linear_squares,
)
from runner.kernels.pack import concatenate, dequantize_ref, packed_matrix
from runner.kernels.rotate import quantize_rows, rotate_rows
from runner.kernels.values import Int8Rows, Matrix, PackedMatrix, Squares

KINDS = ("dense", *FORMATS)


def matrix(kind: str, n: int, k: int, seed: int = 0) -> Matrix:
    return random(n, k, seed=seed) * 0.3 if kind == "dense" else packed(kind, n, k, seed=seed)


def rows_for(w: Matrix, x: Tensor) -> Rows:
    x = x.to(DEVICE)
    if isinstance(w, Tensor):
        return x
    return quantize_rows(x, None, 1) if len(x) <= 16 else rotate_rows(x, None, 1, torch.float32)


def exact(x: Rows, w: Matrix) -> Tensor:
    """x @ w.T in float64."""
    weights = w if isinstance(w, Tensor) else dequantize_ref(w)
    return dense_rows(x).double() @ weights.double().T


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 24, 64), (3, 13, 96), (16, 8, 1056), (70, 33, 544)])
def test_a_product_equals_float64(kind: str, m: int, n: int, k: int) -> None:
    w = matrix(kind, n, k)
    x = rows_for(w, random(m, k))
    tolerance = 2e-6
    close(linear(x, w, dtype=torch.float32), exact(x, w), tolerance)
    close(linear_ref(x, w, bias=None, squares=None, dtype=torch.float32), exact(x, w), tolerance)


@pytest.mark.parametrize("k", [1, 45, 300])
def test_dense_weights_have_any_width(k: int) -> None:
    w = matrix("dense", 19, k)
    for m in (2, 21):
        x = random(m, k)
        close(linear(x, w, dtype=torch.float32), exact(x, w))


@pytest.mark.parametrize("kind", ["dense", "mq4"])
@pytest.mark.parametrize("m", [2, 19])
def test_a_norm_and_a_bias_are_applied_in_the_epilogue(kind: str, m: int) -> None:
    w, bias = matrix(kind, 21, 64), random(21, seed=5)
    x = rows_for(w, random(m, 64))
    squares = Squares(parts=random(m, 3, seed=2).square(), size=64, eps=1e-5)
    found = linear(x, w, bias=bias, squares=squares, dtype=torch.float32)
    rstd = (squares.parts.double().sum(1) / 64 + 1e-5).rsqrt()
    close(found, exact(x, w) * rstd[:, None] + bias)
    y, of_y = linear_squares(x, w, bias=bias, squares=squares, eps=1e-6, dtype=torch.float32)
    close(y, found)
    close(of_y.parts.sum(1), y.double().square().sum(1))
    assert (of_y.size, of_y.eps) == (21, 1e-6)


@pytest.mark.parametrize("kind", ["dense", "mq4", "mq6"])
@pytest.mark.parametrize("m", [1, 5, 20])
def test_a_residual_is_added_in_place_and_its_squares_are_summed(kind: str, m: int) -> None:
    w, h, bias = matrix(kind, 37, 64), random(m, 37, seed=3), random(37, seed=4)
    x = rows_for(w, random(m, 64))
    wanted = h.double() + exact(x, w) + bias
    squares = linear_residual(x, w, h, bias=bias, eps=1e-5)
    close(h, wanted)
    close(squares.parts.sum(1), wanted.square().sum(1))


@pytest.mark.parametrize("kind", ["dense", "mq4", "mq4-uniform"])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "clamped_swiglu"])
@pytest.mark.parametrize("m", [1, 3, 18])
def test_pairs_of_rows_are_gated(kind: str, activation: Activation, m: int) -> None:
    w, bias = matrix(kind, 2 * 27, 96), random(2 * 27, seed=6)
    x = rows_for(w, random(m, 96))
    squares = Squares(parts=random(m, 5, seed=2).square() * 20, size=96, eps=1e-5)
    found = linear_gated(x, w, activation, bias=bias, squares=squares, dtype=torch.float32)
    wide = Squares(parts=squares.parts.double(), size=96, eps=1e-5)
    gate, up = (exact(x, w) * matmul.rstd_ref(wide)[:, None] + bias).chunk(2, 1)
    close(found, matmul.gate_ref(gate, up, activation), 1e-5)
    close(linear_gated_ref(x, w, activation, bias=bias, squares=squares, dtype=torch.float32), found.double(), 1e-5)


@pytest.mark.parametrize("kind", ["dense", "mq6"])
@pytest.mark.parametrize("m", [1, 4, 18])
def test_a_product_is_gated_by_rows_that_lie_apart(kind: str, m: int) -> None:
    w, by = matrix(kind, 37, 96), random(m, 3 * 37, seed=6)[:, 37:74]
    x = rows_for(w, random(m, 96))
    found = linear_gated_by(x, w, by, "gelu_tanh", dtype=torch.float32)
    close(found, matmul.gate_ref(exact(x, w), by.double(), "gelu_tanh"), 1e-5)
    close(linear_gated_by_ref(x, w, by, "gelu_tanh", dtype=torch.float32), found.double(), 1e-5)


@pytest.mark.parametrize("kind", ["dense", "mq6"])
@pytest.mark.parametrize(("m", "cap"), [(1, None), (4, None), (17, None), (1, 3.0), (17, 3.0)])
def test_logits_come_with_what_their_tiles_hold(kind: str, m: int, cap: float | None) -> None:
    w = matrix(kind, 101, 64)
    x = rows_for(w, random(m, 64))
    squares = Squares(parts=random(m, 1, seed=2).square() + 1, size=1, eps=0.0)
    found = linear_logits(x, w, squares=squares, cap=cap)
    wanted = exact(x, w) * (squares.parts.double() ** -0.5)
    assert wanted.abs().max() > 3.0
    wanted = wanted if cap is None else cap * torch.tanh(wanted / cap)
    close(found.values, wanted)
    close(found.log_sum_exp(), torch.logsumexp(wanted, 1), 1e-5)
    best = found.maxima.argmax(1)
    assert torch.equal(found.arguments.gather(1, best[:, None])[:, 0].long(), found.values.argmax(1))


def test_the_first_of_equal_logits_is_the_argument_and_a_nan_is_seen() -> None:
    w = torch.ones(40, 32, device=DEVICE)
    w[17] = float("nan")
    found = linear_logits(torch.ones(1, 32, device=DEVICE), w, squares=None)
    is_nan = found.maxima[0].isnan()
    assert int(is_nan.sum()) == 1
    tile = 40 // len(found.maxima[0])
    assert torch.equal(found.arguments[0][~is_nan], torch.arange(0, 40, tile, device=DEVICE)[~is_nan].int())


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_in_every_batch_of_up_to_16(kind: str) -> None:
    w = matrix(kind, 10, 1088)
    x = rows_for(w, random(16, 1088))
    parts = random(16, 40, seed=2).square()

    def run(first: int, last: int) -> list[Tensor]:
        part = x[first:last].contiguous() if isinstance(x, Tensor) else _cut(x, first, last)
        squares = Squares(parts=parts[first:last].contiguous(), size=64, eps=1e-5)
        h = random(16, 10, seed=8)[first:last].contiguous()
        after = linear_residual(part, w, h, eps=1e-5)
        logits = linear_logits(part, w, squares=squares)
        gated = linear_gated(part, w, "silu", squares=squares, dtype=torch.float32)
        return [h, after.parts, logits.values, logits.maxima, logits.sums, gated]

    alone = {m: run(m, m + 1) for m in (range(16) if DEVICE.type == "cuda" else (0, 1, 4, 15))}
    for n_rows in range(2, 17) if DEVICE.type == "cuda" else (2, 5, 16):
        together = run(0, n_rows)
        for m in alone.keys() & set(range(n_rows)):
            for single, batch in zip(alone[m], together, strict=True):
                assert torch.equal(single[0], batch[m])


def _cut(x: Int8Rows, first: int, last: int) -> Int8Rows:
    return Int8Rows(words=x.words[first:last].contiguous(), scale=x.scale[first:last].contiguous())


def test_matrices_of_different_exponents_are_one_product() -> None:
    parts = [matrix("mq4", 9, 64, seed=seed) for seed in range(3)]
    assert all(isinstance(part, PackedMatrix) for part in parts)
    parts[1] = packed_matrix(FORMATS["mq4"].encode(torch.randn(9, 64) * 1e4), FORMATS["mq4"], 1, DEVICE)
    whole = concatenate(parts)  # type: ignore[arg-type]
    x = quantize_rows(random(2, 64), None, 1)
    wanted = torch.cat([linear(x, part, dtype=torch.float32) for part in parts], 1)
    assert torch.equal(linear(x, whole, dtype=torch.float32), wanted)
