"""The grids of mq4, mq4-uniform, mq6 and mq8: packing, decoding as it is documented, and how well scales are chosen."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from runner.quant.mq.formats import MQ4, MQ4_UNIFORM, MQ6, MQ8, TENSOR_FORMATS
from runner.quant.mq.grid import GridFormat, pack, scale_values, unpack
from runner.quant.mq.tensor_format import bits_per_weight

FORMS = [form for form in TENSOR_FORMATS.values() if isinstance(form, GridFormat)]
BY_NAME = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def relative_error(form: GridFormat, w: torch.Tensor) -> float:
    found = form.decode(form.encode(w), (w.shape[0], w.shape[1]))
    return float((found - w).double().square().mean() / w.double().square().mean())


@pytest.mark.parametrize("group_size", [16, 32, 64])
@pytest.mark.parametrize("bits", [4, 6, 8])
def test_unpacking_gives_back_what_was_packed(bits: int, group_size: int) -> None:
    top = 255 if bits == 8 else 2**bits
    index = torch.randint(0, top, (5, 3 * group_size), generator=torch.Generator().manual_seed(bits)).to(torch.uint8)
    packed = pack(index, bits, group_size)
    assert packed.dtype == torch.int32
    assert packed.shape == (5, group_size * bits // 32, 3)
    assert torch.equal(unpack(packed, bits, group_size), index)


def test_a_nibble_lies_where_the_layout_says() -> None:
    index = torch.zeros(1, 64, dtype=torch.uint8)
    index[0, 32 + 4 * 2 + 1] = 5  # group 1, quad 2, element 1: the low nibble of byte 1 of word 2
    index[0, 4 * 6 + 3] = 9  # group 0, quad 6, element 3: the high nibble of byte 3 of word 2
    packed = pack(index, 4, 32)
    assert packed[0, 2, 1] == 5 << 8
    assert packed[0, 2, 0] == torch.tensor(9 << 28, dtype=torch.int64).to(torch.int32)
    assert int((packed != 0).sum()) == 2


@BY_NAME
def test_decoding_is_scale_times_level(form: GridFormat) -> None:
    w = gaussian(4, 96) * 3e-3
    encoded = form.encode(w)
    exponent = encoded.parameters["scale_exponent"]
    index, codes = unpack(encoded.parts["packed"], form.bits, form.group_size), encoded.parts["scale"]
    decoded = form.decode(encoded, (4, 96)).double()
    for row, column in [(0, 0), (1, 31), (2, 32), (3, 95)]:
        code = int(codes[row, column // form.group_size])
        scale = (1 + (code & 15) / 16) * 2.0 ** (exponent + (code >> 4 & 7)) * (-1 if code & 128 else 1)
        assert float(decoded[row, column]) == scale * form.levels[int(index[row, column])]


def test_scales_are_the_bits_of_float32() -> None:
    values = scale_values(-9, torch.device("cpu"))
    code = 0b0101_0011
    bits = torch.tensor((code << 19) + ((-9 + 127) << 23), dtype=torch.int32)
    assert values[code] == bits.view(torch.float32)
    assert torch.equal(values[128:], -values[:128])
    assert bool((values[:128].diff() > 0).all())


@BY_NAME
def test_the_largest_code_just_reaches_the_largest_weight(form: GridFormat) -> None:
    for step in range(64):
        w = torch.tensor([[0.1, -(2.0 ** (step / 16))]])
        exponent = form.scale_exponent(w)
        longest, largest = [-form.levels[0] * scale_values(exponent - less, w.device)[127] for less in (1, 0)]
        assert longest < w.abs().max() <= largest
        assert form.scale_exponent(w, 8.0) == exponent + 3


@BY_NAME
def test_weights_of_the_largest_scale_come_back_exactly(form: GridFormat) -> None:
    levels = torch.tensor(form.levels, dtype=torch.float32)
    pick = torch.randint(0, len(levels), (4, 64), generator=torch.Generator().manual_seed(5))
    pick[:, ::32] = 0
    w = levels[pick] * 31 / 16 * 2.0**-4
    encoded = form.encode(w)
    assert bool((encoded.parts["scale"] & 127 == 127).all())
    assert torch.equal(form.decode(encoded, (4, 64)), w)


@BY_NAME
def test_the_level_is_the_nearest_one(form: GridFormat) -> None:
    x = torch.linspace(-140, 140, 2801) * (1 if form.levels[0] == -127 else -form.levels[0] / 127) + 1e-3
    levels = torch.tensor(form.levels, dtype=torch.float32)
    best = (x[:, None] - levels).abs().amin(1)
    assert torch.allclose((x - form.nearest(x)).abs(), best, atol=1e-4)


@pytest.mark.parametrize(("form", "error"), [(MQ4, 0.00542), (MQ4_UNIFORM, 0.00656), (MQ6, 0.000446), (MQ8, 2.83e-5)])
def test_the_error_on_gaussian_weights_is_that_of_the_format(form: GridFormat, error: float) -> None:
    assert relative_error(form, gaussian(256, 2048)) == pytest.approx(error, rel=0.02)


@BY_NAME
def test_a_wider_search_for_scales_gains_little(form: GridFormat) -> None:
    w = gaussian(64, 1024, seed=1)
    wide = dataclasses.replace(form, search=(-24, 24))
    assert relative_error(form, w) < 1.03 * relative_error(wide, w)


def test_the_sign_of_the_scale_mostly_turns_the_long_side_to_the_largest_weight() -> None:
    groups = gaussian(2000, 32, seed=4)
    codes = MQ4.choose_scales(groups, MQ4.scale_exponent(groups))
    is_positive = groups.gather(1, groups.abs().argmax(1, keepdim=True))[:, 0] > 0
    assert float(((codes >= 128) == is_positive).float().mean()) > 0.6


@BY_NAME
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_sizes_do_not_matter(form: GridFormat, size: float) -> None:
    w = gaussian(8, 64, seed=2)
    assert relative_error(form, w * size) == pytest.approx(relative_error(form, w), rel=0.1)


@BY_NAME
def test_zeros_stay_almost_zero_beside_large_weights(form: GridFormat) -> None:
    w = torch.zeros(2, 128)
    w[0, :32] = gaussian(32)
    decoded = form.decode(form.encode(w), (2, 128))
    assert float(decoded[1].abs().max()) < 1e-3 * float(w.abs().max())
    zeros = form.decode(form.encode(torch.zeros(2, 64)), (2, 64))
    assert float(zeros.abs().max()) < 1e-30


def test_importance_moves_the_error_to_where_it_matters_less() -> None:
    groups = gaussian(2000, 32, seed=3)
    importance = torch.ones(32)
    importance[:4] = 100.0
    exponent = MQ4.scale_exponent(groups)

    def weighted(codes: torch.Tensor) -> float:
        scale = scale_values(exponent, groups.device)[codes.int()][:, None]
        return float(((MQ4.nearest(groups / scale) * scale - groups).square() * importance).sum())

    assert weighted(MQ4.choose_scales(groups, exponent, importance)) < weighted(MQ4.choose_scales(groups, exponent))


@BY_NAME
def test_bits_count_scales(form: GridFormat) -> None:
    assert bits_per_weight(form, (128, 256)) == form.bits + 8 / form.group_size
