"""What formats do to matrices that small models do not have: `python benchmarks/synthetic_weights.py` prints a table.

Random matrices of 256 x 2048: Gaussian; heavy-tailed (Student's t with 4 degrees of freedom); and Gaussian with outlier
channels (32 columns 20 times as large), as activations make them in large models. The figure is the squared error over
the squared weights. Where a format rotates, the error is that of the rotated matrix, which is the same.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from runner.quant.mq.formats import TENSOR_FORMATS
from runner.quant.mq.rotation import rotate, rotation_size
from runner.quant.mq.tensor_format import bits_per_weight

SHAPE = (256, 2048)
LLAMA_CPP = ("Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q4_0")
Matrix = NDArray[np.float32]


def matrices() -> dict[str, Matrix]:
    """The matrices, by kind; the same ones each time."""
    random = np.random.default_rng(0)
    gaussian = random.normal(0, 0.02, SHAPE)
    heavy = random.standard_t(4, SHAPE) * 0.02
    outliers = random.normal(0, 0.02, SHAPE)
    outliers[:, random.choice(SHAPE[1], 32, replace=False)] *= 20
    kinds = {"Gaussian": gaussian, "heavy tails": heavy, "outlier channels": outliers}
    return {name: matrix.astype(np.float32) for name, matrix in kinds.items()}


def by_llama_cpp(name: str) -> Callable[[Matrix], Matrix]:
    """Through ggml's own quantizer and gguf's decoder."""
    kind = GGMLQuantizationType[name]
    block, size = GGML_QUANT_SIZES[kind]
    library = ctypes.CDLL(str(next((Path(llama_cpp.__file__).parent / "lib").glob("libggml-base.*"))))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t

    def there_and_back(w: Matrix) -> Matrix:
        data = np.empty((w.shape[0], w.shape[1] // block * size), np.uint8)
        pointers = (ctypes.c_void_p(w.ctypes.data), ctypes.c_void_p(data.ctypes.data))
        shape = (ctypes.c_int64(0), ctypes.c_int64(w.shape[0]), ctypes.c_int64(w.shape[1]))
        written = library.ggml_quantize_chunk(ctypes.c_int(int(kind)), *pointers, *shape, ctypes.c_void_p(0))
        assert written == data.nbytes
        return np.asarray(dequantize(data, kind), np.float32)

    return there_and_back


def relative_error(wanted: Matrix, found: Matrix) -> float:
    wanted = wanted.astype(np.float64)
    return float(np.square(found - wanted).sum() / np.square(wanted).sum())


def measure() -> list[dict[str, Any]]:
    """One row a format: name, family, bpw, and the error by kind of matrix."""
    kinds = matrices()
    rows = []
    for name in LLAMA_CPP:
        convert = by_llama_cpp(name)
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
        errors = {kind: relative_error(w, convert(w)) for kind, w in kinds.items()}
        rows.append({"name": name, "family": "llama.cpp", "bpw": 8 * size / block, "errors": errors})
    for name, form in TENSOR_FORMATS.items():
        errors = {}
        for kind, w in kinds.items():
            rotated = rotate(torch.from_numpy(w), rotation_size(w.shape[1]))
            errors[kind] = relative_error(rotated.numpy(), form.decode(form.encode(rotated), SHAPE).numpy())
        family = "hipfire" if name == "mq4-hipfire" else "runner"
        rows.append({"name": name, "family": family, "bpw": bits_per_weight(form, SHAPE), "errors": errors})
    return sorted(rows, key=lambda row: (-row["bpw"], row["name"]))


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    rows = measure()
    kinds = list(rows[0]["errors"])
    print(f"{'format':14s}{'bpw':>8s}" + "".join(f"{kind:>20s}" for kind in kinds))
    for row in rows:
        print(f"{row['name']:14s}{row['bpw']:8.3f}" + "".join(f"{row['errors'][kind]:20.3e}" for kind in kinds))


if __name__ == "__main__":
    main()
