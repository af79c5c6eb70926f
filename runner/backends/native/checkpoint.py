"""The tensors of a model under their Hugging Face names, whatever file they lie in: safetensors, or a GGUF.

Headers are read and checked when a source is opened; a tensor is mapped, decoded and put back into the order of the
checkpoint when it is asked for. It knows nothing of torch or of the model's modules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runner.errors import BadModelFile, UnsupportedModel
from runner.model_config import ModelConfig
from runner.quant.architectures import architecture_of
from runner.quant.gguf_file import GgufHeader, GgufTensor, parts_of
from runner.quant.gguf_file import read_header as read_gguf_header
from runner.quant.safetensors_file import FLOAT_TYPES, Checkpoint, StoredTensor
from runner.quant.safetensors_file import read_header as read_safetensors_header
from runner.quant.tensor_rules import Architecture, PlannedTensor, is_derived, plan
from runner.types import ReadyModel

_EMBEDDINGS = "model.embed_tokens.weight"
_OUTPUT = "lm_head.weight"
_READABLE_GGUF = frozenset({"F32", "F16", "BF16", "Q8_0"})
_ROPE_TABLE = "rope_freqs.weight"  # llama3's divisors as llama.cpp wants them; ours follow from config.json


class Weights(Protocol):
    """Tensors by Hugging Face name. quantization: the type that most weights have; where: the file's or directory's
    name; both for people."""

    shapes: Mapping[str, tuple[int, ...]]
    quantization: str
    where: str

    def read(self, name: str) -> NDArray[Any]:
        """One tensor in its shape: float32 or float16, or bfloat16 as uint16 bits. Raises OSError."""
        ...


def open_weights(model: ReadyModel, config: ModelConfig) -> Weights:
    """Read and check the headers of the model's files, and no weights.

    Raises BadModelFile for malformed files, UnsupportedModel for types that cannot be read. A GGUF's tensors are
    matched with the architecture's here, since they must be renamed; all of them are matched with the model's own
    parameters when it is loaded (loader.py).
    """
    if model.format == "gguf":
        return GgufWeights(model.weights[0], config)
    return SafetensorsWeights(model.weights, config)


class SafetensorsWeights:
    """One or more .safetensors files."""

    def __init__(self, paths: tuple[Path, ...], config: ModelConfig) -> None:
        self.where = paths[0].name if len(paths) == 1 else paths[0].parent.name
        tensors: dict[str, StoredTensor] = {}
        for path in paths:
            shard = read_safetensors_header(path)
            if twice := sorted(tensors.keys() & shard.keys()):
                raise BadModelFile(f"Tensor {twice[0]!r} is in two files, {path.name} being the second.")
            tensors.update(shard)
        self._checkpoint = Checkpoint(MappingProxyType(tensors))
        self.shapes: Mapping[str, tuple[int, ...]] = {
            name: tensor.shape for name, tensor in tensors.items() if not is_derived(name, config)
        }
        for name in self.shapes:
            if tensors[name].dtype not in FLOAT_TYPES:
                raise UnsupportedModel(
                    f"Tensor {name!r} is stored as {tensors[name].dtype}.",
                    hint="Use the model's F32, F16 or BF16 version, or a GGUF of it with --backend llamacpp.",
                )
        self.quantization = _commonest({name: tensors[name].dtype for name in self.shapes}, self.shapes)

    def read(self, name: str) -> NDArray[Any]:
        raw = self._checkpoint.raw(name)
        if name == _EMBEDDINGS and _OUTPUT not in self.shapes and _OUTPUT in self._checkpoint.tensors:
            self._check_tied_copy(raw)
        return raw.astype(np.float32) if raw.dtype == np.float64 else raw

    def _check_tied_copy(self, embeddings: NDArray[Any]) -> None:
        """A checkpoint of tied embeddings may carry the output matrix too, but then it must be the same one."""
        if not np.array_equal(self._checkpoint.raw(_OUTPUT), embeddings):
            raise BadModelFile(
                f"config.json ties the embeddings, but the checkpoint's {_OUTPUT!r} differs from them.",
                hint="Set tie_word_embeddings to false in config.json if the output matrix is meant to be used.",
            )


@dataclass(frozen=True)
class _Placed:
    """A tensor of a GGUF: the part that holds it, where it is there, and what it is in the checkpoint."""

    header: GgufHeader
    tensor: GgufTensor
    planned: PlannedTensor


class GgufWeights:
    """One GGUF file, or all parts of a split one, with tensors of types that need no llama.cpp."""

    def __init__(self, path: Path, config: ModelConfig) -> None:
        self.where = path.name
        headers = [read_gguf_header(part) for part in parts_of(path)]
        architecture = architecture_of(config.model_type)
        if headers[0].architecture != architecture.gguf_name:
            raise BadModelFile(
                f"{path.name} is a {headers[0].architecture!r} model, and config.json beside it says "
                f"{config.model_type!r}.",
                hint="Put the config.json of the same model beside the GGUF, or use --backend llamacpp.",
            )
        stored = {tensor.name: (header, tensor) for header in headers for tensor in header.tensors}
        stored.pop(_ROPE_TABLE, None)
        sources = _source_names(architecture, config.num_layers)
        shapes = {sources.get(name, name): tensor.shape for name, (_, tensor) in stored.items()}
        planned = plan(architecture, config, shapes)
        self._placed = {tensor.source: _Placed(*stored[tensor.target], tensor) for tensor in planned}
        self.shapes: Mapping[str, tuple[int, ...]] = {tensor.source: tensor.shape for tensor in planned}
        self.quantization = headers[0].quantization
        _refuse_types(self._placed.values())

    def read(self, name: str) -> NDArray[Any]:
        placed = self._placed[name]
        values = placed.header.read_f32(placed.tensor)
        order = placed.planned.row_order
        if order is None:
            return values
        restored = np.empty_like(values)
        restored[order] = values
        return restored


def _source_names(architecture: Architecture, num_layers: int) -> dict[str, str]:
    """The Hugging Face name of every GGUF tensor that the architecture may have."""
    return {
        rule.target.format(layer=layer): rule.source.format(layer=layer)
        for rule in architecture.rules
        for layer in range(num_layers)
    }


def _refuse_types(placed: Iterable[_Placed]) -> None:
    for one in placed:
        if one.tensor.type.name not in _READABLE_GGUF:
            raise UnsupportedModel(
                f"Tensor {one.tensor.name!r} has type {one.tensor.type.name}; the native backend reads "
                f"{', '.join(sorted(_READABLE_GGUF))}.",
                hint="Use --backend llamacpp for it.",
            )


def _commonest(types: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]) -> str:
    sizes: dict[str, int] = {}
    for name, kind in types.items():
        sizes[kind] = sizes.get(kind, 0) + math.prod(shapes[name])
    return max(sizes, key=sizes.__getitem__)
