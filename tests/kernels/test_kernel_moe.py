"""Routing, grouping and the products of experts against float64, and the same bits for a row in every batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_data import DEVICE, close, packed, random
from torch import Tensor

from runner.kernels import moe_blocks, moe_fragments, moe_gemm
from runner.kernels.fragment_products import ZEROS
from runner.kernels.fragments import FORMATS_IN_FRAGMENTS, to_fragments
from runner.kernels.matmul import Activation, dense_rows, gate_ref
from runner.kernels.moe_blocks import (
    BlocksOfExperts,
    multiplies_alike,
    multiplies_in_blocks,
    shares_blocks,
    takes_blocks,
    try_bits,
    try_blocks,
)
from runner.kernels.moe_groups import group_pairs, group_pairs_ref
from runner.kernels.moe_matmul import (
    Dispatch,
    MoeRows,
    dispatch,
    moe_linear,
    moe_linear_gated,
    moe_linear_gated_ref,
    moe_linear_ref,
    moe_linear_residual,
    moe_linear_residual_ref,
    moe_linear_squares,
    moe_linear_squares_ref,
)
from runner.kernels.moe_route import Routing, rounds_in_lanes, route, route_and_round, route_ref
from runner.kernels.moe_router import router_logits, router_logits_ref
from runner.kernels.pack import dequantize_ref
from runner.kernels.rotate import quantize_fragments, quantize_rows, rotate_rows
from runner.kernels.values import Int8Fragments, Int8Rows, Matrix, PackedMatrix, Squares, rstd_ref

KINDS = ("dense", "mq4", "mq4 fragments")
# M, E, k, N, K: odd, fewer columns than a tile, experts that nobody takes
FEW = ((1, 5, 3, 14, 64), (3, 2, 1, 13, 96))
LONG = (1, 6, 2, 5, 2080)
MANY = (
    (17, 3, 2, 21, 64),
    (33, 4, 2, 70, 32),
    (66, 4, 2, 21, 64),
    (130, 3, 1, 16, 96),
)  # blocks of 16 to 128
FULL = (197, 2, 1, 16, 96)  # blocks that are full
# The same of experts in fragments, whose rows are whole tiles: of several steps, the last of which is not full; slots
# that are no power of two; blocks of 16, 32, 64 and 128 pairs, fewer columns than a tile of them and more
FEW_TILES = ((1, 5, 3, 32, 64), (3, 3, 2, 32, 832), (2, 5, 5, 32, 320))
LONG_TILES = (2, 2, 1, 32, 4160)  # so many steps that they are a loop
MANY_TILES = ((17, 3, 2, 32, 64), (33, 4, 2, 320, 128), (66, 4, 2, 32, 64), (197, 2, 1, 32, 64))
# Experts with more pairs than a program takes at once, few, and none; of one step of columns and of several
BLOCKS = ((17, 9, 2, 32, 64), (40, 4, 2, 32, 320))
WIDE = (35, 3, 2, 37, 544)  # more than one step of columns, and a last one that is not full


def matrix(kind: str, n: int, k: int) -> Matrix:
    if kind == "dense":
        return random(n, k, seed=9) * 0.3
    form, _, layout = kind.partition(" ")
    return to_fragments(packed(form, n, k)) if layout else packed(form, n, k)


def activations(x: Tensor, w: Matrix, n_rows: int, *, in_blocks: bool = False) -> MoeRows:
    """x as a product with w wants it when n_rows rows are computed; x may be of their pairs."""
    if isinstance(w, Tensor):
        return x
    if n_rows > 16 and not in_blocks:
        return rotate_rows(x, None, 1, torch.float32)
    if w.layout == "fragments":
        return quantize_fragments(x, None, 1, ZEROS[w.format], apart=True)
    return quantize_rows(x, None, 1)


def routed(m: int, e: int, k: int, seed: int = 4) -> Dispatch:
    """Random experts for each row; the last expert is never taken, so that it has no block."""
    logits = random(m, e, seed=seed)
    if k < e:
        logits[:, -1] = -9.0
    weights, experts = route(logits, k, "topk_softmax")
    return dispatch(weights, experts, e)


def exact(rows: Tensor, w: Matrix, to: Dispatch) -> Tensor:
    """Rows of pairs [P, K] times their experts' matrices in float64."""
    weights = (w if isinstance(w, Tensor) else dequantize_ref(w)).double().view(to.num_experts, -1, rows.shape[1])
    products = [weights[expert] @ row for row, expert in zip(rows.double(), to.experts.flatten().tolist(), strict=True)]
    return torch.stack(products)


def of_pairs(x: MoeRows, to: Dispatch) -> Tensor:
    return dense_rows(x).repeat_interleave(to.experts.shape[1], 0)


# --- which experts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["softmax_topk", "topk_softmax"])
@pytest.mark.parametrize(("m", "e", "k"), [(1, 1, 1), (5, 128, 8), (18, 13, 13), (3, 32, 4)])
def test_routing_equals_its_reference_in_float64(kind: Routing, m: int, e: int, k: int) -> None:
    logits = random(m, e) * 4
    weights, experts = route(logits, k, kind)
    wanted, numbers = route_ref(logits.double(), k, kind)
    assert torch.equal(experts, numbers)
    close(weights, wanted)


@pytest.mark.parametrize("kind", ["softmax_topk", "topk_softmax"])
@pytest.mark.parametrize(("m", "e", "k"), [(1, 1, 1), (5, 128, 8), (18, 13, 3)])
def test_a_shared_expert_is_taken_besides_and_changes_nothing_of_the_others(
    kind: Routing, m: int, e: int, k: int
) -> None:
    logits = random(m, e + 1) * 4
    logits[:, -1] += 20 * (torch.arange(m, device=DEVICE) % 3 - 1)  # the largest of all, the smallest, and neither
    weights, experts = route(logits, k, kind, is_shared=True)
    wanted, numbers = route_ref(logits.double(), k, kind, is_shared=True)
    assert torch.equal(experts, numbers)
    close(weights, wanted)
    assert experts[:, k].tolist() == [e] * m
    close(weights[:, k], logits[:, e].double().sigmoid())


@pytest.mark.parametrize("kind", ["softmax_topk", "topk_softmax"])
def test_weights_have_the_factors_of_their_experts(kind: Routing) -> None:
    logits, factors = random(5, 13) * 4, random(13, seed=2)
    weights, experts = route(logits, 3, kind, factors=factors)
    wanted, numbers = route_ref(logits.double(), 3, kind, factors=factors.double())
    assert torch.equal(experts, numbers)
    close(weights, wanted)
    assert (weights < 0).any()
    assert torch.equal(weights, route(logits, 3, kind)[0] * factors[experts.long()])


def test_equal_logits_go_to_the_lower_experts_and_others_are_never_chosen() -> None:
    logits = torch.tensor([[2.0, 1.0, 2.0, 2.0, 1.0], [0.0, -torch.inf, -torch.inf, -torch.inf, -torch.inf]])
    weights, experts = route(logits.to(DEVICE), 4, "softmax_topk")
    assert experts.tolist() == [[0, 2, 3, 1], [0, 1, 2, 3]]
    assert weights[0, 0] == weights[0, 1] == weights[0, 2]
    assert weights[1].tolist() == [1.0, 0.0, 0.0, 0.0]
    huge = torch.tensor([[3e38, -3e38, 88.0]]).to(DEVICE)
    assert route(huge, 2, "topk_softmax")[0].tolist() == [[1.0, 0.0]]


def test_logits_that_are_no_numbers_choose_experts_that_exist() -> None:
    logits = torch.tensor([[torch.nan] * 5, [1.0, torch.nan, torch.inf, 2.0, torch.nan]]).to(DEVICE)
    _, experts = route(logits, 4, "topk_softmax")
    assert experts[0].tolist() == [0, 1, 2, 3]
    assert experts[1].tolist() == [2, 3, 0, 1]


@pytest.mark.parametrize(("e", "length"), [(5, 64), (3, 96), (2, 1056)])
@pytest.mark.parametrize(("has_norm", "has_bias"), [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_logits_of_experts_equal_float64(
    e: int, length: int, has_norm: bool, has_bias: bool, dtype: torch.dtype
) -> None:
    h, w, bias = random(3, length) * 3, random(e, length, seed=2).to(dtype), random(e, seed=3) if has_bias else None
    gain = random(length, seed=4) if has_norm else None
    squares = Squares(parts=h.square().view(3, 2, -1).sum(2), size=length, eps=1e-5) if has_norm else None
    wanted = router_logits_ref(h.double(), w, gain=gain, squares=squares, bias=bias)
    found = router_logits(h, w, gain=gain, squares=squares, bias=bias)
    close(found, wanted)
    alone = None if squares is None else Squares(parts=squares.parts[1:2].contiguous(), size=length, eps=1e-5)
    assert torch.equal(router_logits(h[1:2].contiguous(), w, gain=gain, squares=alone, bias=bias)[0], found[1])


@pytest.mark.parametrize(("length", "rotation"), [(512, 256), (96, 32), (64, 1)])
@pytest.mark.parametrize("has_norm", [False, True])
def test_rows_are_rounded_beside_the_choice_as_they_are_alone(length: int, rotation: int, has_norm: bool) -> None:
    logits, h, gain = random(3, 12) * 4, random(3, length, seed=2), random(length, seed=3) if has_norm else None
    squares = Squares(parts=random(3, 5, seed=4).square(), size=length, eps=1e-5) if has_norm else None
    weights, experts, rows = route_and_round(
        logits, 4, "softmax_topk", h, gain=gain, squares=squares, rotation=rotation, zero=None, in_lanes=False
    )
    assert isinstance(rows, Int8Rows)
    assert rounds_in_lanes(rotation, DEVICE)
    for found, wanted in zip((weights, experts), route(logits, 4, "softmax_topk"), strict=True):
        assert torch.equal(found, wanted)
    alone = quantize_rows(h, gain, rotation)
    assert torch.equal(rows.words, alone.words)
    close(rows.scale, alone.scale * (1 if squares is None else rstd_ref(squares)[:, None]))


@pytest.mark.parametrize(("length", "rotation"), [(512, 256), (64, 1)])
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("kind", ["plain", "shared", "with factors"])
def test_rows_are_rounded_to_fragments_beside_the_choice(length: int, rotation: int, kind: str, has_norm: bool) -> None:
    more: dict[str, Any] = {"is_shared": kind == "shared"}
    more |= {"factors": random(12, seed=5)} if kind == "with factors" else {}
    logits, h, gain = random(3, 12) * 4, random(3, length, seed=2), random(length, seed=3) if has_norm else None
    squares = Squares(parts=random(3, 5, seed=4).square(), size=length, eps=1e-5) if has_norm else None
    weights, experts, rows = route_and_round(
        logits, 4, "softmax_topk", h, gain=gain, squares=squares, rotation=rotation, zero=15, in_lanes=False, **more
    )
    assert isinstance(rows, Int8Fragments)
    alone = route(logits, 4, "softmax_topk", **more)
    for found, wanted in zip((weights, experts), alone, strict=True):
        assert torch.equal(found, wanted)
    rounded = quantize_fragments(h, gain, rotation, 15, squares, apart=True)
    assert torch.equal(rows.words, rounded.words)
    assert torch.equal(rows.notes[..., :3], rounded.notes[..., :3])
    assert (rows.num_rows, rows.zero) == (3, 15)


@pytest.mark.parametrize(("m", "e", "k"), [(2, 40, 3), (17, 1, 1), (40, 9, 4), (130, 9, 8)])
def test_pairs_are_sorted_by_expert_and_stay_in_order(m: int, e: int, k: int) -> None:
    _, experts = route(random(m, e), k, "topk_softmax")
    found, wanted = group_pairs(experts, e), group_pairs_ref(experts, e)
    assert torch.equal(found.order, wanted.order)
    assert torch.equal(found.firsts, wanted.firsts)


# --- products --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        *((kind, shape) for kind in KINDS[:2] for shape in (*FEW, LONG, *MANY, FULL)),
        *(("mq6", FEW[1]), ("mq8", MANY[0])),
        *((kind, WIDE) for kind in ("mq4-uniform", "mq6", "mq8")),
        *(("mq4 fragments", shape) for shape in (*FEW_TILES, *MANY_TILES)),
        *((f"{form} fragments", shape) for form in ("mq4-uniform", "mq6") for shape in (FEW_TILES[1], MANY_TILES[1])),
        *((f"{form} fragments", LONG_TILES) for form in ("mq4", "mq6")),
    ],
    ids=str,
)
def test_products_of_pairs_equal_float64(kind: str, shape: tuple[int, ...]) -> None:
    m, e, k, n, length = shape
    w, to, bias = matrix(kind, e * n, length), routed(m, e, k), random(e, n, seed=5)
    x = activations(random(m, length), w, m)
    squares = Squares(parts=random(m, 3, seed=2).square(), size=64, eps=1e-5)
    rstd = (squares.parts.double().sum(1) / 64 + 1e-5).rsqrt()
    wanted = exact(of_pairs(x, to), w, to)
    close(moe_linear(x, w, to, dtype=torch.float32), wanted)
    wanted = wanted * rstd.repeat_interleave(k)[:, None] + bias[to.experts.flatten().long()]
    close(moe_linear(x, w, to, bias=bias, squares=squares, dtype=torch.float32), wanted)
    close(moe_linear_ref(x, w, to, bias=bias, squares=squares, dtype=torch.float32), wanted)


@pytest.mark.parametrize(
    ("form", "shape", "at_once"),
    [
        *((form, shape, 1) for form in FORMATS_IN_FRAGMENTS for shape in BLOCKS),
        *((form, BLOCKS[0], 2) for form in FORMATS_IN_FRAGMENTS),
        (FORMATS_IN_FRAGMENTS[0], BLOCKS[1], 2),
    ],
    ids=str,
)
def test_pairs_of_an_expert_are_multiplied_in_blocks(
    form: str, shape: tuple[int, ...], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moe_blocks, "_blocks_at_once", lambda _: at_once)
    m, e, k, n, length = shape
    w, to, bias, h = matrix(f"{form} fragments", e * n, length), routed(m, e, k), random(e, n, seed=5), random(m, n)
    x = activations(random(m, length), w, m, in_blocks=True)
    squares = Squares(parts=random(m, 3, seed=2).square() * 20, size=64, eps=1e-5)
    wanted = exact(of_pairs(x, to), w, to)
    close(moe_linear(x, w, to, dtype=torch.float32), wanted)
    rstd = (squares.parts.double().sum(1) / 64 + 1e-5).rsqrt().repeat_interleave(k)[:, None]
    gate, up = (wanted * rstd + bias[to.experts.flatten().long()]).chunk(2, 1)
    found = moe_linear_gated(x, w, to, "silu", bias=bias, squares=squares, dtype=torch.float32)
    close(found, gate_ref(gate, up, "silu"), 1e-5)
    y = activations(random(m * k, length, seed=7), w, m, in_blocks=True)
    added = h.double() + (exact(dense_rows(y), w, to).view(m, k, n) * to.weights.double()[:, :, None]).sum(1)
    moe_linear_residual(y, w, to, h, eps=1e-5)
    close(h, added)


def test_blocks_are_for_few_pairs_of_whole_tiles() -> None:
    w, odd = matrix("mq4 fragments", 4 * 32, 64), matrix("mq4 fragments", 4 * 16, 64)
    assert isinstance(w, PackedMatrix)
    assert isinstance(odd, PackedMatrix)
    assert takes_blocks(w, 17, 2, 4)
    assert not takes_blocks(w, 16, 2, 4)
    assert shares_blocks(w, 16, 2, 4)
    assert not shares_blocks(w, 17, 2, 4)
    assert not shares_blocks(w, 1, 2, 4)
    assert not shares_blocks(w, 2, 1, 8)
    assert shares_blocks(w, 11, 8, 220)
    assert not shares_blocks(w, 11, 9, 220)  # of more slots than are added up at once
    assert not shares_blocks(odd, 16, 2, 4)
    assert not takes_blocks(w, 2 * moe_blocks.MOST_PAIRS + 1, 2, 4)
    assert not takes_blocks(odd, 17, 2, 4)
    planes = matrix("mq4", 4 * 32, 64)
    assert isinstance(planes, PackedMatrix)
    assert not takes_blocks(planes, 17, 2, 4)
    assert not shares_blocks(planes, 16, 2, 4)


@pytest.mark.parametrize(("kind", "n"), [("mq4 fragments", 16), ("mq4", 16), ("mq4", 21)])
def test_experts_are_decoded_on_their_way_or_in_advance_and_in_turn(
    kind: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, e, k, length = 20, 40, 2, 64
    w, to = matrix(kind, e * n, length), routed(m, e, k)
    x = activations(random(m, length), w, m)
    on_their_way = moe_linear(x, w, to, dtype=torch.float32)
    monkeypatch.setattr(moe_gemm, "_FEW_PAIRS", 0)
    at_once = moe_linear(x, w, to, dtype=torch.float32)
    assert torch.equal(on_their_way, at_once) == (kind == "mq4")  # those in planes are always decoded in advance
    monkeypatch.setattr(moe_gemm, "BLOCK_BYTES", 3 * n * length * 4)
    assert moe_gemm.experts_at_once(n, length, 4) == {16: 3, 21: 16}[n]
    assert torch.equal(moe_linear(x, w, to, dtype=torch.float32), at_once)
    close(at_once, exact(of_pairs(x, to), w, to))
    close(on_their_way, at_once)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "clamped_swiglu"])
@pytest.mark.parametrize("shape", [FEW[0], MANY[0]], ids=str)
def test_pairs_of_rows_of_an_expert_are_gated(kind: str, activation: Activation, shape: tuple[int, ...]) -> None:
    m, e, k, n, length = (*shape[:3], 96 if "fragments" in kind else 14, shape[4])
    w, to, bias = matrix(kind, e * n, length), routed(m, e, k), random(e, n, seed=5)
    x = activations(random(m, length), w, m)
    squares = Squares(parts=random(m, 5, seed=2).square() * 20, size=96, eps=1e-5)
    found = moe_linear_gated(x, w, to, activation, bias=bias, squares=squares, dtype=torch.float32)
    rstd = (squares.parts.double().sum(1) / 96 + 1e-5).rsqrt().repeat_interleave(k)[:, None]
    gate, up = (exact(of_pairs(x, to), w, to) * rstd + bias[to.experts.flatten().long()]).chunk(2, 1)
    close(found, gate_ref(gate, up, activation), 1e-5)
    close(moe_linear_gated_ref(x, w, to, activation, bias=bias, squares=squares, dtype=torch.float32), found, 1e-5)


@pytest.mark.parametrize(
    ("kind", "shape", "has_bias"),
    [
        *((kind, *case) for kind in KINDS[:2] for case in ((FEW[0], True), (FEW[1], False), (LONG, False))),
        *((kind, MANY[0], True) for kind in KINDS[:2]),
        *(("mq4 fragments", *case) for case in zip(FEW_TILES, (True, False, False), strict=True)),
        *((f"{form} fragments", FEW_TILES[1], False) for form in ("mq4-uniform", "mq6")),
        ("mq4 fragments", MANY_TILES[0], True),
        ("mq4 fragments", (2, 11, 9, 32, 64), False),  # eight and a shared one
        ("mq4 fragments", (1, 10, 9, 32, 1152), False),  # so many steps that they are a loop
        ("mq4 fragments", (1, 17, 16, 32, 64), False),
        ("mq4 fragments", (1, 3, 2, 32, 1664), True),  # so many steps that they are a loop
    ],
    ids=str,
)
def test_a_rows_experts_are_weighed_and_added_to_the_stream_or_by_themselves(
    kind: str, shape: tuple[int, ...], has_bias: bool
) -> None:
    m, e, k, n, length = shape
    w, to, h = matrix(kind, e * n, length), routed(m, e, k), random(m, n, seed=3)
    bias = random(e, n, seed=5) if has_bias else None
    x = activations(random(m * k, length), w, m)
    y = exact(dense_rows(x), w, to) + (0 if bias is None else bias[to.experts.flatten().long()])
    added = (y.view(m, k, n) * to.weights.double()[:, :, None]).sum(1)
    wanted = h.double() + added
    close(moe_linear_residual_ref(x, w, to, h, bias=bias), wanted)
    squares = moe_linear_residual(x, w, to, h, bias=bias, eps=1e-5)
    close(h, wanted)
    by_itself, of_it = moe_linear_squares(x, w, to, bias=bias, eps=1e-5)
    close(moe_linear_squares_ref(x, w, to, bias=bias), added)
    close(by_itself, added)
    for found, right in ((squares, wanted), (of_it, added)):
        close(found.parts.sum(1), right.square().sum(1))
        assert (found.size, found.eps) == (n, 1e-5)


@pytest.mark.parametrize(("m", "dtype"), [(2, torch.bfloat16), (2, torch.float16), (20, torch.float16)])
def test_activations_of_16_bits_are_taken_and_given(m: int, dtype: torch.dtype) -> None:
    to, w, h = routed(m, 4, 2), random(4 * 24, 40, seed=9).to(dtype), random(m, 24, seed=3)
    x, unit = random(m, 40).to(dtype), torch.finfo(dtype).eps  # the interpreter cuts bits off where a GPU rounds
    wanted = exact(of_pairs(x, to), w, to)
    found = moe_linear(x, w, to, dtype=dtype)
    assert found.dtype == dtype
    close(found, wanted, unit)
    wanted = h.double() + (wanted.view(m, 2, 24) * to.weights.double()[:, :, None]).sum(1)
    moe_linear_residual(of_pairs(x, to), w, to, h, eps=1e-5)
    close(h, wanted, 2e-6 if m <= 16 else unit)  # above 16 rows the outputs of experts pass through 16 bits


@pytest.mark.parametrize(
    ("kind", "k"), [*((kind, 2) for kind in (*KINDS, "mq6 fragments")), ("mq4 fragments", 9)]
)  # of nine slots the down products of several rows are another kernel's
def test_a_row_has_the_same_bits_in_every_batch_of_up_to_16(kind: str, k: int) -> None:
    e, n, length, width = (5, 4, 96, 9) if "fragments" not in kind else (5, 16, 320, 32) if k == 2 else (9, 16, 128, 16)
    up, down = matrix(kind, e * 2 * n, length), matrix(kind, e * width, length)
    logits, x, parts = random(16, e, seed=4), random(16, length), random(16, 40, seed=2).square()
    inner = random(16 * k, length, seed=6)

    def run(first: int, last: int) -> list[Tensor]:
        rows = slice(first, last)
        to = dispatch(*route(logits[rows].contiguous(), k, "softmax_topk"), e)
        squares = Squares(parts=parts[rows].contiguous(), size=64, eps=1e-5)
        of_rows = activations(x[rows].contiguous(), up, last - first)
        gated = moe_linear_gated(of_rows, up, to, "silu", squares=squares, dtype=torch.float32)
        h = random(16, width, seed=8)[rows].contiguous()
        pairs = activations(inner[first * k : last * k].contiguous(), down, last - first)
        after = moe_linear_residual(pairs, down, to, h, eps=1e-5)
        by_itself, squares = moe_linear_squares(pairs, down, to, eps=1e-5)
        return [to.weights, gated.view(last - first, k, n), h, after.parts, by_itself, squares.parts]

    sizes = (3, 16) if k == 2 or DEVICE.type == "cuda" else (3,)  # 16 rows of nine slots take the interpreter long
    alone = {m: run(m, m + 1) for m in (0, sizes[-1] - 1)}
    for n_rows in sizes:
        together = run(0, n_rows)
        for m in (m for m in alone if m < n_rows):
            for one, batch in zip(alone[m], together, strict=True):
                assert torch.equal(one[0], batch[m])


@pytest.mark.parametrize(
    ("form", "m", "e", "k", "length", "has_bias"),
    [
        ("mq4", 2, 16, 3, 832, True),  # more experts than pairs; steps that are a loop
        ("mq4", 10, 10, 9, 64, False),  # more slots than warps, more rows of an expert than a block has
        ("mq4-uniform", 5, 3, 2, 320, True),
        ("mq6", 5, 3, 1, 320, False),
    ],
)
def test_rows_of_an_expert_multiplied_together_have_the_bits_that_they_have_alone(
    form: str, m: int, e: int, k: int, length: int, has_bias: bool
) -> None:
    n, width = (32, 64) if k < 9 else (16, 32)  # several programs of each kernel; fewer where they take long
    up, down = matrix(f"{form} fragments", e * 2 * n, length), matrix(f"{form} fragments", e * width, length)
    biases = (random(e, 2 * n, seed=7), random(e, width, seed=5)) if has_bias else (None, None)
    x, inner = activations(random(m, length), up, m), activations(random(m * k, length, seed=6), down, m)
    routes = route(random(m, e, seed=4), k, "softmax_topk")

    def run(*, is_sorted: bool) -> list[Tensor]:
        to, h = dispatch(*routes, e, is_sorted=is_sorted), random(m, width, seed=8)
        gated = moe_linear_gated(x, up, to, "silu", bias=biases[0], dtype=torch.float32)
        apart = moe_linear(x, up, to, bias=biases[0], dtype=torch.float32)
        parts = moe_linear_residual(inner, down, to, h, bias=biases[1], eps=1e-5).parts
        if k == 9 and DEVICE.type == "cpu":  # which takes the interpreter long
            return [gated, apart, parts, h]
        by_itself, squares = moe_linear_squares(inner, down, to, bias=biases[1], eps=1e-5)
        return [gated, apart, parts, h, by_itself, squares.parts]

    assert all(map(torch.equal, run(is_sorted=True), run(is_sorted=False)))


@pytest.mark.parametrize(("form", "k", "length"), [("mq4", 3, 832), ("mq4-uniform", 2, 1088), ("mq6", 2, 320)])
def test_warps_share_a_slot_of_wide_experts_in_one_order(
    form: str, k: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, e, width = 3, 4, 32
    down = matrix(f"{form} fragments", e * width, length)
    inner, routes = random(m * k, length, seed=6), route(random(m, e, seed=4), k, "softmax_topk")

    def run(first: int, last: int, *, is_sorted: bool) -> list[Tensor]:
        rows, h = inner[first * k : last * k], random(m, width, seed=8)[first:last].clone()
        to = dispatch(*(one[first:last].contiguous() for one in routes), e, is_sorted=is_sorted)
        squares = moe_linear_residual(activations(rows, down, last - first), down, to, h, eps=1e-5)
        return [h, squares.parts]

    by_one_warp = run(0, m, is_sorted=False)
    monkeypatch.setattr(moe_fragments, "WIDE", 320)
    assert moe_fragments.warps_of_slot(length, k) == {3: 2, 2: 4}[k]
    apart = run(0, m, is_sorted=False)
    assert all(map(torch.equal, apart, run(0, m, is_sorted=True)))
    assert all(torch.equal(one[0], rows[1]) for one, rows in zip(run(1, 2, is_sorted=False), apart, strict=True))
    assert not torch.equal(apart[0], by_one_warp[0])  # another order
    for found, right in zip(apart, by_one_warp, strict=True):
        close(found, right.double())


def test_int8_rows_of_pairs_are_those_of_the_pairs_in_order() -> None:
    """What the down product reads: quantizing all pairs at once and each by itself is the same."""
    inner = random(6, 64)
    whole = quantize_rows(inner, None, 1)
    assert isinstance(whole, Int8Rows)
    for pair in range(6):
        one = quantize_rows(inner[pair : pair + 1], None, 1)
        assert torch.equal(one.words[0], whole.words[pair])
        assert torch.equal(one.scale[0], whole.scale[pair])


@pytest.mark.parametrize("form", FORMATS_IN_FRAGMENTS)
def test_experts_are_in_fragments_only_where_all_kernels_are_right(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    works, alike = moe_fragments.try_experts, moe_fragments.try_sums
    assert works(form, DEVICE)
    assert alike(form, DEVICE)
    kernels = moe_fragments.GemvFragmentsOfExperts
    gated = lambda args: args[1][0]  # noqa: E731
    for name, place, asked in (
        ("pairs", gated, works),
        ("sum", lambda args: args[1], works),
        ("products", gated, alike),
    ):
        right = getattr(kernels, name)

        def wrong_in_one_lane(self: object, *args: Any, right: Any = right, place: Any = place) -> None:
            right(self, *args)
            place(args)[0, 5] += 1.0 + place(args)[0, 5].abs()

        monkeypatch.setattr(kernels, name, wrong_in_one_lane)
        assert not asked(form, DEVICE)
        monkeypatch.setattr(kernels, name, right)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert not works(form, DEVICE)
    w = matrix(form, 16, 64)
    assert isinstance(w, PackedMatrix)
    monkeypatch.setattr(moe_fragments, "is_nvidia", lambda _: True)
    monkeypatch.setattr(moe_fragments, "_works", lambda *_: False)
    assert not moe_fragments.multiplies_experts(w, 8)
    monkeypatch.setattr(moe_fragments, "_works", lambda *_: True)
    monkeypatch.setattr(moe_fragments, "_adds_alike", lambda *_: False)
    assert moe_fragments.multiplies_experts(w, 8)
    assert not moe_fragments.multiplies_experts(w, 9), "what alone goes one by one"
    monkeypatch.setattr(moe_fragments, "is_nvidia", lambda _: False)
    assert moe_fragments.multiplies_experts(w, 16)
    assert not moe_fragments.multiplies_experts(w, 17)


@pytest.mark.parametrize("form", FORMATS_IN_FRAGMENTS)
def test_pairs_are_multiplied_in_blocks_only_where_that_is_right(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert try_blocks(form, DEVICE)
    assert try_bits(form, DEVICE)
    right = BlocksOfExperts.pairs

    def wrong_in_one_lane(self: BlocksOfExperts, epilogue: Any, args: Any, *others: Any) -> None:
        right(self, epilogue, args, *others)
        args[0][0, 5] += 1.0 + args[0][0, 5].abs()

    with monkeypatch.context() as wrong:
        wrong.setattr(BlocksOfExperts, "pairs", wrong_in_one_lane)
        assert not try_blocks(form, DEVICE)
        assert not try_bits(form, DEVICE)
    w = matrix(f"{form} fragments", 32, 64)
    assert multiplies_in_blocks(w)
    assert not multiplies_in_blocks(matrix(form, 32, 64))
    assert not multiplies_in_blocks(matrix("dense", 32, 64))
    monkeypatch.setattr(moe_blocks, "is_nvidia", lambda _: True)
    monkeypatch.setattr(moe_blocks, "_works", lambda *_: False)
    assert not multiplies_in_blocks(w)
    monkeypatch.setattr(moe_blocks, "_is_alike", lambda *_: False)
    assert isinstance(w, PackedMatrix)
    assert not multiplies_alike(w)
