"""Weights as the kernels take them: packed matrices stay packed, all others become dense tensors on the device.

It knows names, formats and types; which layer multiplies by what is said in fused.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from runner.backends.base import LoadProgress
from runner.backends.native.loader import to_tensor
from runner.errors import BadModelFile, RunnerError
from runner.kernels.grids import FORMATS
from runner.kernels.pack import concatenate, packed_matrix
from runner.kernels.values import Matrix, PackedMatrix
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.weights import Weights
from runner.types import CancelToken

T = TypeVar("T")


class MatrixReader:
    """Reads the weights of a model onto the device, each once, in the order in which the layers ask for them.

    on_progress gets the fraction of the parameters that were read. Methods raise BadModelFile for a file that cannot be
    read, RunnerError when cancelled, torch.OutOfMemoryError.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        dtype: torch.dtype,
        device: torch.device,
        on_progress: LoadProgress,
        cancel: CancelToken,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.nbytes = 0
        self._weights = weights
        self._on_progress = on_progress
        self._cancel = cancel
        self._left = {name: math.prod(shape) for name, shape in weights.shapes.items()}
        self._total = sum(self._left.values())

    def has(self, name: str) -> bool:
        return name in self._weights.shapes

    def matrix(self, name: str) -> Matrix:
        """A matrix as it is stored if there is a kernel for its format, else dense."""
        weights = self._weights
        if isinstance(weights, PackedWeights):
            record = weights.manifest.tensors[name]
            if record.format in FORMATS:
                encoded = self._read(name, weights.read_encoded)
                return self._counted(packed_matrix(encoded, FORMATS[record.format], record.input_rotation, self.device))
        return self._counted(self._dense(name, self.dtype))

    def vector(self, name: str) -> Tensor:
        """A gain, a bias or the like, in float32 whatever the file has."""
        found = self._dense(name, torch.float32)
        self.nbytes += found.nbytes
        return found

    def optional_vector(self, name: str) -> Tensor | None:
        return self.vector(name) if self.has(name) else None

    def _dense(self, name: str, dtype: torch.dtype) -> Tensor:
        return to_tensor(self._read(name, self._weights.read)).to(device=self.device, dtype=dtype).contiguous()

    def _read(self, name: str, read: Callable[[str], T]) -> T:
        if self._cancel.is_cancelled:
            raise RunnerError("Loading was cancelled.")
        try:
            found = read(name)
        except OSError as error:
            raise BadModelFile(f"Tensor {name!r} cannot be read: {error}.", hint="Fetch the model again.") from error
        self._left.pop(name)  # a KeyError here is a layer that reads a tensor twice
        self._on_progress(1 - sum(self._left.values()) / self._total)
        return found

    def _counted(self, matrix: Matrix) -> Matrix:
        self.nbytes += matrix.nbytes
        return matrix

    def require_all_read(self) -> None:
        assert not self._left, sorted(self._left)


@dataclass(frozen=True, kw_only=True)
class Product:
    """Matrices that read one input, in the order of their rows, joined where their formats agree; biases [N] each."""

    parts: tuple[Matrix, ...]
    biases: tuple[Tensor | None, ...]

    @property
    def num_rows(self) -> int:
        return sum(part.shape[0] for part in self.parts)


def join(matrices: Sequence[Matrix], biases: Sequence[Tensor | None]) -> Product:
    """One product of them all if they are of one kind, else one of each."""
    bias = _joined_bias(matrices, biases)
    if all(isinstance(matrix, Tensor) for matrix in matrices):
        return Product(parts=(torch.cat([one for one in matrices if isinstance(one, Tensor)]),), biases=(bias,))
    packed = [matrix for matrix in matrices if isinstance(matrix, PackedMatrix)]
    if len(packed) == len(matrices) and len({(one.format, one.rotation) for one in packed}) == 1:
        return Product(parts=(concatenate(packed),), biases=(bias,))
    return Product(parts=tuple(matrices), biases=tuple(biases))


def _joined_bias(matrices: Sequence[Matrix], biases: Sequence[Tensor | None]) -> Tensor | None:
    if all(bias is None for bias in biases):
        return None
    device = next(bias.device for bias in biases if bias is not None)
    filled = [
        torch.zeros(matrix.shape[0], device=device) if bias is None else bias
        for matrix, bias in zip(matrices, biases, strict=True)
    ]
    return torch.cat(filled)
