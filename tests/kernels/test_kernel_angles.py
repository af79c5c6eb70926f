"""Rotary angles against float64, far into a context too."""

from __future__ import annotations

import pytest
import torch
from attention_cases import DEVICE

from runner.backends.native.rope import rotations
from runner.kernels.angles import angles, angles_ref


@pytest.mark.parametrize("half", [64, 48, 1, 0])
@pytest.mark.parametrize(("start", "dtype"), [(0, torch.int32), (131_000, torch.int64)])
def test_they_are_those_of_the_position_on_the_device(half: int, start: int, dtype: torch.dtype) -> None:
    frequencies = 500_000.0 ** -torch.linspace(0, 0.98, half, device=DEVICE)
    place = torch.tensor([start], dtype=dtype, device=DEVICE)
    found = angles(place, 5, frequencies, 1.25)
    # What is computed is the float32 product's cosine: an angle of 131,000 has steps of 0.008.
    product = torch.outer(start + torch.arange(5, device=DEVICE), frequencies).double()
    for one, wanted in zip(found, (product.cos(), product.sin()), strict=True):
        assert one.shape == (5, half)
        torch.testing.assert_close(one.double(), 1.25 * wanted, rtol=0, atol=3e-7)
    for one, other in zip(found, rotations(start + torch.arange(5.0, device=DEVICE), frequencies, 1.25), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=3e-7)


def test_the_reference_computes_in_the_type_of_the_frequencies() -> None:
    place = torch.tensor([7], device=DEVICE)
    found = angles_ref(place, 3, torch.tensor([0.5], dtype=torch.float64, device=DEVICE), 1.0)
    assert [one.dtype for one in found] == [torch.float64, torch.float64]
    torch.testing.assert_close(found[0][:, 0], torch.tensor([3.5, 4.0, 4.5], device=DEVICE).double().cos())
