"""Reads hipfire's containers (.hfq, .mq4; "HFQM"): the header, the metadata and the index, all checked before use.

Version 1 puts the tensors back to back from data_offset on; version 2, a fork's, gives each its place in units of 32
bytes and may keep metadata after them. It knows the container alone: what the tensors are for is source.py's business.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runner.errors import FETCH_AGAIN, BadModelFile, UnsupportedModel
from runner.quant.byte_cursor import ByteCursor, CutShort
from runner.quant.hipfire.tensor_types import TensorType, types_of

MAGIC: Final = b"HFQM"
HEADER_BYTES: Final = 32
MAX_METADATA_BYTES: Final = 64 * 2**20  # twice the largest tokenizer.json there is
MAX_INDEX_BYTES: Final = 64 * 2**20
MAX_TENSORS: Final = 2**17
MAX_DIMENSIONS: Final = 4
_OFFSET_UNIT: Final = 32


@dataclass(frozen=True, kw_only=True)
class HfqTensor:
    """One tensor: its type, its shape (rows first) and its bytes in the file (absolute offset).

    group_size: as the file has it; nobody reads it, since it follows from the type.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    group_size: int
    offset: int
    size_bytes: int

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class HfqHeader:
    """Everything in a container but the weights.

    arch_id: hipfire's number of the architecture. metadata: "config" (config.json), "tokenizer" (tokenizer.json as
    text), "tokenizer_config" and "generation_config"; keys that are not known are kept.
    """

    path: Path
    version: int
    arch_id: int
    metadata: Mapping[str, Any]
    tensors: tuple[HfqTensor, ...]
    data_offset: int
    size_bytes: int

    @property
    def config(self) -> Mapping[str, Any]:
        """The model's config.json. Raises BadModelFile when there is none."""
        value = self.metadata.get("config")
        if not isinstance(value, dict):
            raise _bad(self.path, "has no config in its metadata")
        return value

    @property
    def model_type(self) -> str:
        value = self.config.get("model_type")
        return value if isinstance(value, str) else ""

    @property
    def tokenizer(self) -> str:
        """The text of tokenizer.json, "" when there is none (hipfire writes "{}" then)."""
        value = self.metadata.get("tokenizer")
        text = json.dumps(value) if isinstance(value, dict) else value
        return text if isinstance(text, str) and text.strip() != "{}" else ""

    @property
    def quantization(self) -> str:
        """The name of the type that most weights have."""
        sizes: dict[str, int] = {}
        for tensor in self.tensors:
            sizes[tensor.type.name] = sizes.get(tensor.type.name, 0) + tensor.num_values
        return max(sizes, key=sizes.__getitem__, default="")

    def read_raw(self, tensor: HfqTensor) -> NDArray[np.uint8]:
        """The stored bytes of one tensor, mapped from the file. Raises OSError."""
        if tensor.size_bytes == 0:
            return np.empty(0, dtype=np.uint8)
        return np.memmap(self.path, np.uint8, mode="r", offset=tensor.offset, shape=(tensor.size_bytes,))


def read_header(path: Path) -> HfqHeader:
    """The checked header of one container. Reads no weights.

    Raises BadModelFile for a file that is malformed, truncated or unsafe, UnsupportedModel for a version or types of
    tensors that are not known, all of them by number.
    """
    try:
        size = path.stat().st_size
        if size < HEADER_BYTES:
            raise _bad(path, "is too short for a hipfire container")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return _parse(path, mapped, size)
    except CutShort as error:
        raise _bad(path, f"is truncated or has an impossible size in its header ({error})") from error
    except OSError as error:
        raise BadModelFile(f"{path} cannot be read: {error.strerror or error}.") from error


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A line of the index as it stands in the file. offset: from version 2 on."""

    name: str
    number: int
    shape: tuple[int, ...]
    group_size: int
    size_bytes: int
    offset: int | None


def _parse(path: Path, mapped: mmap.mmap, size: int) -> HfqHeader:
    with memoryview(mapped) as view:
        cursor = ByteCursor(view, size)
        version = _version(path, cursor)
        arch_id, num_tensors = cursor.number("I"), cursor.number("I")
        metadata_offset, data_offset = cursor.number("Q"), cursor.number("Q")
        if not HEADER_BYTES <= metadata_offset <= data_offset <= size:
            raise _bad(path, f"has its metadata at {metadata_offset} and its data at {data_offset} of {size} bytes")
        if num_tensors > MAX_TENSORS:
            raise _bad(path, f"claims to have {num_tensors} tensors")
        # The metadata has no length: its end is where one JSON value ends.
        front = bytes(view[metadata_offset : min(data_offset, metadata_offset + MAX_METADATA_BYTES + MAX_INDEX_BYTES)])
        metadata, length = _first_json(path, front)
        entries = _index(path, memoryview(front)[length:], num_tensors, version)
        if version > 1:
            metadata = _with_tail(path, metadata, view, size)
    tensors = _placed(path, entries, version, data_offset)
    _check_extents(path, tensors, data_offset, size)
    return HfqHeader(
        path=path,
        version=version,
        arch_id=arch_id,
        metadata=MappingProxyType(metadata),
        tensors=tensors,
        data_offset=data_offset,
        size_bytes=size,
    )


def _version(path: Path, cursor: ByteCursor) -> int:
    if cursor.take(4) != MAGIC:
        raise _bad(path, "is not a hipfire container")
    version: int = cursor.number("I")
    if version not in (1, 2):
        raise UnsupportedModel(
            f"{path.name} is a hipfire container of version {version}; versions 1 and 2 are known.",
            hint="Start from the original model instead.",
        )
    return version


def _first_json(path: Path, raw: bytes) -> tuple[dict[str, Any], int]:
    """The JSON object that `raw` begins with, and its length in bytes; what follows is no text."""
    try:
        text = raw[:MAX_METADATA_BYTES].decode("utf-8", "surrogateescape")
        value, end = json.JSONDecoder().raw_decode(text)
        length = len(text[:end].encode("utf-8"))
    except (ValueError, RecursionError, MemoryError) as error:
        # Among them UnicodeEncodeError: bytes inside the JSON that are not UTF-8.
        raise _bad(path, f"has metadata that is not valid JSON ({type(error).__name__})") from error
    if not isinstance(value, dict):
        raise _bad(path, "has metadata that is not a JSON object")
    return value, length


def _with_tail(path: Path, metadata: dict[str, Any], view: memoryview, size: int) -> dict[str, Any]:
    """Version 2 may put the larger part of the metadata after the tensors; keys of the first part stand."""
    place = metadata.get("tail_metadata")
    if place is None:
        return metadata
    offset, length = (place.get("offset"), place.get("size")) if isinstance(place, dict) else (None, None)
    if type(offset) is not int or type(length) is not int or not 0 <= offset <= offset + length <= size:
        raise _bad(path, "has an impossible place for the rest of its metadata")
    if length > MAX_METADATA_BYTES:
        raise _bad(path, f"has {length} bytes of metadata after its tensors")
    tail, _ = _first_json(path, bytes(view[offset : offset + length]))
    more = tail.get("metadata")
    return {**more, **metadata} if isinstance(more, dict) else metadata


# --- the index -------------------------------------------------------------------------------------------------------


def _index(path: Path, view: memoryview, num_tensors: int, version: int) -> list[_Entry]:
    cursor = ByteCursor(view, min(len(view), MAX_INDEX_BYTES))
    counted = cursor.number("I")
    if counted != num_tensors:
        raise _bad(path, f"has {num_tensors} tensors by its header and {counted} by its index")
    return [_entry(path, cursor, version) for _ in range(num_tensors)]


def _entry(path: Path, cursor: ByteCursor, version: int) -> _Entry:
    try:
        name = cursor.take(cursor.number("H")).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad(path, "has a tensor whose name is not UTF-8") from error
    number, dimensions = cursor.number("B"), cursor.number("B")
    if not 0 < dimensions <= MAX_DIMENSIONS:
        raise _bad(path, f"gives tensor {name!r} {dimensions} dimensions")
    return _Entry(
        name=name,
        number=number,
        shape=tuple(cursor.number("I") for _ in range(dimensions)),
        group_size=cursor.number("I"),
        size_bytes=cursor.number("Q"),
        offset=_OFFSET_UNIT * cursor.number("Q") if version > 1 else None,
    )


def _placed(path: Path, entries: Sequence[_Entry], version: int, data_offset: int) -> tuple[HfqTensor, ...]:
    known = types_of(version)
    if unknown := sorted({entry.number for entry in entries} - known.keys()):
        example = next(entry.name for entry in entries if entry.number == unknown[0])
        raise UnsupportedModel(
            f"{path.name} has tensors of hipfire's types {', '.join(map(str, unknown))}, such as {example!r}; known "
            f"are {', '.join(f'{number} ({kind.name})' for number, kind in known.items())}.",
            hint="Start from the original model, or from a file that hipfire made in MQ4 or MQ6.",
        )
    tensors, end = [], data_offset
    for entry in entries:
        kind = known[entry.number]
        if entry.size_bytes not in kind.sizes(entry.shape):
            raise _bad(
                path,
                f"holds {entry.size_bytes} bytes of tensor {entry.name!r}, of type {kind.name} and shape "
                f"{list(entry.shape)}, which needs {max(kind.sizes(entry.shape))}",
            )
        offset = end if entry.offset is None else entry.offset
        end = offset + entry.size_bytes
        tensors.append(
            HfqTensor(
                name=entry.name,
                type=kind,
                shape=entry.shape,
                group_size=entry.group_size,
                offset=offset,
                size_bytes=entry.size_bytes,
            )
        )
    return tuple(tensors)


def _check_extents(path: Path, tensors: Sequence[HfqTensor], data_offset: int, size: int) -> None:
    """No name twice, nothing before the data, nothing overlapping, nothing outside the file.

    Bytes after the last tensor are allowed: hipfire appends prediction heads there.
    """
    names: set[str] = set()
    end, previous = data_offset, "the header"
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.size_bytes)):
        if tensor.name in names:
            raise _bad(path, f"has tensor {tensor.name!r} twice")
        names.add(tensor.name)
        if tensor.offset < end:
            raise _bad(path, f"has tensor {tensor.name!r} overlapping {previous!r}")
        end, previous = tensor.offset + tensor.size_bytes, tensor.name
        if end > size:
            raise _bad(path, f"ends {end - size} bytes before its tensor {tensor.name!r} does; it is truncated")


def _bad(path: Path, what: str) -> BadModelFile:
    return BadModelFile(f"{path.name} {what}.", hint=f"The file is damaged or not what its name says: {FETCH_AGAIN}.")
