"""Reads GGUF files: the header first, every count and extent checked against the file, then a tensor at a time.

Arrays of the metadata (a vocabulary of 150,000 tokens) are walked once and decoded only when they are asked for. This
file knows the format (versions 2 and 3, little-endian); what the keys mean is for its callers, but for the few below.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, overload

from runner.errors import FETCH_AGAIN, BadModelFile, UnsupportedModel
from runner.quant.byte_cursor import ByteCursor, CutShort
from runner.quant.ggml_types import FILE_TYPES, GGML_TYPES, GgmlType, decode

if TYPE_CHECKING:  # a header needs no numpy, which takes 0.05 s to import
    import numpy as np
    from numpy.typing import NDArray

MAX_DIMENSIONS: Final = 4
MAX_KEY_BYTES: Final = 65_535
MAX_ALIGNMENT: Final = 2**20
MAX_HEADER_BYTES: Final = 512 * 2**20  # fifty times the largest vocabulary there is
MAX_TENSORS: Final = 2**17
MAX_ENTRIES: Final = 2**16
MAX_PARTS: Final = 1024

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: Final[Mapping[int, str]] = MappingProxyType(
    {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q", 12: "d"}
)
_PART: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})(?P<rest>-of-(?P<count>\d{5})\.gguf)", re.IGNORECASE)


class GgufArray(Sequence[Any]):
    """An array of the metadata, kept as bytes. Indexing numbers is direct; strings are decoded all at once."""

    def __init__(self, kind: int, count: int, raw: bytes) -> None:
        self._kind, self._count, self._raw = kind, count, raw
        self._decoded: list[Any] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._values()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self._count} values>"

    def _values(self) -> list[Any]:
        if self._decoded is None:
            self._decoded = self._strings() if self._kind == _STRING else self._numbers()
        return self._decoded

    def _numbers(self) -> list[Any]:
        import numpy as np

        values = np.frombuffer(self._raw, dtype="<" + _SCALARS[self._kind], count=self._count)
        return [bool(value) for value in values] if self._kind == _BOOL else values.tolist()

    def _strings(self) -> list[str]:
        found, position = [], 0
        length_at = struct.Struct("<Q").unpack_from
        for _ in range(self._count):
            (length,) = length_at(self._raw, position)
            found.append(self._raw[position + 8 : position + 8 + length].decode("utf-8", "replace"))
            position += 8 + length
        return found


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """One tensor: shape as numpy has it (rows first), its ggml type, and its bytes in the file (absolute offset)."""

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    offset: int
    size_bytes: int

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class GgufHeader:
    """Everything in a GGUF file but the weights. metadata values: str, int, float, bool, or a GgufArray."""

    path: Path
    version: int
    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]
    data_offset: int
    size_bytes: int

    @property
    def architecture(self) -> str:
        value = self.metadata.get("general.architecture")
        return value if isinstance(value, str) else ""

    def of_architecture(self, key: str) -> Any:
        """The metadata value of "<architecture>.<key>", or None."""
        return self.metadata.get(f"{self.architecture}.{key}")

    @property
    def num_parameters(self) -> int:
        """Weights in this file; tables of the rotary embedding do not count."""
        return sum(tensor.num_values for tensor in self.tensors if not tensor.name.startswith("rope_"))

    @property
    def quantization(self) -> str:
        """The weight format's name, such as "Q4_K_M": what the file says, else the type that most weights have."""
        said = self.metadata.get("general.file_type")
        if type(said) is int and said in FILE_TYPES:
            return FILE_TYPES[said]
        sizes: dict[str, int] = {}
        for tensor in self.tensors:
            sizes[tensor.type.name] = sizes.get(tensor.type.name, 0) + tensor.num_values
        return max(sizes, key=sizes.__getitem__, default="")

    def tensor(self, name: str) -> GgufTensor | None:
        return next((tensor for tensor in self.tensors if tensor.name == name), None)

    def read_raw(self, tensor: GgufTensor) -> NDArray[np.uint8]:
        """The stored bytes of one tensor, mapped from the file. Raises OSError."""
        import numpy as np

        if tensor.size_bytes == 0:
            return np.empty(0, dtype=np.uint8)
        return np.memmap(self.path, np.uint8, mode="r", offset=tensor.offset, shape=(tensor.size_bytes,))

    def read_f32(self, tensor: GgufTensor) -> NDArray[np.float32]:
        """The values of one tensor as float32, in its shape. Raises UnsupportedModel for a type without a decoder."""
        import numpy as np

        if tensor.num_values == 0:
            return np.empty(tensor.shape, np.float32)
        try:
            values = decode(self.read_raw(tensor).reshape(*tensor.shape[:-1], -1), tensor.type)
        except NotImplementedError as error:
            raise UnsupportedModel(
                f"Tensor {tensor.name!r} has type {tensor.type.name}, which only llama.cpp reads.",
                hint="Run it with --backend llamacpp, or begin with a file in another format.",
            ) from error
        return np.asarray(values, dtype=np.float32).reshape(tensor.shape)


def read_header(path: Path) -> GgufHeader:
    """The checked header of one GGUF file. Reads no weights.

    Raises BadModelFile for a file that is malformed, truncated or unsafe to load.
    """
    try:
        size = path.stat().st_size
        if size == 0:  # an empty file cannot be mapped
            return parse_header(path, b"", size)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return parse_header(path, mapped, size)
    except OSError as error:
        raise BadModelFile(f"{path} cannot be read: {error.strerror or error}.") from error


def parse_header(path: Path, start: bytes | mmap.mmap, size: int) -> GgufHeader:
    """The checked header of a file of `size` bytes that begins with `start`; `path` names it and is not opened.

    Raises BadModelFile for a file that is malformed, truncated or unsafe to load, and NotHere when the header goes on
    beyond `start`.
    """
    try:
        if size < 24:
            raise _bad(path, "is too short for a GGUF file")
        with memoryview(start) as view:
            return _parse(path, view, size)
    except CutShort as error:
        raise _bad(path, f"is truncated or has an impossible size in its header ({error})") from error
    except UnicodeDecodeError as error:
        raise _bad(path, "has a name that is not UTF-8") from error


def parts_of(path: Path) -> tuple[Path, ...]:
    """All files of a split GGUF ("name-00001-of-00003.gguf"), in order; any other path alone.

    Raises BadModelFile when a part is missing.
    """
    match = _PART.fullmatch(path.name)
    if match is None:
        return (path,)
    count = int(match["count"])
    if not 1 <= int(match["number"]) <= count <= MAX_PARTS:
        raise _bad(path, "has an impossible part number")
    names = (f"{match['stem']}-{number:05d}{match['rest']}" for number in range(1, count + 1))
    parts = tuple(map(path.with_name, names))
    for part in parts:
        if not part.is_file():
            raise BadModelFile(f"{part.name} is missing: the model has {count} parts.", hint="Fetch the missing part.")
    return parts


def _parse(path: Path, view: memoryview, size: int) -> GgufHeader:
    cursor = ByteCursor(view, min(size, MAX_HEADER_BYTES))
    version = _version(path, cursor)
    num_tensors, num_entries = cursor.number("Q"), cursor.number("Q")
    if num_tensors > MAX_TENSORS or num_entries > MAX_ENTRIES:
        raise _bad(path, f"claims to have {num_tensors} tensors and {num_entries} metadata entries")
    metadata = _metadata(path, cursor, num_entries)
    alignment = _alignment(path, metadata)
    described = [_tensor(path, cursor) for _ in range(num_tensors)]
    data_offset = -(-cursor.position // alignment) * alignment
    tensors = tuple(_placed(path, tensor, data_offset, alignment) for tensor in described)
    _check_extents(path, tensors, size)
    return GgufHeader(
        path=path,
        version=version,
        metadata=MappingProxyType(metadata),
        tensors=tensors,
        data_offset=data_offset,
        size_bytes=size,
    )


def _version(path: Path, cursor: ByteCursor) -> int:
    if cursor.take(4) != b"GGUF":
        raise _bad(path, "is not a GGUF file")
    version: int = cursor.number("I")
    if version in (2, 3):
        return version
    if version & 0xFFFF == 0:
        raise UnsupportedModel(f"{path.name} is a big-endian GGUF.", hint="Fetch the little-endian version.")
    if version == 1:
        raise UnsupportedModel(f"{path.name} is a GGUF of version 1.", hint="Fetch a newer conversion of the model.")
    raise _bad(path, f"has the unknown GGUF version {version}")


def _metadata(path: Path, cursor: ByteCursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string(MAX_KEY_BYTES).decode("utf-8")
        if key in metadata:
            raise _bad(path, f"has the key {key!r} twice")
        metadata[key] = _value(path, cursor, key)
    return metadata


def _value(path: Path, cursor: ByteCursor, key: str) -> Any:
    kind = cursor.number("I")
    if kind == _STRING:
        return cursor.string().decode("utf-8", "replace")
    if kind == _ARRAY:
        return _array(path, cursor, key)
    code = _SCALARS.get(kind)
    if code is None:
        raise _bad(path, f"has a value of unknown type {kind} for the key {key!r}")
    value = cursor.number(code)
    return bool(value) if kind == _BOOL else value


def _array(path: Path, cursor: ByteCursor, key: str) -> GgufArray:
    kind, count = cursor.number("I"), cursor.number("Q")
    start = cursor.position
    if kind == _STRING:
        cursor.skip_strings(count)
    elif kind in _SCALARS:
        cursor.skip(count * struct.calcsize("<" + _SCALARS[kind]))
    elif kind == _ARRAY:
        raise _bad(path, f"has arrays inside the array {key!r}")
    else:
        raise _bad(path, f"has an array of unknown type {kind} for the key {key!r}")
    return GgufArray(kind, count, cursor.between(start))


def _alignment(path: Path, metadata: Mapping[str, Any]) -> int:
    value = metadata.get("general.alignment", 32)
    if type(value) is not int or not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
        raise _bad(path, f"has the impossible alignment {value!r}")
    return value


def _tensor(path: Path, cursor: ByteCursor) -> GgufTensor:
    """One entry of the tensor list; its offset is still relative to the data."""
    name = cursor.string(MAX_KEY_BYTES).decode("utf-8")
    dimensions = cursor.number("I")
    if not 0 < dimensions <= MAX_DIMENSIONS:
        raise _bad(path, f"gives tensor {name!r} {dimensions} dimensions")
    shape = tuple(cursor.number("Q") for _ in range(dimensions))[::-1]
    kind, offset = cursor.number("I"), cursor.number("Q")
    stored = GGML_TYPES.get(kind)
    if stored is None:
        raise _bad(path, f"gives tensor {name!r} the unknown type {kind}")
    if shape[-1] % stored.block_values or max(shape) >= 2**48 or math.prod(shape) >= 2**56:
        raise _bad(path, f"gives tensor {name!r} of type {stored.name} the impossible shape {list(shape)}")
    size = math.prod(shape) // stored.block_values * stored.block_bytes
    return GgufTensor(name=name, shape=shape, type=stored, offset=offset, size_bytes=size)


def _placed(path: Path, tensor: GgufTensor, data_offset: int, alignment: int) -> GgufTensor:
    if tensor.offset % alignment:
        raise _bad(path, f"puts tensor {tensor.name!r} at {tensor.offset}, which is not aligned to {alignment}")
    return GgufTensor(
        name=tensor.name,
        shape=tensor.shape,
        type=tensor.type,
        offset=data_offset + tensor.offset,
        size_bytes=tensor.size_bytes,
    )


def _check_extents(path: Path, tensors: Sequence[GgufTensor], size: int) -> None:
    names: set[str] = set()
    end, previous = 0, ""
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
