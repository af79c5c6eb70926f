"""What the tests of kernels share: the device, seeded numbers, and comparing with float64."""

from __future__ import annotations

import torch
from torch import Tensor

from runner.kernels.grids import FORMATS, words_of_group
from runner.kernels.pack import packed_matrix
from runner.kernels.values import PackedMatrix

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def packed(form: str, n: int, k: int, rotation: int = 1, seed: int = 0) -> PackedMatrix:
    """A random matrix in a format, as if its columns were rotated already."""
    w = torch.randn(n, k, generator=torch.Generator().manual_seed(seed)) * 0.3
    return packed_matrix(FORMATS[form].encode(w), FORMATS[form], rotation, DEVICE)


def scrambled(form: str, n: int, k: int, rotation: int = 1, seed: int = 0) -> PackedMatrix:
    """A matrix of any bits at all: every level, and scales of every exponent and both signs."""
    bits = torch.Generator().manual_seed(seed)
    shape = (n, words_of_group(FORMATS[form]), k // 32)
    return PackedMatrix(
        format=form,
        packed=torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, generator=bits).to(DEVICE),
        scale=torch.randint(0, 256, (n, k // 32), dtype=torch.uint8, generator=bits).to(DEVICE),
        row_scale=torch.rand(n, generator=bits).to(DEVICE) * 2.0**-10,
        rotation=rotation,
    )


def close(found: Tensor, wanted: Tensor, tolerance: float = 2e-6) -> None:
    """Within float32's error of a sum, relative to the largest element."""
    assert found.shape == wanted.shape
    error = (found.double() - wanted.double()).abs().max() / wanted.double().abs().max().clamp(min=1e-30)
    assert error < tolerance, f"{error:.2e}"
