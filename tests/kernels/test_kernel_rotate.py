"""Rotating and quantizing activations against float64, in every block size, and row by row."""

from __future__ import annotations

import pytest
import torch
from kernel_data import DEVICE, close, random

from runner.kernels import rotate as rotate_module
from runner.kernels.butterflies import rotation_signs
from runner.kernels.fragments import MAGIC, activation_rows
from runner.kernels.matmul import dense_rows
from runner.kernels.rotate import (
    quantize_blocks,
    quantize_fragments,
    quantize_fragments_ref,
    quantize_rows,
    quantize_rows_ref,
    rotate_rows,
    rotate_rows_ref,
)
from runner.kernels.values import Int8Fragments, Squares
from runner.quant.mq.rotation import rotate


@pytest.mark.parametrize(("k", "rotation"), [(512, 256), (384, 128), (320, 64), (96, 32), (64, 1), (544, 32)])
@pytest.mark.parametrize("has_gain", [False, True])
def test_rows_are_rotated_in_blocks(k: int, rotation: int, has_gain: bool) -> None:
    x, gain = random(6, k), random(k, seed=2) if has_gain else None  # rows beyond a program's four
    wanted = x.double() if gain is None else x.double() * gain
    wanted = wanted if rotation == 1 else rotate(wanted, rotation)
    rows = rotate_rows(x, gain, rotation, torch.float32)
    close(rows, wanted, 1e-6)
    assert torch.equal(rotate_rows(x, gain, rotation, torch.float32, in_lanes=True), rows)


@pytest.mark.parametrize("k", [1, 45, 300])
def test_rows_for_dense_weights_have_any_width(k: int) -> None:
    x, gain = random(2, k), random(k, seed=2)
    found = rotate_rows(x, gain, 1, torch.float16)
    assert torch.equal(found, rotate_rows_ref(x, gain, 1, torch.float16))


@pytest.mark.parametrize(("k", "rotation"), [(512, 256), (96, 32), (896, 128)])
def test_levels_are_those_of_float64_but_at_a_half(k: int, rotation: int) -> None:
    x, gain = random(5, k), random(k, seed=2)
    found = quantize_rows(x, gain, rotation)
    wanted = quantize_rows_ref(x.double(), gain.double(), rotation)
    close(found.scale, wanted.scale, 1e-6)
    levels, exact = (one.words.contiguous().view(torch.int8).int() for one in (found, wanted))
    assert int((levels - exact).abs().max()) <= 1
    assert float((levels != exact).float().mean()) < 1e-3
    close(dense_rows(found), rotate(x.double() * gain, rotation), 0.5 / 127)


@pytest.mark.parametrize("has_gain", [False, True])
def test_without_a_rotation_levels_and_scales_are_those_of_the_reference_bit_for_bit(has_gain: bool) -> None:
    x, gain = random(4, 1056), random(1056, seed=2) if has_gain else None
    # The reference on the CPU: torch divides by a number on a GPU by multiplying with its rounded inverse.
    found, wanted = quantize_rows(x, gain, 1), quantize_rows_ref(x.cpu(), None if gain is None else gain.cpu(), 1)
    assert torch.equal(found.words.cpu(), wanted.words)
    assert torch.equal(found.scale.cpu(), wanted.scale)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_seen_in_the_scale_of_its_group_alone(bad: float) -> None:
    x = random(2, 96)
    clean = quantize_rows(x, None, 1)
    x[1, 40] = bad
    found = quantize_rows(x, None, 1)
    assert found.scale.isfinite().tolist() == [[True, True, True], [True, False, True]]
    assert torch.equal(found.words[:, :, [0, 2]], clean.words[:, :, [0, 2]])


def test_a_group_of_zeros_has_scale_0_and_level_0() -> None:
    x = random(2, 96)
    x[1, 32:64] = 0
    found = quantize_rows(x, None, 1)
    assert float(found.scale[1, 1]) == 0
    assert not found.words[1, :, 1].any()
    assert int(found.words.contiguous().view(torch.int8).int().abs().max()) == 127


def test_halves_round_to_even() -> None:
    x = torch.zeros(1, 32, device=DEVICE)
    x[0, :5] = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5])
    levels = dense_rows(quantize_rows(x, None, 1))[0, :5]
    assert levels.tolist() == [127, 0, 2, 2, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_activations_are_read_as_they_are(dtype: torch.dtype) -> None:
    x = random(2, 128).to(dtype)
    wide = x.float()
    assert torch.equal(quantize_rows(x, None, 128).words, quantize_rows(wide, None, 128).words)


@pytest.mark.parametrize("m", [3, 9])
def test_of_many_rows_several_are_a_program_s_and_are_what_each_is_alone(
    m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, gain = random(m, 384), random(384, seed=2)
    rotated, in_blocks = rotate_rows(x, gain, 128, torch.float32), quantize_blocks(x, gain, 128)
    monkeypatch.setattr(rotate_module, "_FEW", 0)
    assert torch.equal(rotate_rows(x, gain, 128, torch.float32), rotated)
    levels, scale = (torch.full_like(tensor, 99) for tensor in (in_blocks.levels, in_blocks.scale))
    monkeypatch.setattr(rotate_module, "empty_blocks", lambda *_: (levels, scale))
    assert torch.equal(quantize_blocks(x, gain, 128).values(), in_blocks.values())
    assert bool((levels[m:] == 99).all() and (scale[:, m:] == 99).all())  # what is no row is left alone


def test_a_row_does_not_depend_on_the_others() -> None:
    x, gain = random(16, 288), random(288, seed=2)
    together = quantize_rows(x, gain, 32)
    for m in (0, 7, 15):
        alone = quantize_rows(x[m : m + 1].contiguous(), gain, 32)
        assert torch.equal(alone.words[0], together.words[m])
        assert torch.equal(alone.scale[0], together.scale[m])


# --- for tensor cores ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "rotation"), [(512, 256), (320, 64), (192, 32), (64, 1)])
@pytest.mark.parametrize(("m", "zero"), [(1, 15), (3, 0), (3, 15), (9, 15)])
def test_fragments_are_those_of_float64_but_at_a_half(m: int, zero: int, k: int, rotation: int) -> None:
    x, gain = random(m, k), random(k, seed=2)
    of_x = Squares(parts=random(m, 3, seed=3).square(), size=k, eps=1e-5)
    rows = x.double() * gain
    rows = rows if rotation == 1 else rotate(rows, rotation)
    for squares in (None, of_x):
        factor = 1.0 if squares is None else (of_x.parts.double().sum(1) / k + 1e-5).rsqrt()[:, None]
        found = quantize_fragments(x, gain, rotation, zero, squares)
        wanted = quantize_fragments_ref(x, gain, rotation, zero, squares)
        assert (found.shape, found.zero) == ((m, k), zero)
        assert found.words.shape == wanted.words.shape
        close(activation_rows(found), rows * factor, 0.51 / 127)
        scale, exact = (x.notes[..., 0].transpose(1, 2).flatten(0, 1)[:m] for x in (found, wanted))
        close(scale, exact, 1e-6)
        levels, exact = (torch.round(activation_rows(x) / scale.repeat_interleave(64, 1)) for x in (found, wanted))
        assert float((levels - exact).abs().max()) <= 1
        assert float((levels != exact).float().mean()) < 2e-3
        sums = levels.unflatten(1, (-1, 2, 32)).sum(3)
        assert torch.equal(found.notes[..., 1:3].transpose(1, 2).flatten(0, 1)[:m], MAGIC + zero * sums)


def test_a_pair_of_groups_of_zeros_has_scale_0_and_its_levels_sum_to_0() -> None:
    x = random(2, 192)
    x[1, 64:128] = 0
    found = quantize_fragments(x, None, 1, 63)
    assert found.notes[0, 1, 1, :3].tolist() == [0, MAGIC, MAGIC]
    assert not found.words[0, 1, 1].any()
    assert not activation_rows(found)[1, 64:128].any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_seen_in_the_scale_of_its_64_alone(bad: float) -> None:
    x = random(3, 192)
    clean = quantize_fragments(x, None, 1, 15)
    x[1, 100] = bad
    found = quantize_fragments(x, None, 1, 15)
    assert found.notes[0, :, :3, 0].isfinite().T.tolist() == [[True] * 3, [True, False, True], [True] * 3]
    for p, row in ((0, 0), (0, 1), (1, 0), (1, 2), (2, 1)):
        assert torch.equal(found.words[0, p, row], clean.words[0, p, row])
        assert torch.equal(found.notes[0, p, row, :3], clean.notes[0, p, row, :3])


def test_a_row_of_fragments_does_not_depend_on_the_others() -> None:
    x, gain, parts = random(17, 256), random(256, seed=2), random(17, 4, seed=3).square()

    def run(first: int, last: int) -> torch.Tensor:
        squares = Squares(parts=parts[first:last].contiguous(), size=256, eps=1e-5)
        return activation_rows(quantize_fragments(x[first:last].contiguous(), gain, 256, 15, squares))

    together = run(0, 17)
    for first, last in ((0, 1), (16, 17), (3, 5), (0, 3), (7, 16)):
        assert torch.equal(run(first, last), together[first:last])


@pytest.mark.parametrize("has_norm", [False, True])
def test_rows_apart_are_blocks_of_one_row_each_as_it_is_alone(has_norm: bool) -> None:
    x, gain, parts = random(11, 320), random(320, seed=2), random(11, 4, seed=3).square()

    def run(first: int, last: int) -> Int8Fragments:
        squares = Squares(parts=parts[first:last].contiguous(), size=320, eps=1e-5) if has_norm else None
        return quantize_fragments(x[first:last].contiguous(), gain, 64, 15, squares, apart=True)

    found = run(0, 11)
    squares = Squares(parts=parts, size=320, eps=1e-5) if has_norm else None
    wanted = quantize_fragments_ref(x, gain, 64, 15, squares, apart=True)
    assert found.words.shape == wanted.words.shape == (11, 5, 1, 4, 4)
    assert found.notes.shape == wanted.notes.shape == (11, 5, 1, 4)
    close(activation_rows(found), activation_rows(wanted), 1e-2)
    for row in (0, 7, 10):
        alone = run(row, row + 1)
        assert torch.equal(found.words[row], alone.words[0])
        assert torch.equal(found.notes[row, ..., :3], alone.notes[0, ..., :3])


@pytest.mark.parametrize("size", [0.0, 1e-41, 1e-30, 1.0, 1e30])
def test_without_a_rotation_levels_of_fragments_are_those_of_a_division_bit_for_bit(size: float) -> None:
    x = random(3, 320) * size
    found, wanted = quantize_fragments(x, None, 1, 15), quantize_fragments_ref(x.cpu(), None, 1, 15)
    assert torch.equal(found.words[:, :, :3].cpu(), wanted.words[:, :, :3])
    assert torch.equal(found.notes[:, :, :3, :3].cpu(), wanted.notes[:, :, :3, :3])


@pytest.mark.parametrize("rotation", [4, 32, 256])
def test_butterflies_in_place_add_the_same_numbers_in_the_same_order(rotation: int) -> None:
    """What lanes exchange on NVIDIA (butterflies.rotated_span), bit by bit of an element's number."""
    x, (before, after) = random(1, 256)[0], rotation_signs(rotation, DEVICE)
    at = torch.arange(256, device=DEVICE)
    v = x * before[at % rotation]
    for stage in range(rotation.bit_length() - 1):
        is_upper = (at >> stage & 1).bool()
        other = v[at ^ (1 << stage)]
        v = torch.where(is_upper, -v, v) + other
    v = v * after[at % rotation]
    assert torch.equal(rotate_rows(x[None], None, rotation, torch.float32)[0], v)
