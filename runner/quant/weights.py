"""The tensors of a model under their Hugging Face names, whatever file they lie in: safetensors, or a GGUF.

Headers are read and checked when a source is opened; a tensor, or a few of its rows, is read, decoded and put back into
the order of the checkpoint when it is asked for. It knows nothing of torch or of the model's modules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from runner.errors import BadModelFile, UnsupportedModel
from runner.model_config import ModelConfig
from runner.quant.architectures import ARCHITECTURES, architecture_of
from runner.quant.expert_stacks import LAYOUTS, MXFP4, Part, expert_parts, is_stack, read_part, stored_part
from runner.quant.fp8 import FP8, scale_of
from runner.quant.fp8 import decode as decode_fp8
from runner.quant.fp8 import matrices_of as fp8_matrices_of
from runner.quant.ggml_types import GGML_TYPES, GgmlType, decode
from runner.quant.gguf_file import GgufHeader, GgufTensor, parts_of
from runner.quant.gguf_file import read_header as read_gguf_header
from runner.quant.origin import called
from runner.quant.packed_files import HEAD_NAME
from runner.quant.safetensors_file import FLOAT_TYPES, Checkpoint, StoredTensor
from runner.quant.safetensors_file import read_header as read_safetensors_header
from runner.quant.tensor_rules import Architecture, PlannedTensor, may_be_left_out, plan, tensors_of
from runner.quant.text_tensors import of_text_model
from runner.types import ReadyModel

EMBEDDINGS: Final = "model.embed_tokens.weight"
OUTPUT: Final = "lm_head.weight"
LAYER_EMBEDDINGS: Final = "model.embed_tokens_per_layer.weight"  # Gemma 4's small models
# The GGUF types that the native backend runs: those whose dense form is not much larger than the file.
PLAIN_GGUF_TYPES: Final = frozenset({"F32", "F16", "BF16", "Q8_0"})
_MANY: Final = 2**12  # layers and matrices of experts
_ROPE_TABLE: Final = "rope_freqs.weight"  # llama3's divisors as llama.cpp wants them; ours follow from config.json


class Weights(Protocol):
    """Tensors by Hugging Face name.

    types: how each is stored, as safetensors or ggml calls it ("BF16", "Q4_K"). bits: stored bits a weight, by name.
    quantization: the type that most weights have; where: the file's, directory's or repository's
    name; both for people.
    """

    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, str]
    bits: Mapping[str, float]
    quantization: str
    where: str

    def read(self, name: str) -> NDArray[Any]:
        """One tensor in its shape: float32 or float16, or bfloat16 as uint16 bits. Raises OSError."""
        ...

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Rows start to stop - 1 of one tensor, a copy, in the same types. Raises OSError."""
        ...


def open_weights(model: ReadyModel, config: ModelConfig) -> Weights:
    """Read and check the headers of the files of a model to be run, and no weights.

    Raises BadModelFile for malformed files, UnsupportedModel for types that cannot be run as they are. A GGUF's tensors
    are matched with the architecture's here, since they must be renamed; all of them are matched with the model's own
    parameters when it is loaded.
    """
    if model.format == "gguf":
        weights = GgufWeights(model.weights[0], config)
        weights.require_types(PLAIN_GGUF_TYPES)  # what can run it instead is said by whoever chooses a backend
        return weights
    return SafetensorsWeights(model.weights, config)


def open_source(directory: Path, gguf: Path | None, config: ModelConfig) -> Weights:
    """The same for a model to be quantized: the GGUF if there is one, else the safetensors of `directory`.

    A GGUF may have every type that can be decoded without llama.cpp, the K-quants too.
    """
    if gguf is None:
        shards = _shards_of(Checkpoint.open(directory))
        if not shards:
            raise BadModelFile(f"The safetensors of {called(directory)} hold no tensor.", hint="Fetch the model again.")
        return SafetensorsWeights(tuple(shards), config)
    weights = GgufWeights(gguf, config)
    decodable = {kind for kind in set(weights.types.values()) if is_decodable(kind)}
    weights.require_types(decodable, hint="Quantize the model that the file was made from.")
    return weights


def check_count(weights: Weights, config: ModelConfig) -> None:
    """Raise BadModelFile for thousands of layers and matrices of experts where there are fewer tensors, before anything
    is made of so many: a damaged config.json may ask for them. Of fewer, whoever builds them tells which lack."""
    experts = config.experts
    least = config.num_layers + (3 * experts.count * len(experts.layers) if experts else 0)
    if len(weights.shapes) < least and least >= _MANY:
        raise BadModelFile(
            f"{weights.where} has {len(weights.shapes)} tensors, and by config.json there are more than {least}.",
            hint="Fetch the model again; if it is complete, its config.json does not belong to it.",
        )


def files_of(directory: Path) -> tuple[Path, ...]:
    """The safetensors of a model to be quantized, and of a head beside it. Others that lie there are not the model's:
    adapters, or the same weights again, as Mistral's consolidated.safetensors are."""
    head = directory / HEAD_NAME
    return tuple(sorted({*_shards_of(Checkpoint.open(directory)), *([head] if head.is_file() else [])}))


def _shards_of(checkpoint: Checkpoint) -> list[Path]:
    return sorted({tensor.path for tensor in checkpoint.tensors.values()})


@cache
def is_decodable(kind: str) -> bool:
    """Whether tensors of that ggml type can be decoded here."""
    stored = next(known for known in GGML_TYPES.values() if known.name == kind)
    try:
        decode(np.zeros((1, stored.block_bytes), np.uint8), stored)
    except NotImplementedError:
        return False
    return True


class SafetensorsWeights:
    """One or more .safetensors files: the text model's own tensors of them (text_tensors.py)."""

    def __init__(self, paths: tuple[Path, ...], config: ModelConfig) -> None:
        self.where = paths[0].name if len(paths) == 1 else called(paths[0].parent)
        tensors: dict[str, StoredTensor] = {}
        for path in paths:
            shard = read_safetensors_header(path)
            if twice := sorted(tensors.keys() & shard.keys()):
                raise BadModelFile(f"Tensor {twice[0]!r} is in two files, {path.name} being the second.")
            tensors.update(shard)
        tensors = of_text_model(tensors, config.model_type)
        self._checkpoint = Checkpoint(MappingProxyType(tensors))
        self._copy_is_checked = False
        experts = config.experts
        layout = LAYOUTS.get(config.model_type) if experts else None
        self._experts = expert_parts(self._checkpoint, experts.count, layout) if experts and layout else {}
        fp8 = fp8_matrices_of(tensors)
        self._fp8_scales = fp8.scales
        found: dict[str, StoredTensor | Part] = {
            name: tensor
            for name, tensor in tensors.items()
            if not may_be_left_out(name, config) and not (layout and is_stack(name)) and name not in fp8.set_aside
        }
        found |= self._experts
        self.shapes: Mapping[str, tuple[int, ...]] = {name: tensor.shape for name, tensor in found.items()}
        self.types: Mapping[str, str] = {name: tensor.dtype for name, tensor in found.items()}
        for name, dtype in self.types.items():
            if dtype not in FLOAT_TYPES and dtype != MXFP4 and name not in fp8.scales:
                raise UnsupportedModel(
                    f"Tensor {name!r} is stored as {dtype}.",
                    hint="Use the model's F32, F16 or BF16 version, or a GGUF of it with --backend llamacpp.",
                )
        self.bits: Mapping[str, float] = {
            name: 8 * tensor.nbytes / max(1, math.prod(tensor.shape)) for name, tensor in found.items()
        }
        self.quantization = _commonest(self.types, self.shapes)

    def read(self, name: str) -> NDArray[Any]:
        if name in self._experts or name in self._fp8_scales:
            return self.read_rows(name, 0, self.shapes[name][0])
        raw = self._raw(name)
        return raw.astype(np.float32) if raw.dtype == np.float64 else raw

    def stored(self, name: str) -> StoredTensor | None:
        """Where the values of one tensor lie as `read` gives them, None where it does more than to read them."""
        if name in self._experts:
            return stored_part(self._checkpoint, name, self._experts[name])
        if self.types[name] in ("F64", FP8):
            return None
        if name == EMBEDDINGS and OUTPUT not in self.shapes and OUTPUT in self._checkpoint.tensors:
            return None  # they are compared
        return self._checkpoint.tensors[name]

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        if name in self._experts:
            return read_part(self._checkpoint, self._experts[name], start, stop)
        if scale := self._fp8_scales.get(name):
            return decode_fp8(self._raw(name)[start:stop], scale_of(self._checkpoint, scale))
        rows = np.array(self._raw(name)[start:stop])
        return rows.astype(np.float32) if rows.dtype == np.float64 else rows

    def _raw(self, name: str) -> NDArray[Any]:
        if name == EMBEDDINGS and not self._copy_is_checked:
            self._check_tied_copy()
            self._copy_is_checked = True
        return self._checkpoint.raw(name)

    def _check_tied_copy(self) -> None:
        """A checkpoint of tied embeddings may carry the output matrix too, but then it must be the same one."""
        if OUTPUT in self.shapes or OUTPUT not in self._checkpoint.tensors:
            return
        if not np.array_equal(self._checkpoint.raw(OUTPUT), self._checkpoint.raw(EMBEDDINGS)):
            raise BadModelFile(
                f"config.json ties the embeddings, but the checkpoint's {OUTPUT!r} differs from them.",
                hint="Set tie_word_embeddings to false in config.json (in text_config, where it has one) if the output "
                "matrix is meant to be used.",
            )


@dataclass(frozen=True)
class _Placed:
    """A tensor of a GGUF: the part that holds it, where it is there, and what it is in the checkpoint."""

    header: GgufHeader
    tensor: GgufTensor
    planned: PlannedTensor


class GgufWeights:
    """One GGUF file, or all parts of a split one."""

    def __init__(self, path: Path, config: ModelConfig) -> None:
        self.where = path.name
        if config.model_type not in ARCHITECTURES:
            raise UnsupportedModel(
                f"A GGUF of a {config.model_type} model cannot be read here.",
                hint="Use --backend llamacpp for it, or the model's safetensors.",
            )
        architecture = architecture_of(config.model_type)
        headers = [read_gguf_header(part) for part in parts_of(path)]
        if headers[0].architecture != architecture.gguf_name:
            raise BadModelFile(
                f"{path.name} is a {headers[0].architecture!r} model, and config.json beside it says "
                f"{config.model_type!r}.",
                hint="Put the config.json of the same model beside the GGUF, or use --backend llamacpp.",
            )
        stored = {tensor.name: (header, tensor) for header in headers for tensor in header.tensors}
        stored.pop(_ROPE_TABLE, None)
        sources = _source_names(architecture, config.num_layers)
        wanted = {tensor.target: tensor for tensor in tensors_of(architecture, config)}
        shapes = {sources.get(name, name): _checkpoint_shape(tensor, wanted) for name, (_, tensor) in stored.items()}
        planned = plan(architecture, config, shapes)
        self._placed = {tensor.source: _Placed(*stored[tensor.target], tensor) for tensor in planned}
        self.shapes: Mapping[str, tuple[int, ...]] = {tensor.source: tensor.shape for tensor in planned}
        self.types: Mapping[str, str] = {name: placed.tensor.type.name for name, placed in self._placed.items()}
        self.bits: Mapping[str, float] = {
            name: 8 * placed.tensor.size_bytes / max(1, placed.tensor.num_values)
            for name, placed in self._placed.items()
        }
        self.quantization = headers[0].quantization

    def require_types(self, readable: Iterable[str], *, hint: str = "") -> None:
        """Raise UnsupportedModel for the first tensor whose type is none of these."""
        allowed = frozenset(readable)
        for placed in self._placed.values():
            if placed.tensor.type.name not in allowed:
                raise UnsupportedModel(
                    f"Tensor {placed.tensor.name!r} has type {placed.tensor.type.name}; what can be read here is "
                    f"{', '.join(sorted(allowed)) or 'none of its types'}.",
                    hint=hint,
                )

    def read(self, name: str) -> NDArray[Any]:
        return self.read_rows(name, 0, self.shapes[name][0])

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        placed = self._placed[name]
        tensor, planned = placed.tensor, placed.planned
        raw = placed.header.read_raw(tensor)
        if len(tensor.shape) == 1:
            found = _in_columns(_decode(raw[None], tensor.type), planned.row_order)[0, start:stop]
        else:
            rows = raw.reshape(tensor.shape[0], -1)
            taken = rows[start:stop] if planned.row_order is None else rows[np.argsort(planned.row_order)[start:stop]]
            found = _in_columns(_decode(taken, tensor.type), planned.column_order)
        if planned.change is not None:
            found = planned.change.to_checkpoint(found)
        return found.reshape(-1, *planned.shape[1:])


def _in_columns(rows: NDArray[np.float32], order: NDArray[np.intp] | None) -> NDArray[np.float32]:
    """Rows whose columns were brought into that order, as they were before."""
    return rows if order is None else rows[:, np.argsort(order)]


def _decode(rows: NDArray[np.uint8], kind: GgmlType) -> NDArray[np.float32]:
    """Rows of stored bytes [R, bytes] as values [R, K]; it never shares memory with the file."""
    return np.array(decode(rows, kind), dtype=np.float32)


def _checkpoint_shape(tensor: GgufTensor, planned: Mapping[str, PlannedTensor]) -> tuple[int, ...]:
    """The shape of a GGUF's tensor in a checkpoint, if it has the one that it should have, else its own."""
    wanted = planned.get(tensor.name)
    return wanted.shape if wanted is not None and tensor.shape == wanted.gguf_shape else tensor.shape


def _source_names(architecture: Architecture, num_layers: int) -> dict[str, str]:
    """The Hugging Face name of every GGUF tensor that the architecture may have."""
    return {
        rule.target.format(layer=layer): rule.source.format(layer=layer)
        for rule in architecture.rules
        for layer in range(num_layers)
    }


def _commonest(types: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]) -> str:
    sizes: dict[str, int] = {}
    for name, kind in types.items():
        sizes[kind] = sizes.get(kind, 0) + math.prod(shapes[name])
    return max(sizes, key=sizes.__getitem__, default="")
