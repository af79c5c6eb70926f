"""What GGUF files store numbers as: ggml's types with their blocks, and the names of formats of whole files.

The gguf package has both tables, and decodes: it is imported with the first tensor that is decoded. A header needs the
tables alone, and to import that package, with the YAML and SentencePiece that it asks for, costs an eighth of what the
engine imports for llama.cpp. A test holds the tables to its.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class GgmlType:
    """One type: a row of a tensor is a sequence of blocks of so many values, each of so many bytes."""

    number: int
    name: str
    block_values: int
    block_bytes: int


GGML_TYPES: Final[Mapping[int, GgmlType]] = MappingProxyType(
    {
        kind.number: kind
        for kind in (
            GgmlType(0, "F32", 1, 4),
            GgmlType(1, "F16", 1, 2),
            GgmlType(2, "Q4_0", 32, 18),
            GgmlType(3, "Q4_1", 32, 20),
            GgmlType(6, "Q5_0", 32, 22),
            GgmlType(7, "Q5_1", 32, 24),
            GgmlType(8, "Q8_0", 32, 34),
            GgmlType(9, "Q8_1", 32, 40),
            GgmlType(10, "Q2_K", 256, 84),
            GgmlType(11, "Q3_K", 256, 110),
            GgmlType(12, "Q4_K", 256, 144),
            GgmlType(13, "Q5_K", 256, 176),
            GgmlType(14, "Q6_K", 256, 210),
            GgmlType(15, "Q8_K", 256, 292),
            GgmlType(16, "IQ2_XXS", 256, 66),
            GgmlType(17, "IQ2_XS", 256, 74),
            GgmlType(18, "IQ3_XXS", 256, 98),
            GgmlType(19, "IQ1_S", 256, 50),
            GgmlType(20, "IQ4_NL", 32, 18),
            GgmlType(21, "IQ3_S", 256, 110),
            GgmlType(22, "IQ2_S", 256, 82),
            GgmlType(23, "IQ4_XS", 256, 136),
            GgmlType(24, "I8", 1, 1),
            GgmlType(25, "I16", 1, 2),
            GgmlType(26, "I32", 1, 4),
            GgmlType(27, "I64", 1, 8),
            GgmlType(28, "F64", 1, 8),
            GgmlType(29, "IQ1_M", 256, 56),
            GgmlType(30, "BF16", 1, 2),
            GgmlType(34, "TQ1_0", 256, 54),
            GgmlType(35, "TQ2_0", 256, 66),
            GgmlType(39, "MXFP4", 32, 17),
            GgmlType(40, "NVFP4", 64, 36),
            GgmlType(41, "Q1_0", 128, 18),
        )
    }
)

FILE_TYPES: Final[Mapping[int, str]] = MappingProxyType(
    {
        0: "F32",
        1: "F16",
        2: "Q4_0",
        3: "Q4_1",
        7: "Q8_0",
        8: "Q5_0",
        9: "Q5_1",
        10: "Q2_K",
        11: "Q3_K_S",
        12: "Q3_K_M",
        13: "Q3_K_L",
        14: "Q4_K_S",
        15: "Q4_K_M",
        16: "Q5_K_S",
        17: "Q5_K_M",
        18: "Q6_K",
        19: "IQ2_XXS",
        20: "IQ2_XS",
        21: "Q2_K_S",
        22: "IQ3_XS",
        23: "IQ3_XXS",
        24: "IQ1_S",
        25: "IQ4_NL",
        26: "IQ3_S",
        27: "IQ3_M",
        28: "IQ2_S",
        29: "IQ2_M",
        30: "IQ4_XS",
        31: "IQ1_M",
        32: "BF16",
        36: "TQ1_0",
        37: "TQ2_0",
        38: "MXFP4_MOE",
        39: "NVFP4",
        40: "Q1_0",
    }
)
"""What general.file_type says of most tensors of a file; a guess (1024) says nothing."""


def decode(rows: NDArray[np.uint8], kind: GgmlType) -> NDArray[np.float32]:
    """Rows of stored bytes [R, bytes] as values [R, K]. Raises NotImplementedError for what only llama.cpp reads."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    if kind.number not in GGML_QUANT_SIZES:
        raise NotImplementedError(f"this gguf package is older than {kind.name}")
    values: NDArray[np.float32] = dequantize(rows, GGMLQuantizationType(kind.number))
    return values
