"""A product that comes in parts is added to the stream, and the stream is handed on as its reader wants it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from kernel_data import DEVICE, close, packed, random, scrambled
from torch import Tensor

from runner.kernels import add_parts as module
from runner.kernels import gemm_fragments
from runner.kernels.add_parts import Reader, add_normed_for, add_parts, add_parts_ref
from runner.kernels.fragment_products import ZEROS
from runner.kernels.fragments import activation_rows, to_fragments
from runner.kernels.matmul import dense_rows, linear_residual, linear_residual_for
from runner.kernels.rotate import SPAN, quantize_blocks, quantize_fragments, quantize_rows
from runner.kernels.values import Int8Blocks, Int8Fragments, Squares
from runner.quant.mq.rotation import rotation_size

FORM = "mq4-uniform"


def reader(k: int, rotation: int, *, has_gain: bool = True, in_blocks: bool = False) -> Reader:
    w = to_fragments(packed(FORM, 16, k, rotation))
    return Reader(gain=random(k, seed=9) if has_gain else None, w=w, zero=ZEROS[FORM], in_blocks=in_blocks)


def is_what_the_reader_makes(rows: Int8Fragments | Int8Blocks, h: Tensor, to: Reader) -> bool:
    """Whether they are the rows that the reader would make of h itself, what fills the last block up included."""
    if isinstance(rows, Int8Blocks):
        wanted = quantize_blocks(h, to.gain, to.w.rotation)
        return torch.equal(rows.levels[: len(h)], wanted.levels[: len(h)]) and torch.equal(
            rows.values(), wanted.values()
        )
    wanted_rows = activation_rows(quantize_fragments(h, to.gain, to.w.rotation, to.zero))
    return torch.equal(activation_rows(rows), wanted_rows)


def squares_of_spans(x: Tensor) -> Tensor:
    """[M, ceil(K / 256)] of x [M, K]."""
    return torch.stack([span.square().sum(1) for span in x.split(SPAN, 1)], 1)


@pytest.mark.parametrize(
    ("m", "n_parts", "k", "rotation"), [
        (1, 1, 256, 256), (3, 5, 512, 64), (9, 2, 768, 1), (2, 19, 256, 256),
        # Half a span and more behind whole ones, and less than one.
        (1, 17, 384, 128), (2, 3, 448, 64), (9, 1, 64, 64),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("is_plain", "in_blocks"), [(False, False), (True, False), (False, True)])
def test_the_new_stream_its_squares_and_its_rows_are_those_of_float64(
    m: int, n_parts: int, k: int, rotation: int, is_plain: bool, in_blocks: bool
) -> None:
    h, parts, bias = random(m, k), random(m, n_parts, k, seed=2), None if is_plain else random(k, seed=3)
    to = reader(k, rotation, has_gain=not is_plain, in_blocks=in_blocks)
    wanted = h.double() + parts.double().sum(1) + (0 if bias is None else bias.double())
    of_ref, sums_ref, rows_ref = add_parts_ref(h, parts, bias, to)
    sums, rows = add_parts(h, parts, bias, to)
    close(h, wanted)
    close(of_ref, wanted)
    close(sums, squares_of_spans(wanted))
    close(sums_ref, sums)
    close(dense_rows(rows), dense_rows(rows_ref), 1.01 / 127)
    assert is_what_the_reader_makes(rows, h, to)


@pytest.mark.parametrize(("m", "n_squares", "k", "rotation"), [(1, 7, 256, 256), (9, 48, 768, 64), (3, 72, 384, 128)])
@pytest.mark.parametrize(("in_blocks", "scale"), [(False, 1.0), (True, 1.0), (False, 0.3)])
def test_behind_a_norm_too_whatever_the_number_of_rows(
    m: int, n_squares: int, k: int, rotation: int, in_blocks: bool, scale: float
) -> None:
    h, y, gain = random(m, k), random(m, k, seed=2), random(k, seed=3)
    to = reader(k, rotation, in_blocks=in_blocks)
    of_y = Squares(parts=random(m, n_squares, seed=4).square(), size=k, eps=1e-3)
    factor = (of_y.parts.double().sum(1) / k + 1e-3).rsqrt()[:, None]
    wanted = (h.double() + y.double() * factor * gain.double()) * scale
    found = h.clone()
    sums, rows = add_normed_for(found, y, of_y, gain, to, scale)
    close(found, wanted)
    close(sums, squares_of_spans(wanted))
    assert is_what_the_reader_makes(rows, found, to)
    alone = h[-1:].clone()
    of_last = replace(of_y, parts=of_y.parts[-1:].contiguous())
    sums_alone, rows_alone = add_normed_for(alone, y[-1:].contiguous(), of_last, gain, to, scale)
    for one, of_all in ((alone, found), (sums_alone, sums), (dense_rows(rows_alone), dense_rows(rows))):
        assert torch.equal(one, of_all[-1:])


class Launches:
    """Stands where a kernel is launched, and notes what it is launched with."""

    def __init__(self) -> None:
        self.noted: list[dict[str, Any]] = []

    def __getitem__(self, _grid: object) -> Any:
        return lambda *_, **named: self.noted.append(named)


@pytest.mark.parametrize(("n_rows", "n_tiles", "is_early"), [(1, 384, True), (1, 385, False), (2, 385, True)])
def test_the_next_kernel_begins_at_once_where_its_programs_have_room(
    n_rows: int, n_tiles: int, is_early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = Launches()
    monkeypatch.setattr(module, "_add_parts", launches)
    matrix = torch.zeros(n_tiles, 16, 8, 4, 4, dtype=torch.int32, device=DEVICE)
    w = replace(reader(256, 256).w, packed=matrix)
    add_parts(random(n_rows, 1024), None, None, Reader(gain=None, w=w, zero=1))
    assert [launch["EARLY"] for launch in launches.noted] == [is_early]


# Fewer columns than a part has, as many, and more.
@pytest.mark.parametrize(
    ("k", "n", "has_bias"), [(64, 256, True), (512, 256, False), (576, 256, True), (64, 320, True)]
)
def test_it_is_the_residual_and_then_the_quantizing_whatever_the_number_of_rows(k: int, n: int, has_bias: bool) -> None:
    w, rotation = to_fragments(scrambled(FORM, n, k)), rotation_size(n)
    to = reader(n, rotation)
    x, h = random(8, k), random(8, n, seed=4)
    bias = random(n, seed=5) if has_bias else None

    def run(first: int, last: int) -> tuple[Tensor, Tensor, Tensor]:
        rows, stream = quantize_fragments(x[first:last], None, 1, ZEROS[FORM]), h[first:last].clone()
        squares, ready = linear_residual_for(rows, w, stream, to, bias=bias, eps=1e-5)
        assert isinstance(ready, Int8Fragments)
        assert (squares.size, squares.eps) == (n, 1e-5)
        assert torch.equal(
            activation_rows(ready), activation_rows(quantize_fragments(stream, to.gain, rotation, ZEROS[FORM]))
        )
        return stream, squares.parts, activation_rows(ready)

    together = run(0, 8)
    alone = h.clone()
    of_alone = linear_residual(quantize_fragments(x, None, 1, ZEROS[FORM]), w, alone, bias=bias, eps=1e-5)
    close(together[0], alone)
    close(together[1].sum(1), of_alone.parts.sum(1))
    for first, last in ((7, 8), (2, 5)):
        for some, whole in zip(run(first, last), together, strict=True):
            assert torch.equal(some, whole[first:last])


@pytest.mark.parametrize(("most_programs", "is_in_parts"), [(12, True), (3, False)])
def test_of_a_prompt_what_comes_in_parts_is_handed_on_and_nothing_else(
    most_programs: int, is_in_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm_fragments, "_AT_ONCE", {32: most_programs})
    n, k = 192, 1024
    w, to = to_fragments(scrambled(FORM, n, k)), reader(n, 64, in_blocks=True)
    x, bias, found = quantize_blocks(random(20, k), None, 1), random(n, seed=5), random(20, n, seed=4)
    wanted = found.clone()
    squares, ready = linear_residual_for(x, w, found, to, bias=bias, eps=1e-5)
    of_wanted = linear_residual(x, w, wanted, bias=bias, eps=1e-5)
    close(found, wanted)
    close(squares.parts.sum(1), of_wanted.parts.sum(1))
    assert isinstance(ready, Int8Blocks) == is_in_parts
    if ready is not None:
        assert is_what_the_reader_makes(ready, found, to)


@pytest.mark.parametrize("name", ["add_parts", "quantize_fragments", "quantize_rows", "combine_fragments"])
def test_rows_that_come_out_wrong_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rotates = module.try_rotation
    assert rotates(256, DEVICE)
    real = getattr(module, name)

    def wrong_in_some_lanes(*args: Any, **named: Any) -> Any:
        found = real(*args, **named)
        words = (found[1] if isinstance(found, tuple) else found).words
        some = words.unbind(3 if words.dim() > 3 else 1)
        some[1].copy_(some[2])
        return found

    monkeypatch.setattr(module, name, wrong_in_some_lanes)
    assert not rotates(256, DEVICE)


def test_a_product_of_rows_in_other_layouts_leaves_the_stream_to_its_reader() -> None:
    planes, to = packed(FORM, 320, 64), reader(320, 32)
    x, found = random(2, 64), random(2, 320, seed=4)
    rows, wanted = quantize_rows(x, None, 1), found.clone()
    squares, ready = linear_residual_for(rows, planes, found, to, eps=1e-5)
    assert squares is not None
    assert ready is None
    assert torch.equal(squares.parts, linear_residual(rows, planes, wanted, eps=1e-5).parts)
    assert torch.equal(found, wanted)
