"""MXFP4, the 4-bit weights of gpt-oss's checkpoints: 32 weights share a power of two (OCP Microscaling Formats 1.0).

It knows bytes and numbers, nothing of tensor names.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

GROUP: Final = 32
# e2m1: a sign, two bits of exponent, one of mantissa.
LEVELS: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def decode(blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The weights [..., 32 G] of groups [..., G, 16] of bytes, the first of two weights in a byte's low half.

    scales: [..., G], e8m0: 2^(code - 127), 255 for NaN.
    """
    assert blocks.shape == (*scales.shape, GROUP // 2), (blocks.shape, scales.shape)
    values = np.take(_fours(), np.ascontiguousarray(blocks).view("<u2")).view(np.float32)
    with np.errstate(over="ignore"):  # 6 * 2^127 is infinite, which whoever reads weights refuses by name
        values *= _powers()[scales][..., None]
    return values.reshape(*scales.shape[:-1], -1)


@cache
def _fours() -> NDArray[np.complex128]:
    """By two bytes: their four levels, float32 each, as the bits of one number of that size."""
    codes = np.arange(2**16)
    levels = np.array(LEVELS, np.float32)
    fours = np.stack([levels[codes >> shift & 15] for shift in (0, 4, 8, 12)], axis=-1)
    numbers: NDArray[np.complex128] = fours.view(np.complex128)[:, 0]
    return numbers


@cache
def _powers() -> NDArray[np.float32]:
    """By code of a scale: its value. The smallest is below the normal numbers, and exact all the same."""
    powers = np.ldexp(np.float32(1), np.arange(255) - 127)
    return np.append(powers, np.float32(np.nan)).astype(np.float32)
