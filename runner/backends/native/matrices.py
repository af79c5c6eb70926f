"""Weights as the kernels take them: packed matrices stay packed, all others become dense tensors on the device.

It knows names, formats and types; which layer multiplies by what is said in fused.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import torch
from torch import Tensor

from runner.backends.native.loader import to_tensor
from runner.backends.native.upload import Stopped, Upload
from runner.errors import BadModelFile, loading_cancelled
from runner.kernels.grids import FORMATS
from runner.kernels.pack import concatenate, empty_matrix, rows_of
from runner.kernels.values import Matrix, PackedMatrix
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.safetensors_file import StoredTensor
from runner.quant.weights import SafetensorsWeights, Weights
from runner.types import CancelToken


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """What matrices must share to be one. format "" is dense. rotation: see PackedMatrix."""

    format: str
    rotation: int
    num_columns: int


class MatrixReader:
    """Reads the weights of a model onto the device, each once, in the order in which the layers ask for them.

    order: the names as they will be asked for, as far as that is known: they are read ahead of that (upload.py).
    on_progress gets the fraction of the parameters that were read. Methods raise BadModelFile for a file that cannot be
    read, RunnerError when cancelled, torch.OutOfMemoryError. A context manager: leaving it ends the reading.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        dtype: torch.dtype,
        device: torch.device,
        on_progress: Callable[[float], None],
        cancel: CancelToken,
        order: Sequence[str] = (),
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.nbytes = 0
        self._weights = weights
        self._on_progress = on_progress
        self._cancel = cancel
        self._left = {name: math.prod(shape) for name, shape in weights.shapes.items()}
        self._n_left = self._total = sum(self._left.values())
        self._stored = {name: stored for name in (order or weights.shapes) if (stored := _stored(weights, name))}
        self._upload = Upload(
            {_key(name, suffix): part for name, parts in self._stored.items() for suffix, part in parts.items()},
            device,
            lambda: cancel.is_cancelled,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._upload.close()

    def has(self, name: str) -> bool:
        return name in self._weights.shapes

    def matrix(self, name: str) -> Matrix:
        """A matrix as it is stored if there is a kernel for its format, else dense."""
        return self._joined([name], self._kind(name))

    def product(self, names: Sequence[str], biases: Sequence[str]) -> Product:
        """The matrices of those names as what one input is multiplied by, with their biases where there are such.

        Matrices of one kind are read into one.
        """
        kinds = {self._kind(name) for name in names}
        if len(kinds) == 1:
            matrix = self._joined(names, kinds.pop())
            bias = _joined_bias(self._num_rows(names), [self.optional_vector(one) for one in biases])
            return Product(parts=(matrix,), biases=(bias,))
        parts = tuple(self.matrix(name) for name in names)
        return Product(parts=parts, biases=tuple(self.optional_vector(one) for one in biases))

    def vector(self, name: str) -> Tensor:
        """A gain, a bias or the like, in float32 whatever the file has."""
        found = torch.empty(self._weights.shapes[name], dtype=torch.float32, device=self.device)
        self._read_into(name, found)
        self.nbytes += found.nbytes
        return found

    def optional_vector(self, name: str) -> Tensor | None:
        return self.vector(name) if self.has(name) else None

    def _kind(self, name: str) -> _Kind:
        columns = self._weights.shapes[name][1]
        if isinstance(self._weights, PackedWeights):
            record = self._weights.manifest.tensors[name]
            if record.format in FORMATS:
                return _Kind(format=record.format, rotation=record.input_rotation, num_columns=columns)
        return _Kind(format="", rotation=1, num_columns=columns)

    def _num_rows(self, names: Sequence[str]) -> list[int]:
        return [self._weights.shapes[name][0] for name in names]

    def _joined(self, names: Sequence[str], kind: _Kind) -> Matrix:
        """The rows of matrices of one kind, in one allocation."""
        rows = self._num_rows(names)
        if kind.format:
            assert isinstance(self._weights, PackedWeights)
            matrix: Matrix = empty_matrix(
                FORMATS[kind.format], (sum(rows), kind.num_columns), kind.rotation, self.device
            )
        else:
            matrix = torch.empty(sum(rows), kind.num_columns, dtype=self.dtype, device=self.device)
        start = 0
        for name, count in zip(names, rows, strict=True):
            self._read_into(name, rows_of(matrix, start, start + count))
            start += count
        self.nbytes += matrix.nbytes
        return matrix

    def _read_into(self, name: str, out: Matrix) -> None:
        """One tensor into its place on the device."""
        if self._cancel.is_cancelled:
            raise loading_cancelled()
        try:
            if isinstance(out, PackedMatrix):
                self._read_packed(name, out)
            else:
                self._read_dense(name, out)
        except Stopped as stopped:
            raise loading_cancelled() from stopped
        except OSError as error:
            raise BadModelFile(f"Tensor {name!r} cannot be read: {error}.", hint="Fetch the model again.") from error
        self._n_left -= self._left.pop(name)  # a KeyError here is a layer that reads a tensor twice
        self._on_progress(1 - self._n_left / self._total)

    def _read_packed(self, name: str, out: PackedMatrix) -> None:
        assert isinstance(self._weights, PackedWeights)
        for suffix, part in (("packed", out.packed), ("scale", out.scale)):
            self._upload.take_into(_key(name, suffix), part)
        out.row_scale.fill_(2.0 ** self._weights.manifest.tensors[name].parameters["scale_exponent"])

    def _read_dense(self, name: str, out: Tensor) -> None:
        stored = self._stored.get(name)
        if stored is None:
            out.copy_(to_tensor(self._weights.read(name)))
            return
        raw = out
        if (dtype := _DTYPES[stored[""].dtype]) != out.dtype:
            raw = torch.empty(out.shape, dtype=dtype, device=self.device)
        self._upload.take_into(_key(name, ""), raw)
        if raw is not out:
            out.copy_(raw)

    def require_all_read(self) -> None:
        assert not self._left, sorted(self._left)
        self._upload.close()


_DTYPES: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def _stored(weights: Weights, name: str) -> Mapping[str, StoredTensor] | None:
    """The parts of a tensor in its file, None where it takes more than to copy them."""
    if isinstance(weights, PackedWeights):
        record = weights.manifest.tensors[name]
        return weights.stored(name) if record.is_kept or record.format in FORMATS else None
    found = weights.stored(name) if isinstance(weights, SafetensorsWeights) else None
    return None if found is None else {"": found}


def _key(name: str, suffix: str) -> str:
    return f"{name} {suffix}"


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
    bias = _joined_bias([matrix.shape[0] for matrix in matrices], biases)
    if len(matrices) == 1:
        return Product(parts=tuple(matrices), biases=(bias,))
    if all(isinstance(matrix, Tensor) for matrix in matrices):
        return Product(parts=(torch.cat([one for one in matrices if isinstance(one, Tensor)]),), biases=(bias,))
    packed = [matrix for matrix in matrices if isinstance(matrix, PackedMatrix)]
    if len(packed) == len(matrices) and len({(one.format, one.rotation) for one in packed}) == 1:
        return Product(parts=(concatenate(packed),), biases=(bias,))
    return Product(parts=tuple(matrices), biases=tuple(biases))


def _joined_bias(rows: Sequence[int], biases: Sequence[Tensor | None]) -> Tensor | None:
    """The biases of matrices of so many rows as one, 0 where a matrix has none; None where none has."""
    device = next((bias.device for bias in biases if bias is not None), None)
    if device is None:
        return None
    filled = [
        torch.zeros(count, device=device) if bias is None else bias for count, bias in zip(rows, biases, strict=True)
    ]
    return torch.cat(filled)


_LAYER: Final = re.compile(r"\.layers\.(\d+)\.")


def reading_order(names: Iterable[str]) -> list[str]:
    """The names of a model's tensors, in the order of its modules, as a decoder asks for them: layer after layer."""
    before: list[str] = []
    layers: dict[int, list[str]] = {}
    after: list[str] = []
    for name in names:
        if found := _LAYER.search(name):
            layers.setdefault(int(found[1]), []).append(name)
        else:
            (after if layers else before).append(name)
    return [*before, *(name for number in sorted(layers) for name in layers[number]), *after]
