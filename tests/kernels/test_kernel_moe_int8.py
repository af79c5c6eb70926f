"""Products of many rows with experts in int8, against float64; and rows sorted by expert."""

from __future__ import annotations

import pytest
import torch
from kernel_data import close, packed, random, scrambled
from test_kernel_moe import of_pairs, routed
from torch import Tensor

from runner.kernels import moe_int8
from runner.kernels.fragments import to_fragments
from runner.kernels.int8_weights import FORMATS_AS_INT8, int8_weights_ref
from runner.kernels.matmul import Activation, gate_ref
from runner.kernels.moe_int8 import Int8OfExperts, multiplies_in_int8, sorted_rows, takes_pairs_in_int8, try_int8
from runner.kernels.moe_matmul import Dispatch, moe_linear, moe_linear_gated, moe_linear_residual
from runner.kernels.rotate import quantize_blocks
from runner.kernels.values import PackedMatrix, Squares

# M, E, k, N, K: blocks of 32, 64 and 128 pairs, some of which are not full, and experts that nobody takes; fewer rows
# of weights than a program takes at once and more; several blocks of columns, and last ones that are not full.
SHAPES = ((17, 3, 2, 32, 64), (66, 4, 2, 96, 320), (70, 2, 1, 160, 704), (197, 2, 1, 32, 256), (140, 2, 2, 64, 64))


def exact(rows: Tensor, w: PackedMatrix, to: Dispatch) -> Tensor:
    """[P, N] of pairs' rows [P, K] in float64, by the weights as int8. w: in planes."""
    levels, steps = int8_weights_ref(w)
    dense = (levels.double() * steps.double()[:, None]).view(to.num_experts, -1, rows.shape[1])
    return torch.einsum("pk,pnk->pn", rows.double(), dense[to.experts.flatten().long()])


@pytest.mark.parametrize("form", FORMATS_AS_INT8)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_of_pairs_equal_float64(form: str, shape: tuple[int, ...]) -> None:
    m, e, k, n, length = shape
    planes, to = scrambled(form, e * n, length), routed(m, e, k)
    x = quantize_blocks(random(m, length), None, 1)
    close(moe_linear(x, to_fragments(planes), to, dtype=torch.float32), exact(of_pairs(x, to), planes, to), 1e-5)


@pytest.mark.parametrize("activation", ["silu", "clamped_swiglu"])
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_pairs_are_gated_and_added_to_the_stream(activation: Activation, shape: tuple[int, ...]) -> None:
    m, e, k, n, length = shape
    planes, to, bias, h = packed("mq4", e * n, length), routed(m, e, k), random(e, n, seed=5), random(m, n, seed=3)
    w, x = to_fragments(planes), quantize_blocks(random(m, length), None, 1)
    squares = Squares(parts=random(m, 5, seed=2).square() * 20, size=96, eps=1e-5)
    of_expert = bias[to.experts.flatten().long()]
    rstd = (squares.parts.double().sum(1) / 96 + 1e-5).rsqrt().repeat_interleave(k)[:, None]
    gate, up = (exact(of_pairs(x, to), planes, to) * rstd + of_expert).chunk(2, 1)
    found = moe_linear_gated(x, w, to, activation, bias=bias, squares=squares, dtype=torch.float32)
    close(found, gate_ref(gate, up, activation), 1e-5)
    y = quantize_blocks(random(m * k, length, seed=7), None, 1)
    added = (exact(y.values(), planes, to) + of_expert).view(m, k, n) * to.weights.double()[:, :, None]
    wanted = h.double() + added.sum(1)
    moe_linear_residual(y, w, to, h, bias=bias, eps=1e-5)
    close(h, wanted, 1e-5)


def test_a_row_has_the_same_bits_whoever_else_takes_its_experts() -> None:
    m, e, k, n, length = 66, 4, 2, 32, 320
    w, rows, to = to_fragments(packed("mq4", e * n, length)), random(m, length), routed(m, e, k)
    whole = moe_linear(quantize_blocks(rows, None, 1), w, to, dtype=torch.float32).view(m, k, n)
    order = torch.arange(m - 1, -1, -1)
    other = Dispatch(
        weights=to.weights[order].contiguous(),
        experts=to.experts[order].contiguous(),
        num_experts=e,
        groups=moe_int8.group_pairs(to.experts[order].contiguous(), e),
    )
    found = moe_linear(quantize_blocks(rows[order].contiguous(), None, 1), w, other, dtype=torch.float32)
    assert torch.equal(found.view(m, k, n), whole[order])


@pytest.mark.parametrize("is_of_pairs", [False, True])
def test_rows_are_sorted_by_expert(is_of_pairs: bool) -> None:
    m, e, k, length = 33, 4, 2, 320
    to = routed(m, e, k)
    assert to.groups is not None
    x = quantize_blocks(random(m * k if is_of_pairs else m, length), None, 1)
    found = sorted_rows(x, to.groups)
    rows = to.groups.order.long() // (1 if is_of_pairs else k)
    assert torch.equal(found.values(), x.values()[rows])
    assert len(found.levels) >= m * k + 128  # a block may begin at the last of them


def test_int8_is_for_four_bits_on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    w, planes, six = to_fragments(packed("mq4", 128, 64)), packed("mq4", 128, 64), to_fragments(packed("mq6", 128, 64))
    monkeypatch.setattr(moe_int8, "is_hopper", lambda _: False)
    assert not multiplies_in_int8(w)
    monkeypatch.setattr(moe_int8, "is_hopper", lambda _: True)
    assert multiplies_in_int8(w)
    assert not any(map(multiplies_in_int8, (planes, six, random(128, 64))))


@pytest.mark.parametrize(
    ("n_rows", "n_slots", "width", "is_taken"),
    [
        *((17, 2, 2880, True), (1024, 2, 2880, True), (1025, 2, 2880, False), (32, 1, 2880, False)),
        *((16, 4, 2880, False), (17, 1, 14336, True), (16, 4, 14336, False), (1025, 2, 14336, False)),
    ],
)
def test_int8_is_for_neither_few_nor_very_many_pairs_of_an_expert(
    n_rows: int, n_slots: int, width: int, is_taken: bool
) -> None:
    assert takes_pairs_in_int8(n_rows, n_slots, 4, width) == is_taken


@pytest.mark.parametrize("form", FORMATS_AS_INT8)
def test_int8_is_taken_only_where_it_is_right(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = random(1).device
    assert try_int8(form, device)
    right = Int8OfExperts.pairs

    def wrong_in_one_lane(self: Int8OfExperts, epilogue: object, args: tuple[Tensor, ...], *others: object) -> None:
        right(self, epilogue, args, *others)  # type: ignore[arg-type]
        args[0][5, 3] *= 1.01

    monkeypatch.setattr(Int8OfExperts, "pairs", wrong_in_one_lane)
    assert not try_int8(form, device)
