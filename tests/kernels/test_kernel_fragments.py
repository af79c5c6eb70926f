"""The order of tensor cores: there and back, place by place, for weights and for activations."""

from __future__ import annotations

import pytest
import torch
from kernel_data import DEVICE, packed, random, scrambled
from torch import Tensor

from runner.kernels.fragments import (
    BLOCK,
    FORMATS_IN_FRAGMENTS,
    MAGIC,
    activation_rows,
    activations_ref,
    can_be_fragments,
    rows_of_block,
    to_fragments,
    to_planes,
)
from runner.kernels.lay_out import lay_out
from runner.kernels.pack import dequantize_ref
from runner.kernels.values import moved

SHAPES = [(16, 64, 0), (37, 192, 0), (1, 64, 0), (54, 320, 27), (16, 64, 8), (2, 128, 1)]  # N, K, pair


@pytest.mark.parametrize("form", FORMATS_IN_FRAGMENTS)
@pytest.mark.parametrize(("n", "k", "pair"), SHAPES)
def test_planes_come_back_bit_for_bit(form: str, n: int, k: int, pair: int) -> None:
    planes = scrambled(form, n, k, rotation=32)
    w = to_fragments(planes, pair)
    assert (w.layout, w.pair, w.shape, w.rotation) == ("fragments", pair, (n, k), 32)
    assert torch.equal(dequantize_ref(w), dequantize_ref(planes))
    back = to_planes(w)
    assert (back.layout, back.pair, back.shape, back.high) == ("planes", 0, (n, k), None)
    for name in ("packed", "scale", "row_scale"):
        assert torch.equal(getattr(back, name), getattr(planes, name))


@pytest.mark.parametrize("form", FORMATS_IN_FRAGMENTS)
@pytest.mark.parametrize(("n", "k", "pair"), [*SHAPES, (101, 1088, 0), (54, 576, 27)])
def test_the_kernel_brings_the_same_bits_into_the_same_order(form: str, n: int, k: int, pair: int) -> None:
    planes = moved(scrambled(form, n, k, rotation=32), DEVICE)
    found, wanted = lay_out(planes, pair), to_fragments(planes, pair)
    assert (found.layout, found.pair, found.shape, found.rotation) == ("fragments", pair, (n, k), 32)
    for name in ("packed", "scale", "high", "largest", "row_scale"):
        one, other = getattr(found, name), getattr(wanted, name)
        assert one is other is None or torch.equal(one, other), name
        assert one is None or one.dtype == other.dtype


@pytest.mark.parametrize("form", FORMATS_IN_FRAGMENTS)
@pytest.mark.parametrize(("n", "pair"), [(37, 0), (54, 27)])
def test_every_word_lies_where_the_lane_that_needs_it_looks(form: str, n: int, pair: int) -> None:
    planes, n_pairs = scrambled(form, n, 192), 3
    w = to_fragments(planes, pair)
    n_tiles = 4 if pair else 3
    assert w.packed.shape == (n_tiles, n_pairs, 8, 4, 4)
    assert w.scale.shape == (n_tiles, n_pairs, 8, 4)
    words, codes = planes.packed.tolist(), planes.scale.tolist()
    for t in range(n_tiles):
        for g in range(8):
            for r in range(4):
                place = 16 * t + 8 * (r % 2) + g
                row = place if not pair else 8 * t + g + (r % 2) * pair
                is_there = row < n if not pair else 8 * t + g < pair
                for p in range(n_pairs):
                    assert w.scale[t, p, g, r] == (codes[row][2 * p + r // 2] if is_there else 0)
                    for j in range(4):
                        word = words[row][j][2 * p + r // 2] if is_there else 0
                        found = int(w.packed[t, p, g, j, r])
                        assert nibbles(found) == (in_order(nibbles(word)) if form == "mq4" else nibbles(word))


def nibbles(word: int) -> list[int]:
    return [(word >> (4 * i)) & 15 for i in range(8)]


def in_order(of_bytes: list[int]) -> list[int]:
    """Low and high nibbles of four bytes as the four low ones and then the four high ones."""
    return of_bytes[0::2] + of_bytes[1::2]


def test_the_top_bits_of_mq6_lie_beside_the_others() -> None:
    planes = scrambled("mq6", 16, 64)
    w = to_fragments(planes)
    assert w.high is not None
    assert w.high.dtype == torch.int16
    assert w.high.shape == w.packed.shape
    for g, j, r in [(0, 0, 0), (3, 2, 1), (7, 3, 2), (5, 1, 3)]:
        row, group = 8 * (r % 2) + g, r // 2
        bits = int(w.high[0, 0, g, j, r])
        for i in range(4):
            low_quad, high_quad = (int(planes.packed[row, 4 + half, group]) for half in range(2))
            assert (bits >> (2 * i)) & 3 == (low_quad >> (8 * i + 2 * j)) & 3
            assert (bits >> (8 + 2 * i)) & 3 == (high_quad >> (8 * i + 2 * j)) & 3


def test_it_takes_no_more_memory_than_the_rows_that_fill_the_last_tile() -> None:
    for form in FORMATS_IN_FRAGMENTS:
        assert to_fragments(packed(form, 32, 128)).nbytes == packed(form, 32, 128).nbytes


def test_what_cannot_be_in_this_order_says_so() -> None:
    assert can_be_fragments(packed("mq4", 8, 64))
    assert not can_be_fragments(packed("mq4", 8, 96))  # an odd number of groups
    assert not can_be_fragments(packed("mq8", 8, 64))
    assert not can_be_fragments(to_fragments(packed("mq4", 8, 64)))
    for w, pair in ((packed("mq8", 8, 64), 0), (packed("mq4", 8, 64), 3), (packed("mq4", 9, 64), 4)):
        with pytest.raises(AssertionError):
            to_fragments(w, pair)


# --- activations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 2, 3, 8, 9, 16, 17])
def test_rows_lose_no_more_than_half_a_level_of_their_64(m: int) -> None:
    x = random(m, 192)
    found = activations_ref(x, zero=15)
    assert found.shape == (m, 192)
    assert found.words.shape == (-(-m // BLOCK), 3, rows_of_block(m), 4, 4)
    assert found.notes.shape == (-(-m // BLOCK), 3, rows_of_block(m), 4)
    unit = x.unflatten(1, (3, 64)).abs().amax(2) / 127
    error = (activation_rows(found) - x).unflatten(1, (3, 64)).abs().amax(2)
    assert bool((error <= 0.5001 * unit).all())


def test_a_block_has_room_for_a_power_of_two_of_rows_and_8_at_most() -> None:
    assert [rows_of_block(m) for m in (1, 2, 3, 4, 5, 8, 9, 16, 64)] == [1, 2, 4, 4, 8, 8, 8, 8, 8]


@pytest.mark.parametrize("zero", [0, 15, 63])
def test_every_level_and_note_lies_where_it_is_said_to(zero: int) -> None:
    x = random(11, 128)
    found = activations_ref(x, zero)
    levels: Tensor = torch.round(x.unflatten(1, (2, 64)) / found_scale(x)[:, :, None]).int()
    bytes_of = found.words.contiguous().view(torch.int8).view(2, 2, 8, 4, 4, 4)  # b, p, n, t, 2 e + half, i
    for row, p, e, half, t, i in [(0, 0, 0, 0, 0, 0), (3, 1, 1, 0, 2, 3), (8, 0, 1, 1, 3, 2), (10, 1, 0, 1, 1, 0)]:
        element = 32 * e + 16 * half + 4 * t + i
        assert bytes_of[row // 8, p, row % 8, t, 2 * e + half, i] == levels[row, p, element]
    for row in (0, 7, 8, 10):
        notes = found.notes[row // 8, :, row % 8]
        assert torch.equal(notes[:, 0], found_scale(x)[row])
        assert torch.equal(notes[:, 1:3], MAGIC + zero * levels[row].unflatten(1, (2, 32)).sum(2).float())


def found_scale(x: Tensor) -> Tensor:
    return x.unflatten(1, (-1, 64)).abs().amax(2) / 127
