"""Products of many rows in blocks, and of some rows 16 at a time, against float64 and against the products of few."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_data import close, packed, random
from torch import Tensor

from runner.kernels import gemm, matmul
from runner.kernels.apply_epilogue import tile_columns
from runner.kernels.fragments import to_fragments
from runner.kernels.gemm import Gemm, block_columns
from runner.kernels.matmul import linear, linear_gated, linear_logits, linear_residual, linear_squares, product
from runner.kernels.pack import dequantize_ref
from runner.kernels.rotate import quantize_rows
from runner.kernels.row_blocks import RowBlocks, row_blocks
from runner.kernels.values import Matrix, Squares


@pytest.fixture(params=["one block", "blocks"])
def in_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Tiles of 32 columns, and one or two of them a block; or everything at once."""
    is_cut = bool(request.param == "blocks")
    if is_cut:
        monkeypatch.setattr("runner.kernels.apply_epilogue._TILE", 32)
        monkeypatch.setattr(gemm, "BLOCK_BYTES", 80 * 64 * 4)
    return is_cut


def exact(x: Tensor, w: Matrix) -> Tensor:
    return x.double() @ (w if isinstance(w, Tensor) else dequantize_ref(w)).double().T


def matrix(kind: str, n: int, k: int, pair: int = 0) -> Matrix:
    if kind == "dense":
        return random(n, k) * 0.3
    form, _, layout = kind.partition(" ")
    return to_fragments(packed(form, n, k), pair) if layout else packed(form, n, k)


KINDS = ("dense", "mq4", "mq4 fragments", "mq6 fragments")


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_multiplied_in_blocks_of_columns(kind: str, in_blocks: bool) -> None:
    w, x, h, bias = matrix(kind, 115, 64), random(21, 64), random(21, 115, seed=3), random(115, seed=4)
    launch = product(x, w)
    assert isinstance(launch, Gemm)
    assert launch.n_tiles == (4 if in_blocks else 1)
    of_x = Squares(parts=random(21, 5, seed=2).square(), size=64, eps=1e-5)
    rstd = (of_x.parts.double().sum(1) / 64 + 1e-5).rsqrt()[:, None]
    y, of_y = linear_squares(x, w, bias=bias, squares=of_x, eps=1e-6, dtype=torch.float32)
    close(y, exact(x, w) * rstd + bias)
    close(of_y.parts.sum(1), y.double().square().sum(1))
    assert torch.equal(linear(x, w, bias=bias, squares=of_x, dtype=torch.float32), y)
    added = h.double() + exact(x, w) + bias
    of_h = linear_residual(x, w, h, bias=bias, eps=1e-5)
    close(h, added)
    close(of_h.parts.sum(1), added.square().sum(1))
    logits = linear_logits(x, w, squares=of_x)
    close(logits.values, exact(x, w) * rstd)
    best = logits.maxima.argmax(1)
    assert torch.equal(logits.arguments.gather(1, best[:, None])[:, 0].long(), logits.values.argmax(1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("in_blocks")
def test_pairs_are_gated_in_blocks_of_columns(kind: str) -> None:
    w, x, bias = matrix(kind, 2 * 75, 64, pair=75), random(18, 64), random(150, seed=6)
    gate, up = (exact(x, w) + bias).chunk(2, 1)
    found = linear_gated(x, w, "silu", bias=bias, dtype=torch.float32)
    close(found, matmul.gate_ref(gate, up, "silu"), 1e-5)


@pytest.mark.parametrize(("width", "n_rows", "k", "is_paired"), [(14336, 512, 4096, True), (128256, 9000, 4096, False)])
def test_a_block_is_whole_tiles_within_the_limit(width: int, n_rows: int, k: int, is_paired: bool) -> None:
    columns = block_columns(width, n_rows, k, 2, is_paired=is_paired)
    rows = columns * (2 if is_paired else 1)
    assert columns % tile_columns(width) == 0
    assert max(rows * k * 2, rows * n_rows * 4) <= gemm.BLOCK_BYTES
    assert block_columns(width, 10**9, k, 2, is_paired=is_paired) == tile_columns(width)


def test_activations_of_another_type_than_dense_weights_are_refused() -> None:
    with pytest.raises(AssertionError):
        linear(random(20, 32), random(8, 32).half(), dtype=torch.float32)


# --- 16 rows at a time -----------------------------------------------------------------------------------------------


def test_some_tens_of_rows_have_the_bits_that_they_have_in_batches_of_16() -> None:
    pair, n_rows = 4, 18
    w = packed("mq4-uniform", 2 * pair, 128)
    x = quantize_rows(random(n_rows, 128), None, 1)
    parts, h = random(n_rows, 3, seed=2).square(), random(n_rows, 2 * pair, seed=3)
    cuts = [slice(first, first + 16) for first in range(0, n_rows, 16)]

    def run(rows: Any, cut: slice) -> list[Tensor]:
        of_x = Squares(parts=parts[cut].contiguous(), size=128, eps=1e-5)
        stream = h[cut].clone()
        after = linear_residual(rows, w, stream, bias=random(2 * pair, seed=5), eps=1e-5)
        return [stream, after.parts, linear_gated(rows, w, "silu", squares=of_x, dtype=torch.float32)]

    assert isinstance(product(x, w, pair=pair), RowBlocks)
    together = run(x, slice(None))
    apart = [run(rows, cut) for rows, cut in zip(row_blocks(x), cuts, strict=True)]
    for i, whole in enumerate(together):
        assert torch.equal(whole, torch.cat([part[i] for part in apart]))
    gate, up = matmul.product_ref(x, w).chunk(2, 1)
    rstd = matmul.rstd_ref(Squares(parts=parts, size=128, eps=1e-5))[:, None]
    close(together[-1], matmul.gate_ref(gate * rstd, up * rstd, "silu"), 1e-5)


def test_a_bias_of_as_many_columns_as_there_are_rows_stays_whole() -> None:
    w, x, bias = packed("mq8", 18, 32), quantize_rows(random(18, 32), None, 1), random(18, seed=4)
    found = linear(x, w, bias=bias, dtype=torch.float32)
    close(found, matmul.product_ref(x, w).double() + bias)
