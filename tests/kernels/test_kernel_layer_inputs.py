"""Inputs of layers, of a product and rows of a table, against float64; a row has the same bits in every batch."""

from __future__ import annotations

import pytest
import torch
from kernel_data import DEVICE, close, random

from runner.kernels.layer_inputs import layer_inputs, layer_inputs_ref


@pytest.mark.parametrize(("m", "n_layers", "size"), [(1, 3, 256), (5, 2, 12), (17, 1, 100)])
def test_they_equal_float64(m: int, n_layers: int, size: int) -> None:
    made, rows, gain = random(m, n_layers * size), random(m, n_layers * size, seed=1), random(size, seed=2)
    found = layer_inputs(made, rows, gain, 0.3)
    close(found, layer_inputs_ref(made.double(), rows, gain, 0.3))
    assert (found[:, :size] - rows[:, :size] * 0.5**0.5).abs().max() > 0.1  # both have a share


def test_a_row_has_the_same_bits_in_every_batch_and_the_type_of_the_product() -> None:
    made, rows = random(16, 96).to(torch.bfloat16), random(16, 96, seed=1)
    gain = torch.ones(48, device=DEVICE)
    every = layer_inputs(made, rows, gain, 1e-6)
    assert every.dtype == torch.bfloat16
    for part in (slice(0, 1), slice(3, 8), slice(9, 16)):
        assert torch.equal(layer_inputs(made[part].contiguous(), rows[part].contiguous(), gain, 1e-6), every[part])
