"""The block rotation: hipfire's signs, orthogonal, the butterflies it stands for, and what it does to outliers."""

from __future__ import annotations

import pytest
import torch

from runner.quant.mq.rotation import rotate, rotation_size, signs, unrotate


def gaussian(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def butterflies(x: torch.Tensor) -> torch.Tensor:
    """hipfire's way: signs, strides 1, 2, 4 ... 128, signs / 16."""
    values = (x * signs(42).double()).tolist()
    stride = 1
    while stride < 256:
        for start in range(0, 256, 2 * stride):
            for i in range(start, start + stride):
                values[i], values[i + stride] = values[i] + values[i + stride], values[i] - values[i + stride]
        stride *= 2
    return torch.tensor(values, dtype=torch.float64) * signs(1042).double() / 16


def test_it_is_hipfires_butterflies() -> None:
    x = gaussian(256)
    assert torch.allclose(rotate(x, 256), butterflies(x), atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 32, 64, 256])
def test_the_inverse_undoes_it_and_products_stay(size: int) -> None:
    x, w = gaussian(3, 512), gaussian(5, 512)
    assert torch.allclose(unrotate(rotate(x, size), size), x, atol=1e-12)
    assert torch.allclose(rotate(w, size) @ rotate(x, size).T, w @ x.T, atol=1e-10)


@pytest.mark.parametrize(("k", "size"), [(4096, 256), (896, 128), (576, 64), (2880, 64), (172, 4), (7, 1), (256, 256)])
def test_the_largest_power_of_two_that_divides_k(k: int, size: int) -> None:
    assert rotation_size(k) == size


def test_a_transposed_matrix_is_rotated_as_its_copy_is() -> None:
    w = torch.randn(96, 160, generator=torch.Generator().manual_seed(1))
    assert torch.equal(rotate(w.T, 32), rotate(w.T.contiguous(), 32))
    assert torch.equal(unrotate(w.T, 32), unrotate(w.T.contiguous(), 32))


def test_an_outlier_is_spread_over_its_block() -> None:
    x = torch.zeros(512)
    x[3] = 16.0
    rotated = rotate(x, 256)
    assert torch.allclose(rotated[:256].abs(), torch.ones(256))
    assert not rotated[256:].any()
