"""What a weight format of the packed models is: a matrix to stored parts and back, in plain torch.

One format a file; `formats.py` names them all. A format sees one matrix in the basis that it is stored in: which
rotation that is, and which tensor gets which format, are the recipe's business (recipe.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Part:
    """One stored tensor of a format: `<name>.<suffix>`, its type and shape."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        size = self.dtype.itemsize
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A matrix in a format. parts: by suffix ("packed", "scale"). parameters: what decoding needs besides, for the
    manifest: small numbers by name."""

    parts: Mapping[str, Tensor]
    parameters: Mapping[str, int]


class TensorFormat(Protocol):
    """name: in recipes and manifests. unit: K must be a multiple of it."""

    @property
    def name(self) -> str: ...

    @property
    def unit(self) -> int: ...

    @property
    def parameters(self) -> Mapping[str, range]:
        """The parameters that an encoded matrix has, and the values that each can have."""
        ...

    def parts(self, shape: tuple[int, int]) -> Mapping[str, Part]:
        """The stored parts of a matrix [N, K], by suffix, in storage order."""
        ...

    def encode(self, w: Tensor) -> Encoded:
        """w [N, K] float32, rounded to the format without calibration."""
        ...

    def decode(self, encoded: Encoded, shape: tuple[int, int]) -> Tensor:
        """The values [N, K] float32, exactly as a kernel computes with them."""
        ...


def bits_per_weight(form: TensorFormat, shape: tuple[int, int]) -> float:
    """Stored bits of a matrix [N, K] over its weights, scales included."""
    return 8 * sum(part.nbytes for part in form.parts(shape).values()) / (shape[0] * shape[1])
