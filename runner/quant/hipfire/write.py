"""Writes hipfire's container, version 1, in the types that hipfire's own quantizer chooses for a dense model in MQ4.

Embeddings Q8_0, other matrices MQ4-G256, norms and biases F16; where the rows of a matrix are not whole groups of 256,
HFQ4-G128, Q8_0 or F16, the first that fits. It knows nothing of where the weights come from.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from runner.errors import FETCH_AGAIN, BadModelFile, UnsupportedModel
from runner.quant.chat_templates import read_chat_templates
from runner.quant.formats import encode_rows, row_spans
from runner.quant.hipfire.container import HEADER_BYTES, MAGIC
from runner.quant.hipfire.tensor_types import F16, F32, HFQ4_G128, MQ4_G256, Q8_0, TYPES, TensorType
from runner.quant.json_file import read_json, read_json_if_there
from runner.quant.mq.mq4_hipfire import decode_blocks, encode_blocks
from runner.quant.mq.rotation import rotate
from runner.quant.safetensors_file import to_f32
from runner.quant.weights import EMBEDDINGS, Weights

# hipfire's number of each architecture that has one here (its docs/architecture-ids.md). Qwen2 is 7: what loads 1 reads
# no biases.
ARCHITECTURES: Final[Mapping[str, int]] = MappingProxyType({"llama": 0, "mistral": 0, "qwen3": 1, "qwen2": 7})
_ALIGNMENT: Final = 4096
_LARGEST_F16: Final = 65504.0

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class PlannedHfqTensor:
    """One tensor to write."""

    name: str
    shape: tuple[int, ...]
    type: TensorType

    @property
    def size_bytes(self) -> int:
        return max(self.type.sizes(self.shape))


def plan_container(shapes: Mapping[str, tuple[int, ...]]) -> tuple[PlannedHfqTensor, ...]:
    """The type of every tensor, in the order of the file: by name, as hipfire has it."""
    return tuple(
        PlannedHfqTensor(name=name, shape=shape, type=_type_of(name, shape)) for name, shape in sorted(shapes.items())
    )


def _type_of(name: str, shape: tuple[int, ...]) -> TensorType:
    if len(shape) != 2:
        return TYPES[F16]
    wanted = (Q8_0,) if name == EMBEDDINGS else (MQ4_G256, HFQ4_G128, Q8_0)
    return next((TYPES[number] for number in wanted if TYPES[number].is_whole(shape)), TYPES[F16])


def metadata_of(directory: Path) -> dict[str, Any]:
    """What hipfire keeps of the files beside a model's weights. Raises BadModelFile."""
    config = read_json(directory / "config.json")
    tokenizer_config = read_json_if_there(directory / "tokenizer_config.json")
    if template := read_chat_templates(directory).get("default"):
        tokenizer_config["chat_template"] = template  # hipfire looks for it in one place alone
    read_json(directory / "tokenizer.json")
    return {
        "architecture": config.get("model_type"),
        "config": config,
        "tokenizer": (directory / "tokenizer.json").read_text("utf-8"),
        "tokenizer_config": tokenizer_config or None,
        "generation_config": read_json_if_there(directory / "generation_config.json") or None,
    }


def write_container(
    path: Path,
    metadata: Mapping[str, Any],
    planned: tuple[PlannedHfqTensor, ...],
    weights: Weights,
    on_progress: OnProgress,
) -> None:
    """Write a model, a few rows at a time. metadata: as `metadata_of` gives it. on_progress gets (bytes, in all).

    Raises OSError when the file cannot be written, BadModelFile for weights that are NaN or infinite, UnsupportedModel
    for an architecture that hipfire does not have and for weights that are too large for their type.
    """
    front = _front(metadata, planned)
    done, total = 0, sum(tensor.size_bytes for tensor in planned)
    with path.open("wb") as file:
        file.write(front)
        for tensor in planned:
            _write_tensor(file, tensor, weights)
            done += tensor.size_bytes
            on_progress(done, total)


def _front(metadata: Mapping[str, Any], planned: tuple[PlannedHfqTensor, ...]) -> bytes:
    """Header, metadata, index and the zeros up to the data."""
    model_type = metadata["config"].get("model_type")
    arch_id = ARCHITECTURES.get(model_type)
    if arch_id is None:
        raise UnsupportedModel(
            f"{model_type}: hipfire's container has no number for this architecture.",
            hint=f"It has one for {', '.join(ARCHITECTURES)}.",
        )
    text = json.dumps(metadata, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode("utf-8")
    index = struct.pack("<I", len(planned)) + b"".join(_index_entry(tensor) for tensor in planned)
    data_offset = -(-(HEADER_BYTES + len(text) + len(index)) // _ALIGNMENT) * _ALIGNMENT
    header = MAGIC + struct.pack("<IIIQQ", 1, arch_id, len(planned), HEADER_BYTES, data_offset)
    return (header + text + index).ljust(data_offset, b"\0")


def _index_entry(tensor: PlannedHfqTensor) -> bytes:
    name = tensor.name.encode("utf-8")
    group_size = 0 if tensor.type.plain else tensor.type.block_weights
    numbers = (tensor.type.number, len(tensor.shape), *tensor.shape, group_size, tensor.size_bytes)
    return struct.pack("<H", len(name)) + name + struct.pack(f"<BB{len(tensor.shape)}IIQ", *numbers)


def _write_tensor(file: BufferedWriter, tensor: PlannedHfqTensor, weights: Weights) -> None:
    for start, stop in row_spans(tensor.shape):
        rows = weights.read_rows(tensor.name, start, stop)
        rows = to_f32(rows, "BF16") if rows.dtype == np.uint16 else rows.astype(np.float32, copy=False)
        if not np.isfinite(rows).all():
            raise BadModelFile(
                f"Tensor {tensor.name!r} has weights that are NaN or infinite.",
                hint=f"The file is damaged: {FETCH_AGAIN}.",
            )
        if tensor.type.number == F16 and rows.size and np.abs(rows).max() > _LARGEST_F16:
            raise UnsupportedModel(f"Tensor {tensor.name!r} has weights that are too large for F16.")
        file.write(encode(np.ascontiguousarray(rows), tensor.type).tobytes())


def encode(rows: NDArray[np.float32], kind: TensorType) -> NDArray[np.uint8]:
    """Weights [R, K] (or [K]) as the bytes of F32, F16, Q8_0, MQ4 or HFQ4, in hipfire's own arithmetic."""
    if kind.number == F32:
        return rows.reshape(-1).view(np.uint8)
    if kind.number == F16:
        return rows.astype(np.float16).reshape(-1).view(np.uint8)
    if kind.number == Q8_0:
        return encode_rows(rows, GGMLQuantizationType.Q8_0)
    assert kind.decode is decode_blocks, kind.name
    groups = torch.from_numpy(rows.reshape(-1, kind.block_weights))
    return encode_blocks(rotate(groups, kind.block_weights) if kind.rotated else groups).numpy().reshape(-1)
