"""The weight formats that `runner quantize` writes, and the encoding of one tensor in those made here.

The K-quants are made by llama.cpp (kquants.py); this file only names them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType
from gguf.quants import quantize
from numpy.typing import NDArray

from runner.errors import UsageError, nearest_hint
from runner.quant.tensor_rules import PlannedTensor

ROWS_BYTES: Final = 32 * 2**20  # float32 bytes worked on at a time: large enough for numpy, small beside any model


@dataclass(frozen=True, kw_only=True)
class Format:
    """One weight format.

    linear: the type of matrices; embedding: of the embeddings and the output matrix, which quantize worse. A matrix
    whose rows are not whole blocks is stored as F16. by_llama_cpp: made from an intermediate file by llama.cpp's own
    quantizer, and the two types are those of the intermediate.
    """

    name: str
    label: str
    file_type: LlamaFileType
    linear: GGMLQuantizationType
    embedding: GGMLQuantizationType
    by_llama_cpp: bool = False


def _plain(name: str, file_type: LlamaFileType, linear: GGMLQuantizationType, embedding: str = "") -> Format:
    return Format(
        name=name,
        label=name.upper(),
        file_type=file_type,
        linear=linear,
        embedding=GGMLQuantizationType[embedding] if embedding else linear,
    )


def _by_llama_cpp(name: str, file_type: LlamaFileType) -> Format:
    wide = GGMLQuantizationType.BF16
    return Format(name=name, label=name.upper(), file_type=file_type, linear=wide, embedding=wide, by_llama_cpp=True)


FORMATS: Final[Mapping[str, Format]] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            _plain("f32", LlamaFileType.ALL_F32, GGMLQuantizationType.F32),
            _plain("f16", LlamaFileType.MOSTLY_F16, GGMLQuantizationType.F16),
            _plain("bf16", LlamaFileType.MOSTLY_BF16, GGMLQuantizationType.BF16),
            _plain("q8_0", LlamaFileType.MOSTLY_Q8_0, GGMLQuantizationType.Q8_0),
            _plain("q4_0", LlamaFileType.MOSTLY_Q4_0, GGMLQuantizationType.Q4_0, embedding="Q8_0"),
            _by_llama_cpp("q4_k_m", LlamaFileType.MOSTLY_Q4_K_M),
            _by_llama_cpp("q5_k_m", LlamaFileType.MOSTLY_Q5_K_M),
            _by_llama_cpp("q6_k", LlamaFileType.MOSTLY_Q6_K),
        )
    }
)


def format_of(name: str) -> Format:
    """The format of that name, in either case. Raises UsageError with the nearest names."""
    found = FORMATS.get(name.lower())
    if found is None:
        raise UsageError(f"Unknown weight format {name!r}.", hint=nearest_hint(name.lower(), FORMATS))
    return found


def type_of(tensor: PlannedTensor, chosen: Format) -> GGMLQuantizationType:
    """The type that `tensor` is stored as in `chosen`."""
    if tensor.keeps_f32:
        return GGMLQuantizationType.F32
    is_embedding = tensor.target in ("token_embd.weight", "output.weight")
    wanted = chosen.embedding if is_embedding else chosen.linear
    block_size, _ = GGML_QUANT_SIZES[wanted]
    return wanted if tensor.shape[-1] % block_size == 0 else GGMLQuantizationType.F16


def encoded_bytes(shape: tuple[int, ...], stored: GGMLQuantizationType) -> int:
    block_size, block_bytes = GGML_QUANT_SIZES[stored]
    return math.prod(shape) // int(block_size) * int(block_bytes)


def encode_rows(rows: NDArray[np.float32], stored: GGMLQuantizationType) -> NDArray[np.uint8]:
    """Rows [R, K] (or a vector [K]) as the bytes of `stored`, flat. K must be whole blocks."""
    data: NDArray[Any] = quantize(np.ascontiguousarray(rows), stored)
    return data.reshape(-1).view(np.uint8)


def row_spans(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Spans of rows of about ROWS_BYTES each as float32; a vector is one span."""
    if len(shape) < 2:
        yield 0, shape[0]
        return
    row_bytes = 4 * math.prod(shape[1:])
    step = max(1, ROWS_BYTES // max(1, row_bytes))
    for start in range(0, shape[0], step):
        yield start, min(start + step, shape[0])
