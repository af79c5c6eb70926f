"""A packed model as weights to load: its manifest and file checked against each other, tensors decoded when asked for.

Decoded weights are those of the model's own basis: a rotation that belongs to the input is taken out again, so that a
backend without kernels for the formats computes the same. It knows nothing of backends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from runner.errors import BadModelFile
from runner.quant.json_file import DAMAGED
from runner.quant.mq.formats import TENSOR_FORMATS
from runner.quant.mq.manifest import Manifest, TensorRecord, read_manifest
from runner.quant.mq.packed_file import DTYPE_NAMES, PADDING, entry_name
from runner.quant.mq.plain import Span, row_spans, row_workers
from runner.quant.mq.plan import parts_of
from runner.quant.mq.rotation import unrotate
from runner.quant.mq.tensor_format import Encoded
from runner.quant.origin import called
from runner.quant.packed_files import WEIGHTS_NAME
from runner.quant.safetensors_file import Checkpoint, StoredTensor

_CPU: Final = torch.device("cpu")
_HINT: Final = f"The files are damaged or do not belong together. {DAMAGED}"


class PackedWeights:
    """The tensors of the packed model in `directory`; see Weights.

    Raises BadModelFile when the manifest and the file do not say the same of every part. Reads no weights to find out.
    """

    def __init__(self, directory: Path) -> None:
        self.manifest: Manifest = read_manifest(directory)
        self._checkpoint = Checkpoint.open(directory / WEIGHTS_NAME)
        _check(self.manifest, self._checkpoint)
        tensors = self.manifest.tensors
        self.where = called(directory)
        self.quantization = self.manifest.quantization
        self.shapes: Mapping[str, tuple[int, ...]] = {name: record.shape for name, record in tensors.items()}
        self.types: Mapping[str, str] = {name: record.format for name, record in tensors.items()}
        self.bits: Mapping[str, float] = {name: _bits(record) for name, record in tensors.items()}

    def read(self, name: str) -> NDArray[Any]:
        """One tensor in its shape: float32, or what it is kept as. Raises OSError."""
        record = self.manifest.tensors[name]
        if record.is_kept:
            return np.array(self._checkpoint.raw(name))
        values = np.empty(record.shape, np.float32)

        def read(span: Span) -> None:
            values[span[0] : span[1]] = self.read_rows(name, *span)

        with row_workers(_CPU) as workers:
            list(workers(read, row_spans(*_matrix(record), _CPU)))
        return values

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """See Weights."""
        record = self.manifest.tensors[name]
        if record.is_kept:
            return np.array(self._checkpoint.raw(name)[start:stop])
        form = TENSOR_FORMATS[record.format]
        rows = form.decode(self._encoded(name, record, start, stop), (stop - start, record.shape[1]))
        values: NDArray[np.float32] = (
            rows if record.input_rotation == 1 else unrotate(rows, record.input_rotation)
        ).numpy()
        return values

    def stored(self, name: str) -> Mapping[str, StoredTensor]:
        """Where the parts of one tensor lie, by suffix; of one that is kept there is one part, with the suffix ""."""
        record = self.manifest.tensors[name]
        return {
            suffix: self._checkpoint.tensors[entry_name(name, suffix)]
            for suffix in parts_of(record.format, record.shape)
        }

    def read_encoded(self, name: str) -> Encoded:
        """A quantized matrix as it is stored, for kernels. Raises OSError."""
        record = self.manifest.tensors[name]
        return self._encoded(name, record, 0, record.shape[0])

    def _encoded(self, name: str, record: TensorRecord, start: int, stop: int) -> Encoded:
        parts = {
            suffix: torch.from_numpy(np.array(self._checkpoint.raw(entry_name(name, suffix))[start:stop]))
            for suffix in parts_of(record.format, record.shape)
        }
        return Encoded(parts=parts, parameters=record.parameters)


def _matrix(record: TensorRecord) -> tuple[int, int]:
    rows, columns = record.shape
    return rows, columns


def _bits(record: TensorRecord) -> float:
    return 8 * sum(part.nbytes for part in parts_of(record.format, record.shape).values()) / math.prod(record.shape)


def _check(manifest: Manifest, checkpoint: Checkpoint) -> None:
    """Every part is in the file with the type and shape of its format, and nothing else is but padding."""
    wanted: set[str] = set()
    for name, record in manifest.tensors.items():
        for suffix, part in parts_of(record.format, record.shape).items():
            entry = entry_name(name, suffix)
            wanted.add(entry)
            stored = checkpoint.tensors.get(entry)
            if stored is None:
                raise BadModelFile(f"{WEIGHTS_NAME} lacks {entry!r}.", hint=_HINT)
            if stored.dtype != DTYPE_NAMES[part.dtype] or stored.shape != part.shape:
                raise BadModelFile(
                    f"{WEIGHTS_NAME} has {entry!r} as {stored.dtype} {list(stored.shape)}, not "
                    f"{DTYPE_NAMES[part.dtype]} {list(part.shape)}.",
                    hint=_HINT,
                )
        _check_parameters(name, record)
    if extra := sorted(one for one in checkpoint.tensors.keys() - wanted if not one.startswith(PADDING)):
        raise BadModelFile(f"{WEIGHTS_NAME} has {extra[0]!r}, which the manifest does not name.", hint=_HINT)


def _check_parameters(name: str, record: TensorRecord) -> None:
    """The parameters are those of the format, with values that it can decode."""
    allowed = {} if record.is_kept else TENSOR_FORMATS[record.format].parameters
    if record.parameters.keys() != allowed.keys() or any(
        value not in allowed[key] for key, value in record.parameters.items()
    ):
        raise BadModelFile(f"The manifest gives {name!r} parameters that its format does not have.", hint=_HINT)
