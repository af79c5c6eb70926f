"""The block rotation that spreads outliers before quantizing: signs, Walsh-Hadamard, signs (hipfire's, with its signs).

R = D2 H D1 / sqrt(size) on blocks of the last dimension. R is orthogonal, so dot(R w, R x) = dot(w, x): weights are
rotated once, when they are quantized, and activations at run time. It knows nothing of formats or of models.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import torch
from torch import Tensor

LARGEST: Final = 256
_FIRST_SEED: Final = 42
_SECOND_SEED: Final = 1042


def rotation_size(k: int) -> int:
    """The size of the blocks that a dimension of `k` is rotated in: the largest power of two up to 256 in it."""
    return min(LARGEST, k & -k)


def rotate(x: Tensor, size: int) -> Tensor:
    """R x for each block of `size` elements of the last dimension; x [..., K], K whole blocks, float32 or wider."""
    return _blocks(x, rotation_matrix(size, x.device, x.dtype).T, size)


def unrotate(x: Tensor, size: int) -> Tensor:
    """R^T x: the inverse of `rotate`."""
    return _blocks(x, rotation_matrix(size, x.device, x.dtype), size)


def _blocks(x: Tensor, right: Tensor, size: int) -> Tensor:
    # As one matrix: with strided blocks, as a transposed matrix has, the product can take seconds for milliseconds.
    blocks: Tensor = x.reshape(-1, size) @ right
    return blocks.view(x.shape)


@cache
def rotation_matrix(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """R [size, size]; size a power of two up to 256. A smaller block takes the first of the 256 signs."""
    assert size in (2**power for power in range(9)), size
    hadamard = torch.ones(1, 1, dtype=torch.float64)
    while len(hadamard) < size:
        hadamard = torch.cat((torch.cat((hadamard, hadamard), 1), torch.cat((hadamard, -hadamard), 1)))
    first, second = (signs[:size].double() for signs in first_and_second_signs())
    matrix: Tensor = second[:, None] * hadamard * first[None, :] / size**0.5
    return matrix.to(device=device, dtype=dtype)


def first_and_second_signs() -> tuple[Tensor, Tensor]:
    """The signs of D1 and of D2, [256] float32 each."""
    return signs(_FIRST_SEED), signs(_SECOND_SEED)


def signs(seed: int) -> Tensor:
    """The 256 signs [256] float32 of hipfire's generator: +1 where bit 16 of its state is set, else -1."""
    state, found = seed, []
    for _ in range(LARGEST):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        found.append(1.0 if state >> 16 & 1 else -1.0)
    return torch.tensor(found)
