"""How far stored weights are from the ones they were made from, matrix by matrix.

The measure is the squared error over the squared weights, which no scaling of a matrix changes. It reads a few rows at
a time, and knows no format: both sides are read as numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runner.errors import BadModelFile

_ROWS_BYTES = 32 * 2**20
_LAYERS = "model.layers."


class ReadableWeights(Protocol):
    """Tensors by name; runner.quant.weights has them of GGUF files and of safetensors."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Rows start to stop - 1 as floats, bfloat16 as uint16 bits."""
        ...


def layer_matrices(weights: ReadableWeights) -> tuple[str, ...]:
    """The names of the matrices in the layers: all weights that are quantized but the embeddings and the output."""
    return tuple(name for name, shape in weights.shapes.items() if name.startswith(_LAYERS) and len(shape) == 2)


def relative_error(source: ReadableWeights, stored: ReadableWeights, name: str) -> float:
    """The squared error over the squared weights of one matrix. Raises BadModelFile when they have other shapes."""
    if stored.shapes.get(name) != source.shapes[name]:
        raise BadModelFile(f"Tensor {name!r} is {stored.shapes.get(name)} and was {source.shapes[name]}.")
    error = energy = 0.0
    for start, stop in _spans(source.shapes[name]):
        wanted = _floats(source.read_rows(name, start, stop))
        error += float(np.square(_floats(stored.read_rows(name, start, stop)) - wanted).sum())
        energy += float(np.square(wanted).sum())
    return error / energy if energy else 0.0


def mean_relative_error(errors: Mapping[str, float], shapes: Mapping[str, tuple[int, ...]]) -> float:
    """The errors of several matrices as one, each counting as many times as it has weights."""
    sizes = {name: math.prod(shapes[name]) for name in errors}
    return math.fsum(errors[name] * size for name, size in sizes.items()) / max(1, sum(sizes.values()))


def _floats(raw: NDArray[Any]) -> NDArray[np.float64]:
    if raw.dtype == np.uint16:
        raw = (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return raw.astype(np.float64)


def _spans(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    step = max(1, _ROWS_BYTES // max(1, 8 * math.prod(shape[1:])))
    for start in range(0, shape[0], step):
        yield start, min(start + step, shape[0])
