"""Products of weights in fragments against float64, with every epilogue, and the same bits for a row in every batch."""

from __future__ import annotations

import itertools
from typing import Any

import ptx
import pytest
import torch
from kernel_data import DEVICE, close, packed, random, scrambled
from torch import Tensor

from runner.kernels import epilogues, gemv_tiles, layouts, matmul
from runner.kernels.fragment_products import ZEROS
from runner.kernels.fragments import FORMATS_IN_FRAGMENTS, activation_rows, to_fragments
from runner.kernels.gemm_fragments import GemmFragments
from runner.kernels.gemv_fragments import GemvFragments
from runner.kernels.gemv_tiles import Tiles, tiles_of, tiles_of_branch, tiles_of_normed_branch, tiles_of_parts
from runner.kernels.grids import ADDENDS, half_tables
from runner.kernels.int8_weights import FORMATS_AS_INT8
from runner.kernels.layouts import best_layout
from runner.kernels.matmul import (
    Activation,
    linear,
    linear_gated,
    linear_gated_ref,
    linear_logits,
    linear_ref,
    linear_residual,
    linear_squares,
    product,
)
from runner.kernels.pack import dequantize_ref
from runner.kernels.rotate import quantize_fragments
from runner.kernels.values import Int8Fragments, PackedMatrix, Squares
from runner.quant.mq.formats import MQ4

BATCHES = (1, 2, 3, 8, 9, 16, 17, 35)


def rows_for(w: PackedMatrix, x: Tensor) -> Int8Fragments:
    return quantize_fragments(x, None, 1, ZEROS[w.format])


def exact(x: Int8Fragments, w: PackedMatrix) -> Tensor:
    """x @ w.T in float64."""
    return activation_rows(x).double() @ dequantize_ref(w).double().T


@pytest.mark.parametrize(
    ("form", "n", "n_pairs"),
    [
        ("mq4", 16, 1),
        ("mq4", 24, 2),
        ("mq4-uniform", 19, 3),
        ("mq6", 24, 2),
        ("mq4", 5, 5),
        ("mq4", 16, 14),
        ("mq4-uniform", 16, 18),
    ],
)
def test_a_product_equals_float64_and_a_row_has_its_bits_in_every_batch(form: str, n: int, n_pairs: int) -> None:
    planes, x = scrambled(form, n, 64 * n_pairs), random(max(BATCHES), 64 * n_pairs)
    w = to_fragments(planes)
    whole = linear(rows_for(w, x), w, dtype=torch.float32)
    close(whole, exact(rows_for(w, x), planes))
    for m in BATCHES:
        rows = rows_for(w, x[:m])
        assert isinstance(product(rows, w), GemvFragments)
        assert torch.equal(linear(rows, w, dtype=torch.float32), whole[:m])
    close(linear_ref(rows, w, bias=None, squares=None, dtype=torch.float32), whole)


@pytest.mark.parametrize(
    ("form", "tiles", "n_pairs"),
    [
        ("mq4", Tiles(warps=1), 3),
        ("mq4", Tiles(warps=2, depth=1), 19),
        ("mq4-uniform", Tiles(warps=4, depth=4), 21),
        ("mq4", Tiles(warps=2, depth=3), 40),
        ("mq4-uniform", Tiles(warps=4, depth=3), 53),
        ("mq6", Tiles(warps=1), 5),
        ("mq4", Tiles(warps=1, depth=2), 24),
    ],
)
def test_however_it_is_cut_the_product_is_right(form: str, tiles: Tiles, n_pairs: int) -> None:
    planes = scrambled(form, 29, 64 * n_pairs)  # two tiles, of which the last is not full
    w = to_fragments(planes)
    every = random(19, 64 * n_pairs)
    first = torch.empty(0)
    for m in (1, 3, 19):
        x = rows_for(w, every[:m])
        out = torch.empty(m, 29, device=DEVICE)
        launch = GemvFragments(x=x, w=w, pair=0, tiles=tiles)
        launch.run(epilogues.store, (out, 29, (out, 0.0, 0.0), out), (0, 0, False))
        close(out, exact(x, planes))
        first = out[0] if m == 1 else first
        assert torch.equal(out[0], first)


@pytest.mark.parametrize(
    ("form", "n_pairs", "part"), [("mq4", 1, 8), ("mq4-uniform", 2, 2), ("mq6", 5, 2), ("mq4", 13, 6)]
)
def test_parts_of_the_columns_add_up_to_the_product(form: str, n_pairs: int, part: int) -> None:
    planes, x = scrambled(form, 21, 64 * n_pairs), random(11, 64 * n_pairs)
    w = to_fragments(planes)
    tiles = Tiles(warps=1, part=part)
    whole = GemvFragments(x=rows_for(w, x), w=w, pair=0, tiles=tiles).parts()
    assert whole.shape == (11, -(-n_pairs // part), 21)
    close(whole.sum(1), exact(rows_for(w, x), planes))
    first = activation_rows(rows_for(w, x))[:, : 64 * part].double() @ dequantize_ref(planes)[:, : 64 * part].double().T
    close(whole[:, 0], first)
    for m in (1, 3, 8):
        assert torch.equal(GemvFragments(x=rows_for(w, x[:m]), w=w, pair=0, tiles=tiles).parts(), whole[:m])


# --- epilogues -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 3, 19])
def test_a_norm_and_a_bias_are_applied_in_the_epilogue(m: int) -> None:
    planes, bias = packed("mq4", 21, 128), random(21, seed=5)
    w = to_fragments(planes)
    x = rows_for(w, random(m, 128))
    squares = Squares(parts=random(m, 3, seed=2).square(), size=128, eps=1e-5)
    rstd = (squares.parts.double().sum(1) / 128 + 1e-5).rsqrt()
    found = linear(x, w, bias=bias, squares=squares, dtype=torch.float32)
    close(found, exact(x, planes) * rstd[:, None] + bias)
    y, of_y = linear_squares(x, w, bias=bias, squares=squares, eps=1e-6, dtype=torch.float32)
    assert torch.equal(y, found)
    close(of_y.parts.sum(1), y.double().square().sum(1))


@pytest.mark.parametrize(("form", "m"), [("mq4", 2), ("mq4-uniform", 20), ("mq6", 1)])
def test_a_residual_is_added_in_place_and_its_squares_are_summed(form: str, m: int) -> None:
    planes, h, bias = packed(form, 37, 64), random(m, 37, seed=3), random(37, seed=4)
    w = to_fragments(planes)
    x = rows_for(w, random(m, 64))
    wanted = h.double() + exact(x, planes) + bias
    squares = linear_residual(x, w, h, bias=bias, eps=1e-5)
    close(h, wanted)
    close(squares.parts.sum(1), wanted.square().sum(1))


@pytest.mark.parametrize(
    ("form", "activation", "m", "pair"),
    [
        ("mq4", "silu", 1, 8),
        ("mq4", "gelu_tanh", 5, 27),
        ("mq4-uniform", "clamped_swiglu", 3, 8),
        ("mq6", "silu", 18, 16),
    ],
)
def test_pairs_of_rows_are_gated(form: str, activation: Activation, m: int, pair: int) -> None:
    planes, bias = packed(form, 2 * pair, 128), random(2 * pair, seed=6)
    w = to_fragments(planes, pair)
    x = rows_for(w, random(m, 128))
    squares = Squares(parts=random(m, 5, seed=2).square() * 20, size=128, eps=1e-5)
    found = linear_gated(x, w, activation, bias=bias, squares=squares, dtype=torch.float32)
    wide = Squares(parts=squares.parts.double(), size=128, eps=1e-5)
    gate, up = (exact(x, planes) * matmul.rstd_ref(wide)[:, None] + bias).chunk(2, 1)
    close(found, matmul.gate_ref(gate, up, activation), 1e-5)
    close(linear_gated_ref(x, w, activation, bias=bias, squares=squares, dtype=torch.float32), found.double(), 1e-5)


@pytest.mark.parametrize(("form", "cap"), [("mq4", None), ("mq6", None), ("mq6", 2.0)])
def test_logits_come_with_what_their_tiles_hold(form: str, cap: float | None) -> None:
    planes = packed(form, 45, 64)
    w = to_fragments(planes)
    for m in (1, 4, 17):
        x = rows_for(w, random(m, 64))
        found = linear_logits(x, w, squares=None, cap=cap)
        wanted = exact(x, planes)
        wanted = wanted if cap is None else cap * torch.tanh(wanted / cap)
        close(found.values, wanted)
        close(found.log_sum_exp(), torch.logsumexp(wanted, 1), 1e-5)
        best = found.maxima.argmax(1)
        assert torch.equal(found.arguments.gather(1, best[:, None])[:, 0].long(), found.values.argmax(1))


@pytest.mark.parametrize("form", ["mq4", "mq6"])
def test_a_row_has_the_same_bits_after_every_epilogue_in_every_batch(form: str) -> None:
    w, gated = (to_fragments(scrambled(form, 22, 320), pair) for pair in (0, 11))
    x, parts, h = random(35, 320), random(35, 40, seed=2).square(), random(35, 22, seed=8)

    def run(first: int, last: int) -> list[Tensor]:
        rows = rows_for(w, x[first:last])
        squares = Squares(parts=parts[first:last].contiguous(), size=320, eps=1e-5)
        stream = h[first:last].clone()
        after = linear_residual(rows, w, stream, eps=1e-5)
        logits = linear_logits(rows, w, squares=squares)
        paired = linear_gated(rows, gated, "silu", squares=squares, dtype=torch.float32)
        capped = linear_logits(rows, w, squares=squares, cap=2.0)
        of_tiles = [capped.values, capped.maxima, capped.sums]
        return [stream, after.parts, logits.values, logits.maxima, logits.sums, paired, *of_tiles]

    together = run(0, 35)
    for first, last in ((0, 1), (34, 35), (0, 3), (2, 11)):
        for some, whole in zip(run(first, last), together, strict=True):
            assert torch.equal(some, whole[first:last])


def test_a_row_of_nan_stays_alone() -> None:
    planes, x = packed("mq4", 16, 128), random(9, 128)
    w = to_fragments(planes)
    clean = linear(rows_for(w, x), w, dtype=torch.float32)
    x[4, 70] = float("nan")
    found = linear(rows_for(w, x), w, dtype=torch.float32)
    others = [m for m in range(9) if m != 4]
    assert torch.equal(found[others], clean[others])
    assert bool(found[4].isnan().all())


def test_activations_for_other_weights_are_refused() -> None:
    w = to_fragments(packed("mq4-uniform", 16, 64))
    with pytest.raises(AssertionError):
        linear(quantize_fragments(random(1, 64), None, 1, ZEROS["mq6"]), w, dtype=torch.float32)
    with pytest.raises(AssertionError):
        linear(rows_for(w, random(1, 128)), w, dtype=torch.float32)
    with pytest.raises(AssertionError):
        linear(rows_for(w, random(1, 64)), packed("mq4-uniform", 16, 64), dtype=torch.float32)
    with pytest.raises(AssertionError):
        linear_gated(rows_for(w, random(1, 64)), w, "silu", dtype=torch.float32)  # its rows are in no pairs
    with pytest.raises(AssertionError):
        linear(rows_for(w, random(65, 64)), w, dtype=torch.float32)


# --- how it is cut ---------------------------------------------------------------------------------------------------


def test_every_matrix_is_cut_into_programs_of_busy_warps() -> None:
    for n_tiles, n_pairs in itertools.product(
        [1, 3, 256, 320, 767, 768, 769, 1792, 2176, 8016], [1, 2, 3, 12, 40, 64, 224]
    ):
        whole, part = tiles_of(n_tiles, n_pairs), tiles_of_parts(n_tiles, n_pairs)
        before_norm = tiles_of_normed_branch(n_tiles, n_pairs)
        for tiles in (whole, before_norm, part):
            assert tiles.warps & (tiles.warps - 1) == 0
            assert 4 * (tiles.warps // 2) < n_pairs  # most have something to do
            assert tiles.depth >= 1
        assert part.part >= 4 > whole.part == before_norm.part == 0


def test_gate_and_up_are_cut_as_was_measured_to_be_fastest() -> None:
    """Llama-3.1-8B, Qwen3-8B, Qwen3-14B, Qwen3-4B, Llama-3.2-3B, Qwen3-1.7B, Qwen2.5-0.5B; the output product.

    And q, k and v of Llama-3.3-70B, whose tiles would be more than a wave of four warps each.
    """
    sizes = ((1792, 64), (1536, 64), (2176, 80), (1216, 40), (1024, 48), (768, 32), (608, 14), (8016, 64), (640, 128))
    assert [tiles_of(*size).warps for size in sizes] == [2, 2, 2, 2, 2, 2, 2, 1, 2]
    assert [tiles_of(*size).depth for size in sizes] == [1, 1, 2, 3, 2, 2, 2, 2, 2]


def test_small_matrices_have_a_warp_for_each_256_columns() -> None:
    """q, k and v of Qwen3-0.6B, Qwen2.5-0.5B, Gemma-3-1B and Llama-3.2-1B; down of Qwen3-0.6B."""
    for size, warps, depth in (
        ((256, 16), 4, 1),
        ((72, 14), 4, 1),
        ((96, 18), 8, 1),
        ((192, 32), 8, 1),
        ((64, 48), 8, 2),
    ):
        for tiles in (tiles_of(*size), tiles_of_branch(*size)):
            assert (tiles.warps, tiles.depth, tiles.part, tiles.turns) == (warps, depth, 0, 1)


def test_branches_are_summed_whole_where_that_is_one_wave_or_the_matrix_is_small() -> None:
    sizes = ((128, 96), (160, 152), (256, 64), (256, 224), (320, 272), (64, 48), (64, 32), (2, 1))
    assert [tiles_of_branch(*size).part for size in sizes] == [0] * 8
    assert [tiles_of_branch(*size).warps for size in sizes] == [8, 8, 8, 8, 4, 8, 8, 1]
    assert [tiles_of_branch(*size).depth for size in ((128, 172), (256, 224), (320, 272))] == [3, 4, 3]
    assert tiles_of_branch(96, 140).part > 0
    assert tiles_of_branch(640, 448).part > 0


def test_products_before_a_norm_are_cut_as_was_measured_to_be_fastest() -> None:
    """o and down of Gemma-3-4B."""
    o, down = tiles_of_normed_branch(160, 32), tiles_of_normed_branch(160, 160)
    assert [(tiles.warps, tiles.depth, tiles.turns) for tiles in (o, down)] == [(4, 2, 1), (8, 3, 4)]


def test_parts_are_so_long_that_all_programs_run_at_once() -> None:
    for n_tiles, n_pairs in itertools.product([64, 256, 320], [16, 48, 64, 224]):
        assert n_tiles * -(-n_pairs // tiles_of_parts(n_tiles, n_pairs).part) <= gemv_tiles._AT_ONCE


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMATS_IN_FRAGMENTS)
@pytest.mark.parametrize(
    ("n", "k"), [(4096, 2048), (5120, 3072), (12288, 2048), (19456, 2560), (28672, 4096), (34816, 5120)]
)
def test_products_of_real_models(form: str, n: int, k: int) -> None:
    """q, k and v of Qwen3-1.7B and Llama-3.2-3B; gate and up of Qwen3-1.7B and 4B, of Llama-3.1-8B and Qwen3-14B."""
    w, x, first = to_fragments(scrambled(form, n, k)), random(16, k), torch.empty(0)
    for m in (1, 2, 8, 16):
        rows = rows_for(w, x[:m])
        y = linear(rows, w, dtype=torch.float32)
        close(y, exact(rows, w), 5e-6)
        first = y[0] if m == 1 else first
        assert torch.equal(y[0], first)


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMATS_IN_FRAGMENTS)
@pytest.mark.parametrize(
    ("n", "k"), [(2048, 6144), (2560, 4096), (2560, 9728), (3072, 8192), (5120, 17408), (1536, 8960)]
)
def test_branches_of_real_models(form: str, n: int, k: int) -> None:
    """o and down of Qwen3-1.7B to 14B and Llama-3.2-3B; the last are summed in parts."""
    w, x, h = to_fragments(scrambled(form, n, k)), random(16, k), random(16, n, seed=2)
    first = torch.empty(0)
    for m in (1, 2, 8, 16):
        rows, y = rows_for(w, x[:m]), h[:m].clone()
        parts = GemvFragments(x=rows, w=w, pair=0).add_to(y, None)
        assert (parts is None) == (n > 1536)
        close(y if parts is None else y + parts.sum(1), exact(rows, w) + h[:m].double(), 5e-6)
        found = (y if parts is None else parts)[0]
        first = found if m == 1 else first
        assert torch.equal(found, first)


# --- what only NVIDIA computes ---------------------------------------------------------------------------------------


def test_two_addends_of_a_nibble_make_its_level() -> None:
    halves = half_tables(DEVICE)[:, 0].tolist()
    for word in torch.randint(0, 2**32, (300,), generator=torch.Generator().manual_seed(1)).tolist():
        found = ptx.run(ADDENDS.value, [word, *halves], 4)
        signed = [[(part >> 8 * i & 255 ^ 128) - 128 for i in range(4)] for part in found]
        for half in (0, 1):
            levels = [MQ4.levels[word >> 16 * half + 4 * i & 15] for i in range(4)]
            assert [a + b for a, b in zip(signed[half], signed[2 + half], strict=True)] == levels


# --- which layout ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS_IN_FRAGMENTS)
def test_what_does_not_give_the_right_product_is_not_used(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    works = layouts.try_products
    assert works(form, DEVICE)
    run = GemvFragments.run

    def wrong_in_one_lane(self: GemvFragments, program: Any, args: Any, config: Any) -> None:
        run(self, program, args, config)
        args[0][:, 17] += 1.0 + args[0][:, 17].abs()

    def other_bits_for_one_row(self: GemvFragments, program: Any, args: Any, config: Any) -> None:
        run(self, program, args, config)
        if self.num_rows == 1:
            args[0][:] = args[0].nextafter(torch.tensor(torch.inf, device=DEVICE))

    for wrong in (wrong_in_one_lane, other_bits_for_one_row):
        monkeypatch.setattr(GemvFragments, "run", wrong)
        assert not works(form, DEVICE)
    monkeypatch.setattr(GemvFragments, "run", run)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert not works(form, DEVICE)


@pytest.mark.parametrize("form", FORMATS_AS_INT8)
def test_nor_is_what_gives_a_wrong_product_in_int8(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(layouts, "takes_int8", lambda *_: True)
    assert layouts.try_products(form, DEVICE)
    run = GemmFragments.run

    def wrong_in_one_lane(self: GemmFragments, program: Any, args: Any, config: Any) -> None:
        run(self, program, args, config)
        args[0][:, 17] += 1.0 + args[0][:, 17].abs()

    monkeypatch.setattr(GemmFragments, "run", wrong_in_one_lane)
    assert not layouts.try_products(form, DEVICE)
    monkeypatch.setattr(layouts, "takes_int8", lambda *_: False)
    assert layouts.try_products(form, DEVICE)


def test_a_matrix_is_laid_out_where_the_kernel_works_and_left_where_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = packed("mq4", 32, 64)
    monkeypatch.setattr(layouts, "is_nvidia", lambda _: False)
    monkeypatch.setattr(layouts, "_works", lambda *_: True)
    assert best_layout(w) is w
    monkeypatch.setattr(layouts, "is_nvidia", lambda _: True)
    assert (best_layout(w).layout, best_layout(w, 16).pair) == ("fragments", 16)
    assert best_layout(packed("mq8", 32, 64)).layout == "planes"
    monkeypatch.setattr(layouts, "_works", lambda *_: False)
    assert best_layout(w) is w
