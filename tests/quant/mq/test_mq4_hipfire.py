"""hipfire's MQ4-G256 as hipfire defines it: the rotation, its signs, the quantizer and the bytes of a block."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from runner.errors import UnsupportedModel
from runner.quant.mq import mq4_hipfire
from runner.quant.mq.formats import MQ4, TENSOR_FORMATS
from runner.quant.mq.mq4_hipfire import MQ4_HIPFIRE, decode_blocks, encode_blocks
from runner.quant.mq.rotation import rotate, signs, unrotate
from runner.quant.mq.tensor_format import bits_per_weight

FIRST_SIGNS = "++++-++-++----+-+++++----++++++-"
SECOND_SIGNS = "+----++-++--++-+-++++-+-+----++-"


def butterfly(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rotation of 256 numbers, written as hipfire describes it: signs, strides 1 to 128, signs over 16."""
    x = x * signs(42).numpy()
    stride = 1
    while stride < 256:
        for start in range(0, 256, 2 * stride):
            a, b = x[start : start + stride].copy(), x[start + stride : start + 2 * stride].copy()
            x[start : start + stride], x[start + stride : start + 2 * stride] = a + b, a - b
        stride *= 2
    return x * signs(1042).numpy() / 16


def as_text(values: torch.Tensor) -> str:
    return "".join("+" if value > 0 else "-" for value in values.tolist())


def gaussian(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def one_block(values: list[float]) -> bytes:
    return bytes(encode_blocks(torch.tensor([values])).flatten().tolist())


def test_the_signs_are_those_of_hipfires_generator() -> None:
    first, second = signs(42), signs(1042)
    assert (as_text(first[:32]), as_text(second[:32])) == (FIRST_SIGNS, SECOND_SIGNS)
    assert (first.sum().item(), second.sum().item()) == (10, -6)
    assert len(first) == len(second) == 256


@pytest.mark.parametrize("place", [0, 1, 2, 100, 255])
def test_a_unit_vector_becomes_signs_over_16_as_in_the_butterfly(place: int) -> None:
    unit = np.zeros(256)
    unit[place] = 1
    expected = butterfly(unit)
    assert set(np.abs(expected)) == {1 / 16}
    assert np.array_equal(rotate(torch.from_numpy(unit), 256).numpy(), expected)


@settings(max_examples=30)
@given(st.lists(st.integers(-1000, 1000), min_size=256, max_size=256))
def test_the_rotation_equals_the_butterfly_and_is_undone(values: list[int]) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    # Sums of such integers are exact in float32, whatever their order.
    assert np.array_equal(rotate(x, 256).numpy(), butterfly(np.array(values, np.float64)).astype(np.float32))
    assert torch.equal(unrotate(rotate(x, 256), 256), x)


def test_a_product_is_the_same_in_the_rotated_basis() -> None:
    w, x = gaussian(8, 1024).double(), gaussian(1, 1024, seed=1).double()[0]
    assert torch.allclose(rotate(w, 256) @ rotate(x, 256), w @ x, rtol=1e-12, atol=1e-12)


def test_a_group_of_0_to_15_has_these_bytes() -> None:
    expected = struct.pack("<ff", 1.0, 0.0) + bytes([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]) * 16
    assert one_block([float(place % 16) for place in range(256)]) == expected


def test_a_group_with_negative_weights_starts_at_its_minimum() -> None:
    # min -3, max 4.5, scale 0.5: -3 is 0, 4.5 is 15, 0 is 6, and the halves between two levels go up.
    values = [-3.0, 4.5, 0.0, 0.25] + [-2.75] * 252
    expected = struct.pack("<ff", 0.5, -3.0) + bytes([0xF0, 0x76]) + bytes([0x11]) * 126
    assert one_block(values) == expected


@pytest.mark.parametrize("value", [0.0, 2.5, -2.5, 3e38, -1e-45])
def test_a_constant_group_has_scale_one_and_comes_back_exactly(value: float) -> None:
    block = one_block([value] * 256)
    assert block == struct.pack("<ff", 1.0, value) + bytes(128)
    assert decode_blocks(torch.frombuffer(bytearray(block), dtype=torch.uint8)[None]).unique().tolist() == [
        np.float32(value)
    ]


def test_huge_weights_are_kept_while_their_range_is_finite() -> None:
    values = [1.5e38, -1.5e38] * 128
    decoded = decode_blocks(encode_blocks(torch.tensor([values])))
    assert torch.allclose(decoded, torch.tensor([values]), rtol=1e-6)


def test_a_scale_that_underflows_gives_what_hipfires_saturating_conversion_gives() -> None:
    smallest = float(np.float32(1e-45))
    # The range is one subnormal step: a fifteenth of it is 0, 0 * infinity is 0, infinity is 15.
    block = one_block([0.0, smallest] + [0.0] * 254)
    assert block == struct.pack("<ff", 0.0, 0.0) + bytes([0xF0]) + bytes(127)
    # With a subnormal scale the reciprocal is infinite: all but the minimum are 15.
    block = one_block([0.0, 15 * smallest, 7 * smallest, 0.0] + [0.0] * 252)
    assert block == struct.pack("<ff", smallest, 0.0) + bytes([0xF0, 0x0F]) + bytes(126)


@pytest.mark.parametrize("values", [[float("nan")], [float("inf")], [-float("inf")], [3e38, -3e38]])
def test_weights_without_a_finite_range_are_refused(values: list[float]) -> None:
    with pytest.raises(UnsupportedModel, match="NaN, infinite, or too large"):
        one_block(values + [0.0] * (256 - len(values)))


def test_a_matrix_is_stored_row_by_row_in_its_declared_parts() -> None:
    w = gaussian(3, 512)
    form = TENSOR_FORMATS["mq4-hipfire"]
    encoded = form.encode(w)
    (part,) = form.parts((3, 512)).values()
    assert encoded.parts["packed"].shape == part.shape == (3, 2, 136)
    assert encoded.parts["packed"].dtype == part.dtype
    assert bytes(encoded.parts["packed"][1, 1].tolist()) == one_block(w[1, 256:].tolist())
    assert (form.unit, bits_per_weight(form, (3, 512))) == (256, 4.25)


def test_a_matrix_that_is_worked_on_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    w = gaussian(5, 512)
    whole = MQ4_HIPFIRE.encode(w)
    decoded = MQ4_HIPFIRE.decode(whole, (5, 512))
    monkeypatch.setattr(mq4_hipfire, "_CHUNK", 3)
    assert torch.equal(MQ4_HIPFIRE.encode(w).parts["packed"], whole.parts["packed"])
    assert torch.equal(MQ4_HIPFIRE.decode(whole, (5, 512)), decoded)


def test_decoding_is_never_further_off_than_half_a_step() -> None:
    w = gaussian(64, 1024)
    encoded = MQ4_HIPFIRE.encode(w)
    step = encoded.parts["packed"].view(-1, 136)[:, :4].contiguous().view(torch.float32)
    error = (MQ4_HIPFIRE.decode(encoded, (64, 1024)) - w).abs().view(-1, 256)
    assert (error <= 0.5001 * step).all()


def test_encoding_what_was_decoded_gives_the_same_nibbles() -> None:
    encoded = MQ4_HIPFIRE.encode(gaussian(16, 512))
    again = MQ4_HIPFIRE.encode(MQ4_HIPFIRE.decode(encoded, (16, 512)))
    assert torch.equal(again.parts["packed"][..., 8:], encoded.parts["packed"][..., 8:])


def test_mq4_has_about_half_the_error_of_hipfires_on_gaussian_weights() -> None:
    w = rotate(gaussian(256, 4096, seed=3), 256)
    errors = [(form.decode(form.encode(w), (256, 4096)) - w).square().mean().item() for form in (MQ4_HIPFIRE, MQ4)]
    assert errors[1] / errors[0] == pytest.approx(0.47, abs=0.02)
    # A group of 256 spans 5.6 standard deviations, so a step is 0.375: 0.375^2 / 12.
    assert errors[0] == pytest.approx(0.0118, rel=0.05)
