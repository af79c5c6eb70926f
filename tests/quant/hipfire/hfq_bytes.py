"""Containers built byte by byte, independent of the writer: whole ones, and ones that lie."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One tensor as the index has it. size, offset: what the index says, when not the truth."""

    name: str | bytes = "model.norm.weight"
    number: int = 2
    shape: tuple[int, ...] = (4,)
    group_size: int = 0
    data: bytes = struct.pack("<4f", 1.0, -2.0, 0.5, 4.0)
    size: int | None = None
    offset: int | None = None

    def but(self, **changes: Any) -> Stored:
        return replace(self, **changes)


def index_entry(tensor: Stored, offset: int | None) -> bytes:
    name = tensor.name if isinstance(tensor.name, bytes) else tensor.name.encode()
    size = len(tensor.data) if tensor.size is None else tensor.size
    entry = struct.pack("<H", len(name)) + name + struct.pack("<BB", tensor.number, len(tensor.shape))
    entry += struct.pack(f"<{len(tensor.shape)}I", *tensor.shape) + struct.pack("<IQ", tensor.group_size, size)
    return entry if offset is None else entry + struct.pack("<Q", offset // 32)


def container(
    tensors: Sequence[Stored] = (Stored(),),
    metadata: dict[str, Any] | bytes = b"{}",
    *,
    magic: bytes = b"HFQM",
    version: int = 1,
    arch_id: int = 1,
    num_tensors: int | None = None,
    counted: int | None = None,
    metadata_offset: int = 32,
    data_offset: int | None = None,
    alignment: int = 4096,
    after: bytes = b"",
) -> bytes:
    """A container of version 1, or 2 with the tensors at multiples of 32. after: bytes behind the last tensor."""
    text = metadata if isinstance(metadata, bytes) else json.dumps(metadata).encode()
    entry_bytes = sum(len(index_entry(tensor, None)) + 8 * (version > 1) for tensor in tensors)
    start = -(-(32 + len(text) + 4 + entry_bytes) // alignment) * alignment
    index, data = struct.pack("<I", len(tensors) if counted is None else counted), b""
    for tensor in tensors:
        if version > 1:
            data += bytes(-len(data) % 32)
            index += index_entry(tensor, start + len(data) if tensor.offset is None else tensor.offset)
        else:
            index += index_entry(tensor, None)
        data += tensor.data
    count = len(tensors) if num_tensors is None else num_tensors
    said = start if data_offset is None else data_offset
    header = magic + struct.pack("<IIIQQ", version, arch_id, count, metadata_offset, said)
    return (header + text + index).ljust(start, b"\0") + data + after


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
