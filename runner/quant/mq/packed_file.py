"""model.safetensors of a packed model, written tensor by tensor in any order, so that a killed run can go on.

All sizes follow from the plan, so the header comes first and every tensor has its place from the start. A journal
beside the file names the tensors that are on the disk, each with the sha256 of its bytes; a tensor counts as done after
its line is. The journal also keeps what a producer asks it to. It knows nothing of how tensors are made.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from runner.measures import decimal_size
from runner.quant.journal import append_line, whole_lines, write_all
from runner.quant.mq.manifest import TensorRecord
from runner.quant.mq.plan import PackedPlan, TensorPlan, plain_plan
from runner.quant.mq.tensor_format import Encoded, Part
from runner.quant.packed_files import JOURNAL_NAME, WEIGHTS_NAME
from runner.quant.work_directory import no_room

ALIGNMENT: Final = 128  # bytes: what a GPU reads at once
PADDING: Final = "__padding__."  # names of the entries that fill up to the alignment: the format allows no holes
DTYPE_NAMES: Final[Mapping[torch.dtype, str]] = MappingProxyType(
    {
        torch.float32: "F32",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.int32: "I32",
        torch.int8: "I8",
        torch.uint8: "U8",
    }
)

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one part lies: `offset` in the file."""

    part: Part
    offset: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """header: the file's first bytes. places: by tensor, then by suffix."""

    header: bytes
    places: Mapping[str, Mapping[str, Place]]
    total_bytes: int


def entry_name(tensor: str, suffix: str) -> str:
    """What the file calls a part: "<tensor>.<suffix>", or the tensor's own name for one that is kept."""
    return f"{tensor}.{suffix}" if suffix else tensor


def lay_out(tensors: tuple[TensorPlan, ...]) -> Layout:
    """The file of these tensors, in their order, every part aligned."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    relative: dict[str, dict[str, Place]] = {}
    end = 0
    for tensor in tensors:
        for suffix, part in tensor.parts.items():
            if gap := -end % ALIGNMENT:
                entries[f"{PADDING}{end}"] = {"dtype": "U8", "shape": [gap], "data_offsets": [end, end + gap]}
                end += gap
            name = entry_name(tensor.name, suffix)
            assert name not in entries, name
            entries[name] = {
                "dtype": DTYPE_NAMES[part.dtype],
                "shape": list(part.shape),
                "data_offsets": [end, end + part.nbytes],
            }
            relative.setdefault(tensor.name, {})[suffix] = Place(part=part, offset=end)
            end += part.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    places = {
        name: {suffix: Place(part=place.part, offset=len(header) + place.offset) for suffix, place in found.items()}
        for name, found in relative.items()
    }
    return Layout(header=header, places=places, total_bytes=len(header) + end)


@dataclass(frozen=True, kw_only=True)
class _Done:
    """A journal's line: a tensor that is in the file."""

    parameters: Mapping[str, int]
    sha256: str
    weight_error: float | None


class PackedFile:
    """The file and its journal in `directory`, which the caller has locked. Made by `opened`."""

    def __init__(self, directory: Path, plan: PackedPlan, layout: Layout, file: int, journal: int) -> None:
        self.path = directory / WEIGHTS_NAME
        self._plan = plan
        self._layout = layout
        self._file = file
        self._journal = journal
        self._done: dict[str, _Done] = {}
        self._kept: dict[str, Any] = {}

    @property
    def done(self) -> frozenset[str]:
        """The tensors that are written."""
        return frozenset(self._done)

    def write(self, name: str, encoded: Encoded, weight_error: float | None = None) -> None:
        """Put one tensor in its place, and on the disk, before the journal says so.

        weight_error: see TensorRecord. Raises DoesNotFit when the disk is full; what was done before is kept.
        """
        places = self._layout.places[name]
        assert encoded.parts.keys() == places.keys(), (name, list(encoded.parts))
        digest = hashlib.sha256()
        with self._full_disk():
            for suffix, place in places.items():
                tensor = encoded.parts[suffix]
                assert tensor.dtype == place.part.dtype, (name, suffix)
                assert tuple(tensor.shape) == place.part.shape, (name, suffix)
                data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
                digest.update(data)
                write_all(self._file, data, place.offset)
            _sync(self._file)
            done = _Done(parameters=dict(encoded.parameters), sha256=digest.hexdigest(), weight_error=weight_error)
            line = {
                "tensor": name,
                "parameters": done.parameters,
                "sha256": done.sha256,
                "weight_error": done.weight_error,
            }
            append_line(self._journal, line)
        self._done[name] = done

    def read(self, name: str) -> Encoded:
        """One tensor that was written. Raises KeyError for one that was not."""
        done = self._done[name]
        parts = {suffix: self._read_part(place) for suffix, place in self._layout.places[name].items()}
        return Encoded(parts=parts, parameters=done.parameters)

    def keep(self, key: str, value: Any) -> None:
        """Put something else, as JSON, beside the tensors until the file is whole, for a run that goes on after this.

        Raises DoesNotFit when the disk is full.
        """
        with self._full_disk():
            append_line(self._journal, {"kept": key, "value": value})
        self._kept[key] = value

    def kept(self, key: str) -> Any:
        """What was kept under that key, by this run or an earlier one; None when there is nothing."""
        return self._kept.get(key)

    def records(self) -> dict[str, TensorRecord]:
        """What the manifest says of every tensor; all of them must be done."""
        return {
            tensor.name: TensorRecord(
                format=tensor.format,
                shape=tensor.shape,
                input_rotation=tensor.input_rotation,
                parameters=self._done[tensor.name].parameters,
                sha256=self._done[tensor.name].sha256,
                weight_error=self._done[tensor.name].weight_error,
            )
            for tensor in self._plan.tensors
        }

    def _read_part(self, place: Place) -> Tensor:
        return _part_of(self._file, place)

    def start(self, identity: str) -> None:
        """Begin an empty file: room for all of it, its header, and the journal's first line."""
        with self._full_disk():
            os.ftruncate(self._journal, 0)
            os.ftruncate(self._file, 0)
            _reserve(self._file, self._layout.total_bytes)
            write_all(self._file, memoryview(self._layout.header), 0)
            _sync(self._file)
            append_line(self._journal, {"plan": identity})

    def resume(self, identity: str, on_progress: OnProgress) -> bool:
        """Take over what an earlier run with the same plan wrote; False when there is none of it.

        Tensors whose bytes are not those of the journal are made again. on_progress: see quantize.OnStage.
        """
        lines = whole_lines(self._journal)
        if not lines or lines[0] != {"plan": identity}:
            return False
        header = os.pread(self._file, len(self._layout.header), 0)
        if header != self._layout.header or os.fstat(self._file).st_size != self._layout.total_bytes:
            return False
        self._kept = {line["kept"]: line.get("value") for line in lines[1:] if isinstance(line.get("kept"), str)}
        recorded = {line["tensor"]: _done_of(line) for line in lines[1:] if isinstance(line.get("tensor"), str)}
        for index, (name, done) in enumerate(recorded.items()):
            on_progress("checking", index, len(recorded))
            if name not in self._layout.places or done is None:
                continue
            if _sha256(self._file, self._layout.places[name].values()) == done.sha256:
                self._done[name] = done
        if recorded:
            on_progress("checking", len(recorded), len(recorded))
        return True

    @contextmanager
    def _full_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            done = f"{len(self._done)} of {len(self._plan.tensors)} tensors are done, of "
            size = decimal_size(self._layout.total_bytes)
            if full := no_room(error, self.path.parent.parent, f"{done}{size} in all", ": it goes on from there"):
                raise full from error
            raise


@contextmanager
def opened(
    directory: Path, plan: PackedPlan, made_from: Mapping[str, Any], on_progress: OnProgress
) -> Iterator[tuple[PackedFile, bool]]:
    """The file of `plan` in `directory`, and whether it is a new one.

    made_from: what the contents depend on besides the plan (source, producer, version), as JSON. Raises DoesNotFit.
    """
    identity = hashlib.sha256(json.dumps([plain_plan(plan), made_from], sort_keys=True).encode()).hexdigest()
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    # The journal first: weights without one are somebody's own model, which is never touched (work_directory.py).
    journal = os.open(directory / JOURNAL_NAME, flags, 0o644)
    try:
        file = os.open(directory / WEIGHTS_NAME, flags, 0o644)
        try:
            packed = PackedFile(directory, plan, lay_out(plan.tensors), file, journal)
            is_new = not packed.resume(identity, on_progress)
            if is_new:
                packed.start(identity)
            yield packed, is_new
        finally:
            os.close(file)
    finally:
        os.close(journal)


# --- bytes -----------------------------------------------------------------------------------------------------------


def _reserve(file: int, size: int) -> None:
    """Make the file `size` bytes long, with the disk's word that they are there where the system can give it."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
    os.ftruncate(file, size)


def _sync(file: int) -> None:
    """Wait until what was written is on the disk; macOS has the slower call alone."""
    getattr(os, "fdatasync", os.fsync)(file)


def _done_of(line: Mapping[str, Any]) -> _Done | None:
    """What a line says of its tensor; None for a line that is damaged."""
    parameters, sha256, error = line.get("parameters"), line.get("sha256"), line.get("weight_error")
    if not isinstance(parameters, dict) or not isinstance(sha256, str) or not isinstance(error, float | None):
        return None
    return _Done(parameters=parameters, sha256=sha256, weight_error=error)


def _part_of(file: int, place: Place) -> Tensor:
    data = np.empty(place.part.nbytes, np.uint8)
    view, at = data.data, 0
    while at < len(data):
        count = os.preadv(file, [view[at:]], place.offset + at)
        if count == 0:
            raise OSError(errno.EIO, "the file ends early")
        at += count
    return torch.from_numpy(data).view(place.part.dtype).view(place.part.shape)


def _sha256(file: int, places: Any) -> str:
    digest = hashlib.sha256()
    for place in places:
        at, end = place.offset, place.offset + place.part.nbytes
        while at < end:
            data = os.pread(file, min(2**24, end - at), at)
            if not data:
                break
            digest.update(data)
            at += len(data)
    return digest.hexdigest()
