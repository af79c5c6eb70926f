"""Products that round their row themselves: the bits that the row has among others, and float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_data import DEVICE, close, random, scrambled
from torch import Tensor

from runner.kernels import epilogues, gemv_spans, gemv_tiles
from runner.kernels.add_parts import Reader, add_parts
from runner.kernels.fragment_products import ZEROS
from runner.kernels.fragments import activation_rows, to_fragments
from runner.kernels.gemv_spans import GemvSpans, rounds
from runner.kernels.gemv_tiles import spans_of, tiles_of, tiles_of_branch
from runner.kernels.matmul import linear, linear_gated, linear_residual_for, product
from runner.kernels.pack import dequantize_ref
from runner.kernels.rotate import quantize_fragments
from runner.kernels.values import PackedMatrix, Squares, UnroundedRow

EPS = 1e-5


def several(h: Tensor, gain: Tensor, w: PackedMatrix) -> tuple[Any, Squares]:
    """The rows of a stream as the products of several of them take them."""
    sums, rows = add_parts(h, None, None, Reader(gain=gain, w=w, zero=ZEROS[w.format]))
    return rows, Squares(parts=sums, size=h.shape[1], eps=EPS)


@pytest.mark.parametrize(
    ("form", "n", "k", "rotation"),
    [
        ("mq4", 40, 256, 256), ("mq4-uniform", 19, 512, 64), ("mq6", 24, 1024, 256), ("mq4", 16, 2048, 1),
        ("mq4", 16, 512, 2),
        # The last span is not whole, or some warps have none: Qwen2.5-0.5B, Gemma-3-1B, and less than a span.
        ("mq4", 40, 896, 128), ("mq4", 16, 1152, 128), ("mq4-uniform", 16, 320, 64), ("mq6", 24, 64, 64),
    ],
)  # fmt: skip
def test_a_row_has_the_bits_that_it_has_among_others(form: str, n: int, k: int, rotation: int) -> None:
    planes, h, gain = scrambled(form, n, k, rotation), random(3, k), random(k, seed=3)
    w = to_fragments(planes)
    rows, squares = several(h, gain, w)
    found = linear(UnroundedRow(x=h[:1], gain=gain, eps=EPS), w, dtype=torch.float32)
    assert torch.equal(found[0], linear(rows, w, squares=squares, dtype=torch.float32)[0])
    rstd = (h.double().square().mean(1) + EPS).rsqrt()[:, None]
    close(found, (activation_rows(rows).double() @ dequantize_ref(planes).double().T * rstd)[:1])


@pytest.mark.parametrize("tiles", [1, 2, 4, 9, 17])
def test_a_program_goes_over_any_number_of_tiles(tiles: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight tiles' sums lie in one tensor, three tiles are under way, and the last program has fewer."""
    monkeypatch.setattr(gemv_tiles, "MULTIPROCESSORS", -(-19 // tiles))
    planes, h = scrambled("mq4", 16 * 19 - 3, 256), random(2, 256)
    w = to_fragments(planes)
    rows = quantize_fragments(h, None, 1, ZEROS["mq4"])
    found = linear(UnroundedRow(x=h[:1]), w, dtype=torch.float32)
    assert torch.equal(found[0], linear(rows, w, dtype=torch.float32)[0])


def test_gate_and_up_come_in_pairs() -> None:
    planes, h, gain = scrambled("mq4", 2 * 75, 512, rotation=256), random(2, 512), random(512, seed=3)
    w = to_fragments(planes, 75)
    rows, squares = several(h, gain, w)
    bias = random(150, seed=4)
    found = linear_gated(
        UnroundedRow(x=h[:1], gain=gain, eps=EPS), w, "gelu_tanh", bias=bias, squares=None, dtype=torch.float32
    )
    wanted = linear_gated(rows, w, "gelu_tanh", bias=bias, squares=squares, dtype=torch.float32)
    assert torch.equal(found[0], wanted[0])


@pytest.mark.parametrize("is_rounding", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_branch_is_added_to_the_stream_and_left_as_its_reader_wants_it(is_rounding: bool, has_bias: bool) -> None:
    w, reader = to_fragments(scrambled("mq4", 256, 512, 256)), to_fragments(scrambled("mq4-uniform", 32, 256, 256))
    x, h, bias = random(2, 512), random(2, 256), random(256, seed=5) if has_bias else None
    by = Reader(gain=random(256, seed=6), w=reader, zero=ZEROS["mq4-uniform"], rounds=is_rounding)
    several_h, one_h = h.clone(), h[:1].clone()
    rows = quantize_fragments(x, None, 256, ZEROS["mq4"])
    squares, ready = linear_residual_for(rows, w, several_h, by, bias=bias, eps=EPS)
    of_one, ready_of_one = linear_residual_for(UnroundedRow(x=x[:1]), w, one_h, by, bias=bias, eps=EPS)
    assert torch.equal(one_h[0], several_h[0])
    close(several_h, h + activation_rows(rows) @ dequantize_ref(w).T + (0 if bias is None else bias), 1e-5)
    assert squares is not None
    assert ready is not None
    assert (of_one is None) == (ready_of_one is None) == is_rounding
    if of_one is not None and ready_of_one is not None:
        assert torch.equal(of_one.parts[0], squares.parts[0])
        assert torch.equal(activation_rows(ready_of_one)[0], activation_rows(ready)[0])


def test_what_leaves_partial_results_of_tiles_takes_no_row_as_it_is() -> None:
    w, out = to_fragments(scrambled("mq4", 16, 256)), torch.empty(1, 16, device=DEVICE)
    launch = product(UnroundedRow(x=random(1, 256)), w)
    assert isinstance(launch, GemvSpans)
    with pytest.raises(AssertionError):
        launch.run(epilogues.add_residual, (out, 16, (out, 0.0, 0.0), out, out, 1), (0, 0, False))


def test_small_matrices_of_few_spans_are_multiplied_so() -> None:
    assert [spans_of(*size) for size in ((256, 16), (384, 16), (64, 32))] == [4, 4, 8]  # Qwen3-0.6B
    assert [spans_of(*size) for size in ((72, 14), (96, 18), (3, 1))] == [4, 8, 1]  # Qwen2.5-0.5B, Gemma-3-1B
    assert [spans_of(*size) for size in ((64, 48), (384, 64), (9496, 16), (64, 33))] == [0, 0, 0, 0]
    for n_tiles, n_pairs in ((256, 16), (64, 32), (72, 14), (96, 18), (3, 4)):
        assert tiles_of(n_tiles, n_pairs).warps == spans_of(n_tiles, n_pairs)
        assert tiles_of_branch(n_tiles, n_pairs).warps == spans_of(n_tiles, n_pairs)
    assert not rounds(scrambled("mq4", 16, 256))
    assert rounds(to_fragments(scrambled("mq4", 16, 256)))


def test_branches_are_summed_whole_where_that_is_one_wave_or_the_matrix_is_small() -> None:
    sizes = ((128, 96), (160, 152), (256, 64), (256, 224), (320, 272), (64, 48), (64, 32), (2, 1))
    assert [tiles_of_branch(*size).part for size in sizes] == [0] * 8
    assert [tiles_of_branch(*size).warps for size in sizes] == [8, 8, 8, 8, 4, 8, 8, 1]
    assert tiles_of_branch(96, 140).part > 0
    assert tiles_of_branch(640, 448).part > 0


def test_where_a_row_would_have_other_bits_it_is_rounded_before_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    w = to_fragments(scrambled("mq4", 16, 256))
    monkeypatch.setattr(gemv_spans, "is_nvidia", lambda _: True)
    monkeypatch.setattr(gemv_spans, "_agrees", lambda *_: True)
    assert rounds(w)
    monkeypatch.setattr(gemv_spans, "_agrees", lambda *_: False)
    assert not rounds(w)


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["mq4", "mq4-uniform", "mq6"])
def test_a_device_gives_a_row_the_same_bits(form: str) -> None:
    assert gemv_spans._agrees(form, DEVICE)
