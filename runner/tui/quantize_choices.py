"""What can be made of a model by quantizing it: formats in words, names, the size to expect, what speaks against it.

Pure but for `suggested_names`, which looks for the model's files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from runner.fit import USUAL_BPW
from runner.prepare import expected_path
from runner.quant.mq.recipe import CALIBRATED, RECIPES
from runner.registry import SAFETENSORS, Registry
from runner.tui.catalog import CatalogRow

# Formats of docs/QUANTIZATION.md, those that most people want first. Bits a weight of a whole model: of packed ones the
# layers' own and a fifteenth for embeddings and output in a wider format; of GGUF llama.cpp's own table.
_CHOICES: Final[tuple[tuple[str, str], ...]] = (
    ("mq4", "four bits for the native backend: the best of its size"),
    ("mq6", "six bits for the native backend"),
    ("mq8", "eight bits for the native backend: hardly any loss"),
    ("q4_k_m", "a GGUF in four to five bits, for llama.cpp and other tools"),
    ("q5_k_m", "a GGUF in five to six bits"),
    ("q6_k", "a GGUF in six to seven bits"),
    ("q8_0", "a GGUF in eight bits: hardly any loss"),
    ("q4_0", "a GGUF in four bits, the plainest"),
    ("mq4-uniform", "mq4 with evenly spaced levels"),
    ("mq4-hipfire", "hipfire's four bits"),
    ("bf16", "a GGUF without loss"),
    ("f16", "a GGUF, BF16 rounded to F16"),
    ("f32", "a GGUF without loss, twice as large"),
)
_PACKED_BPW: Final = {"mq4": 4.4, "mq4-uniform": 4.4, "mq4-hipfire": 4.5, "mq6": 6.4, "mq8": 8.25}
_LOSSLESS: Final = frozenset({"", "BF16", "F16", "F32", "Q8_0", SAFETENSORS})


@dataclass(frozen=True)
class FormatChoice:
    """size_bytes: about what comes out, 0 when the number of weights is not known."""

    name: str
    words: str
    size_bytes: int
    can_calibrate: bool


def format_choices(parameters: int) -> tuple[FormatChoice, ...]:
    """The formats that `runner quantize` writes, for a model of so many weights."""
    return tuple(
        FormatChoice(name, words, round(parameters * bits_a_weight(name) / 8), name in CALIBRATED)
        for name, words in _CHOICES
    )


def bits_a_weight(name: str) -> float:
    """About; scales included."""
    return _PACKED_BPW[name] if name in RECIPES else USUAL_BPW[name.upper()]


def source_of(row: CatalogRow) -> str:
    """What to quantize when the user points at that row: the original weights where they can be had."""
    if row.place == "hub" or row.kind or SAFETENSORS not in row.quants:
        return row.name
    return f"{row.name.partition(':')[0]}:{SAFETENSORS}"


def suggested_names(row: CatalogRow, registry: Registry) -> dict[str, str]:
    """What `runner quantize` would call the result, by format. Raises RunnerError for a model that cannot be found."""
    from runner.quant.quantize import made_name  # a fifth of a second, which only this needs

    source = expected_path(registry.resolve(source_of(row)))
    return {name: made_name(source, name) for name, _ in _CHOICES}


def original_bytes(row: CatalogRow) -> int:
    """About what has to be fetched first: two bytes a weight; 0 when it is here, or not known."""
    is_source_here = row.state == "complete" and source_of(row) == row.name
    return 0 if is_source_here else 2 * row.parameters


def objection(row: CatalogRow) -> str:
    """Why the model of that row cannot be quantized, or ""."""
    is_source = source_of(row) == row.name
    if row.stored_as == "packed":
        return "It is packed already; start from the original weights."
    if is_source and row.stored_as == "gguf" and row.quant.upper() not in _LOSSLESS:
        return f"It is {row.quant} already; start from the original weights."
    return ""
