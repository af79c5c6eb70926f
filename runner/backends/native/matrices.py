"""Weights as the kernels take them: packed matrices stay packed, all others become dense tensors on the device.

It knows names, formats and types; which layer multiplies by what is said in fused.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import torch
from torch import Tensor

from runner.backends.native.loader import to_tensor
from runner.backends.native.upload import Stopped, Upload
from runner.errors import BadModelFile, loading_cancelled
from runner.kernels.grids import FORMATS
from runner.kernels.pack import concatenate, empty_matrix
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


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a tensor of that name belongs: its parts by suffix, contiguous."""

    name: str
    parts: Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class _Room:
    """A matrix that is not read yet, and the places of what it is made of."""

    matrix: Matrix
    places: Sequence[_Place]


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
        self._turns = {name: turn for turn, name in enumerate(self._stored)}
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
        room = self._room([name])
        self._fill(room.places)
        return room.matrix

    def product(self, names: Sequence[str], biases: Sequence[str]) -> Product:
        """The matrices of those names as what one input is multiplied by, with their biases where there are such.

        Matrices of one kind are read into one.
        """
        return self.products((names, biases))[0]

    def products(self, *wanted: tuple[Sequence[str], Sequence[str]]) -> list[Product]:
        """Several of them, read at once: what lies between one another's matrices in the file waits for none."""
        all_rooms = [self._rooms(names) for names, _ in wanted]
        self._fill([place for rooms in all_rooms for room in rooms for place in room.places])
        found = []
        for rooms, (names, biases) in zip(all_rooms, wanted, strict=True):
            vectors = [self.optional_vector(one) for one in biases]
            if len(rooms) == 1:
                vectors = [_joined_bias(self._num_rows(names), vectors)]
            found.append(Product(parts=tuple(room.matrix for room in rooms), biases=tuple(vectors)))
        return found

    def vector(self, name: str) -> Tensor:
        """A gain, a bias or the like, in float32 whatever the file has."""
        found = torch.empty(self._weights.shapes[name], dtype=torch.float32, device=self.device)
        self._fill([_Place(name=name, parts={"": found})])
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

    def _rooms(self, names: Sequence[str]) -> list[_Room]:
        """One for all of them if they are of one kind, else one for each."""
        if len({self._kind(name) for name in names}) == 1:
            return [self._room(names)]
        return [self._room([name]) for name in names]

    def _room(self, names: Sequence[str]) -> _Room:
        """One allocation for the rows of matrices of one kind."""
        rows, kind = self._num_rows(names), self._kind(names[0])
        shape = (sum(rows), kind.num_columns)
        if kind.format:
            packed = empty_matrix(FORMATS[kind.format], shape, kind.rotation, self.device)
            # It need not wait for all that was asked of the device before.
            packed.row_scale.copy_(self._row_scales(names, rows), non_blocking=True)
            matrix: Matrix = packed
            stored = {"packed": packed.packed, "scale": packed.scale}
        else:
            matrix = torch.empty(shape, dtype=self.dtype, device=self.device)
            stored = {"": matrix}
        self.nbytes += matrix.nbytes
        parts = {suffix: torch.split(part, rows) for suffix, part in stored.items()}
        places = [
            _Place(name=name, parts={suffix: part[i] for suffix, part in parts.items()}) for i, name in enumerate(names)
        ]
        return _Room(matrix=matrix, places=places)

    def _row_scales(self, names: Sequence[str], rows: Sequence[int]) -> Tensor:
        assert isinstance(self._weights, PackedWeights)
        tensors = self._weights.manifest.tensors
        exponents = np.array([tensors[name].parameters["scale_exponent"] for name in names])
        return torch.from_numpy(np.ldexp(np.float32(1), exponents).repeat(rows))

    def _fill(self, places: Sequence[_Place]) -> None:
        """Read tensors into their places, in the order that was foretold."""
        ordered = sorted(places, key=lambda place: self._turns.get(place.name, 0))
        raw: dict[str, Tensor] = {}
        taking = self._upload.take(self._asked(ordered, raw))
        for place in ordered:
            with self._reading(place.name):
                if place.name not in self._stored:
                    place.parts[""].copy_(to_tensor(self._weights.read(place.name)))
                    continue
                for _ in place.parts:
                    next(taking)
                if place.name in raw:
                    place.parts[""].copy_(raw.pop(place.name))

    def _asked(self, places: Iterable[_Place], raw: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """What is to be copied from files, and to where. raw: of other types than their places, by name."""
        for place in places:
            for suffix, stored in self._stored.get(place.name, {}).items():
                out = place.parts[suffix]
                if (dtype := _DTYPES.get(stored.dtype, out.dtype)) != out.dtype:
                    out = raw[place.name] = torch.empty(out.shape, dtype=dtype, device=self.device)
                yield _key(place.name, suffix), out

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """One tensor, which is there behind it."""
        if self._cancel.is_cancelled:
            raise loading_cancelled()
        try:
            yield
        except Stopped as stopped:
            raise loading_cancelled() from stopped
        except OSError as error:
            raise BadModelFile(f"Tensor {name!r} cannot be read: {error}.", hint="Fetch the model again.") from error
        self._n_left -= self._left.pop(name)  # a KeyError here is a layer that reads a tensor twice
        self._on_progress(1 - self._n_left / self._total)

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
