"""Reads .safetensors checkpoints, single or sharded: the header first, checked against the file, then tensor by tensor.

It knows the file format alone: what the tensors are for, and how they are named, is the converter's business. Pickled
checkpoints are never opened.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from runner.errors import FETCH_AGAIN, BadModelFile, UnsupportedModel
from runner.garbage import no_garbage_collection
from runner.unchanged import WhileUnchanged

if TYPE_CHECKING:  # a header needs no numpy, which takes 0.05 s to import
    import numpy as np
    from numpy.typing import NDArray

INDEX_NAME: Final = "model.safetensors.index.json"
SINGLE_NAME: Final = "model.safetensors"
MAX_HEADER_BYTES: Final = 100_000_000  # the limit of the safetensors library itself
MAX_INDEX_BYTES: Final = 100_000_000
MAX_DIMENSIONS: Final = 8
MAX_VALUES: Final = 2**56  # of a shape, its zeros aside: numpy counts their bytes so

# All types of the format that are whole bytes. numpy has no bfloat16 and no float8: these come back as their bits.
_NUMPY_TYPE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "F64": "<f8",
        "F32": "<f4",
        "F16": "<f2",
        "BF16": "<u2",
        "I64": "<i8",
        "I32": "<i4",
        "I16": "<i2",
        "I8": "|i1",
        "U64": "<u8",
        "U32": "<u4",
        "U16": "<u2",
        "U8": "|u1",
        "BOOL": "|b1",
        "C64": "<c8",
        "F8_E4M3": "|u1",
        "F8_E5M2": "|u1",
        "F8_E8M0": "|u1",
        "F8_E4M3FNUZ": "|u1",
        "F8_E5M2FNUZ": "|u1",
    }
)
# The others, which are not read here: bits of a value.
_PART_OF_BYTE: Final[Mapping[str, int]] = MappingProxyType({"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6})
_BITS: Final = {**{name: 8 * int(code[2:]) for name, code in _NUMPY_TYPE.items()}, **_PART_OF_BYTE}  # of a value
FLOAT_TYPES: Final = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """Where one tensor lies: `nbytes` bytes at `offset` of `path`, row-major little-endian `dtype` of `shape`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int


def to_f32(raw: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """The values of `raw` (bits of a float type named as safetensors does) as float32, exactly for F32, F16 and BF16.

    Raises UnsupportedModel for a type that is not a float of 16 bits or more.
    """
    import numpy as np

    if dtype == "BF16":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype in FLOAT_TYPES:
        return np.asarray(raw, dtype=np.float32)
    raise _unreadable(dtype)


def _unreadable(dtype: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"Weights stored as {dtype} cannot be read.",
        hint="Use the F32, F16 or BF16 version of the model, or a ready GGUF of it.",
    )


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a model, by name, in one or more checked .safetensors files."""

    tensors: Mapping[str, StoredTensor]

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Read and check the headers of `path`: one .safetensors file, or a directory with one or with an index.

        Raises BadModelFile for a malformed or missing file, UnsupportedModel for a pickled checkpoint.
        """
        if path.is_dir():
            return cls(MappingProxyType(_read_directory(path)))
        if path.suffix != ".safetensors":
            _refuse_pickle([path])
            raise BadModelFile(f"{path.name} is not a .safetensors file.")
        return cls(read_header(path))

    @property
    def total_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    def dtype(self, name: str) -> str:
        """The stored type of one tensor. Raises KeyError."""
        return self.tensors[name].dtype

    def rows(self, name: str, index: slice | NDArray[np.intp]) -> NDArray[Any]:
        """Some rows of one tensor, or elements of a vector, in its stored type. Raises KeyError, OSError."""
        import numpy as np

        return np.asarray(self.raw(name)[index])

    def raw(self, name: str) -> NDArray[Any]:
        """One tensor, mapped from the file, not copied; BF16 as uint16 bits.

        Raises KeyError, OSError, and UnsupportedModel for a type whose values are parts of bytes.
        """
        import numpy as np

        tensor = self.tensors[name]
        if tensor.dtype in _PART_OF_BYTE:
            raise _unreadable(tensor.dtype)
        dtype = np.dtype(_NUMPY_TYPE[tensor.dtype])
        if tensor.nbytes == 0:
            return np.empty(tensor.shape, dtype)
        return np.memmap(tensor.path, dtype, mode="r", offset=tensor.offset, shape=tensor.shape)

    def f32(self, name: str) -> NDArray[np.float32]:
        """One tensor as float32. Raises KeyError, OSError, and UnsupportedModel for a type without an exact float."""
        return to_f32(self.raw(name), self.tensors[name].dtype)


@WhileUnchanged
def read_header(path: Path) -> Mapping[str, StoredTensor]:
    """The checked contents of one .safetensors file, by tensor name. Reads no weights. Raises BadModelFile."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            text = file.read(header_length(path, start, size))
    except OSError as error:
        raise BadModelFile(f"{path} cannot be read: {error.strerror or error}.") from error
    return MappingProxyType(parse_header(path, text, size))


def header_length(path: Path, start: bytes, size: int) -> int:
    """Bytes of the header after the first 8, which are `start`, of a file of `size` bytes. Raises BadModelFile."""
    if len(start) < 8:
        raise _bad(path, "is too short for a header")
    length: int = struct.unpack_from("<Q", start)[0]
    if length > MAX_HEADER_BYTES or length > size - 8:
        raise _bad(path, f"has a header of {length} bytes in a file of {size}")
    return length


@no_garbage_collection()
def parse_header(path: Path, text: bytes, size: int) -> dict[str, StoredTensor]:
    """The checked contents of a file of `size` bytes, by tensor name, from its header's `text`; `path` names it.

    Raises BadModelFile.
    """
    length = len(text)
    entries = _json_object(path, text)
    entries.pop("__metadata__", None)
    tensors = {name: _entry(path, name, value, 8 + length) for name, value in entries.items()}
    _check_extents(path, tensors.values(), 8 + length, size)
    return tensors


def _entry(path: Path, name: str, value: object, data_start: int) -> StoredTensor:
    if not isinstance(value, dict):
        raise _bad(path, f"describes tensor {name!r} wrongly")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str) or not (bits := _BITS.get(dtype)):
        raise _bad(path, f"gives tensor {name!r} the unknown type {dtype!r}")
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS or math.prod(filter(None, shape)) >= MAX_VALUES:
        raise _bad(path, f"gives tensor {name!r} the impossible shape {shape!r}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _bad(path, f"gives tensor {name!r} the impossible extent {offsets!r}")
    nbytes, rest = divmod(math.prod(shape) * bits, 8)
    if rest:
        raise _bad(path, f"has a part of a byte in tensor {name!r}")
    if offsets[1] - offsets[0] != nbytes:
        raise _bad(path, f"holds {offsets[1] - offsets[0]} bytes of tensor {name!r}, which needs {nbytes}")
    return StoredTensor(
        name=name, dtype=dtype, shape=tuple(shape), path=path, offset=data_start + offsets[0], nbytes=nbytes
    )


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _check_extents(path: Path, tensors: Iterable[StoredTensor], data_start: int, size: int) -> None:
    """The tensors must fill the data area exactly: no overlap, no hole, nothing outside the file."""
    end, previous = data_start, "the header"
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset < end:
            raise _bad(path, f"has tensor {tensor.name!r} overlapping {previous!r}")
        if tensor.offset > end:
            raise _bad(path, f"has a hole of {tensor.offset - end} bytes before tensor {tensor.name!r}")
        end, previous = tensor.offset + tensor.nbytes, tensor.name
    if end > size:
        raise _bad(path, f"ends {end - size} bytes before its tensor {previous!r} does; it is truncated")
    if end < size:
        raise _bad(path, f"has {size - end} bytes after its last tensor")


def _read_directory(directory: Path) -> Mapping[str, StoredTensor]:
    index = directory / INDEX_NAME
    if index.is_file():
        return _read_sharded(directory, index)
    single = directory / SINGLE_NAME
    if single.is_file():
        return read_header(single)
    files = sorted(directory.glob("*.safetensors"))
    if len(files) == 1:
        return read_header(files[0])
    _refuse_pickle(sorted(directory.iterdir()) if directory.is_dir() else [])
    if files:
        raise BadModelFile(
            f"{directory} has {len(files)} .safetensors files and no {INDEX_NAME}.",
            hint="Fetch the index as well: it says which tensor is in which file.",
        )
    raise BadModelFile(f"{directory} has no .safetensors file.", hint="Give the directory of a Hugging Face model.")


def _read_sharded(directory: Path, index: Path) -> dict[str, StoredTensor]:
    shards = _index_shards(index)
    tensors: dict[str, StoredTensor] = {}
    for shard, promised in sorted(shards.items()):
        path = directory / shard
        if not path.is_file():
            raise BadModelFile(f"{path} is missing.", hint="Fetch the model again: the download is incomplete.")
        found = read_header(path)
        if missing := promised - found.keys():
            raise _bad(path, f"lacks tensor {min(missing)!r}, which the index promises")
        if extra := found.keys() - promised:
            raise _bad(path, f"has tensor {min(extra)!r}, which the index does not name there")
        tensors.update(found)
    return tensors


def _index_shards(index: Path) -> dict[str, set[str]]:
    try:
        if index.stat().st_size > MAX_INDEX_BYTES:
            raise _bad(index, "is too large for an index")
        text = index.read_bytes()
    except OSError as error:
        raise BadModelFile(f"{index} cannot be read: {error.strerror or error}.") from error
    weight_map = _json_object(index, text).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise _bad(index, "has no weight_map")
    shards: dict[str, set[str]] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not is_shard_name(shard):
            raise _bad(index, f"puts tensor {name!r} into {shard!r}, which is not the name of a .safetensors file")
        shards.setdefault(shard, set()).add(name)
    return shards


def is_shard_name(name: str) -> bool:
    """Whether an index may name a shard so: a .safetensors file beside it, or in a folder below."""
    return name.endswith(".safetensors") and all(is_plain_file_name(part) for part in name.split("/"))


def is_plain_file_name(name: str) -> bool:
    """Whether `name` is one path component on every system: no directory, drive, "..", or control character."""
    return (
        bool(name)
        and name not in (".", "..")
        and name.isprintable()
        and PurePosixPath(name).name == name
        and PureWindowsPath(name).name == name
    )


def plain_file_name(name: str) -> str:
    """What is left of a name on this system that is one on every system; "" for nothing."""
    return "".join(letter for letter in name if letter.isprintable() and letter not in "/\\:")


def _refuse_pickle(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"):
            raise UnsupportedModel(
                f"{path.name} is a pickled checkpoint, which can run any code when it is opened.",
                hint="Use the model's .safetensors files; most repositories have them, often as a revision or a fork.",
            )


def _json_object(path: Path, text: bytes) -> dict[str, Any]:
    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("a name occurs twice")
        return result

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"does not hold valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise _bad(path, "does not hold a JSON object")
    return value


def _bad(path: Path, what: str) -> BadModelFile:
    return BadModelFile(f"{path.name} {what}.", hint=f"The file is damaged or not what its name says: {FETCH_AGAIN}.")
