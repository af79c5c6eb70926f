"""What the headers of a model's files say that an estimate needs, for files here and for files on the hub alike.

It reads headers and config.json, never weights. It knows formats, and no device or backend.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from runner.config import DEFAULT_CTX
from runner.errors import BadModelFile
from runner.model_config.shape import NO_SHAPE, Shape
from runner.model_config.shapes import config_shape
from runner.quant.gguf_file import GgufHeader, read_header
from runner.quant.gguf_shape import gguf_shape
from runner.quant.json_file import read_json, read_json_if_there
from runner.quant.packed_files import MANIFEST_NAME
from runner.quant.safetensors_file import FLOAT_TYPES, StoredTensor
from runner.quant.safetensors_file import read_header as read_safetensors
from runner.types import ReadyModel, WeightsFormat

CONFIG: Final = "config.json"


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """weights_bytes: of the tensors as they are stored.

    num_parameters: of the text model, as the config or the files tell, 0 where neither does. stored_parameters: of all
    that the files hold, where they tell. quantization: the weight format's name.
    """

    format: WeightsFormat
    shape: Shape
    weights_bytes: int
    num_parameters: int
    quantization: str
    stored_parameters: int = 0

    @property
    def bpw(self) -> float:
        """Bits a weight takes in the files, scales included; 0 when the number of weights is not known."""
        count = self.stored_parameters or self.num_parameters
        return 8 * self.weights_bytes / count if count else 0.0


NO_FACTS: Final = ModelFacts(format="script", shape=NO_SHAPE, weights_bytes=0, num_parameters=0, quantization="")


def read_facts(model: ReadyModel) -> ModelFacts:
    """The facts of files on this machine. Raises BadModelFile."""
    if model.format == "gguf":
        return gguf_facts([read_header(path) for path in model.weights])
    if model.format == "script":
        return NO_FACTS
    tensors = [tensor for path in model.weights for tensor in read_safetensors(path).values()]
    manifest = read_json_if_there(model.directory / MANIFEST_NAME)
    return safetensors_facts(read_json(model.directory / CONFIG), tensors, manifest)


def gguf_facts(headers: Sequence[GgufHeader]) -> ModelFacts:
    """The facts of a GGUF from the headers of all its parts, in order. Raises BadModelFile, also for no weights."""
    if not any(header.tensors for header in headers):
        raise BadModelFile(
            f"{headers[0].path.name} has no weights: it is a vocabulary, or the beginning of a model.",
            hint="Choose another file of it.",
        )
    shape = gguf_shape(headers)
    return ModelFacts(
        format="gguf",
        shape=shape,
        weights_bytes=sum(tensor.size_bytes for header in headers for tensor in header.tensors),
        num_parameters=shape.num_parameters,
        quantization=headers[0].quantization,
    )


def safetensors_facts(
    config: Mapping[str, Any],
    tensors: Sequence[StoredTensor],
    manifest: Mapping[str, Any] | None = None,
    *,
    size_bytes: int | None = None,
) -> ModelFacts:
    """The facts of safetensors files. Raises BadModelFile.

    tensors: of all files; or, with `size_bytes` of all files, of the first ones alone, which then tell the type of the
    weights and not their number. manifest: of a model that `runner quantize` packed; its tensors are codes and scales,
    so that config.json alone says how many weights there are.
    """
    shape = config_shape(config)
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
    dtype = max(sizes, key=lambda name: sizes[name], default="")
    is_plain = not manifest and set(sizes) <= FLOAT_TYPES and not config.get("quantization_config")
    counted = sum(math.prod(tensor.shape) for tensor in tensors) if size_bytes is None and is_plain else 0
    return ModelFacts(
        format="packed" if manifest else "safetensors",
        shape=_with_doubts(shape, counted),
        weights_bytes=sum(sizes.values()) if size_bytes is None else size_bytes,
        num_parameters=_text_parameters(shape.num_parameters, counted),
        quantization=_label(config, dtype, manifest),
        stored_parameters=counted,
    )


def _text_parameters(by_config: int, by_files: int) -> int:
    """Weights of the text model. Files hold more where there are other parts, and less where config.json is wrong."""
    return min(by_config, by_files) if by_config and by_files else by_config or by_files


def _with_doubts(shape: Shape, by_files: int) -> Shape:
    """With a note when the files hold less than config.json describes, by more than embeddings that it calls untied."""
    if not by_files or by_files + shape.vocab_size * shape.hidden_size >= 0.99 * shape.num_parameters:
        return shape
    doubt = (
        f"The files hold {by_files:,} weights and config.json describes {shape.num_parameters:,}: "
        "parts are missing, or they do not belong together."
    )
    return dataclasses.replace(shape, notes=(*shape.notes, doubt))


def _label(config: Mapping[str, Any], dtype: str, manifest: Mapping[str, Any] | None) -> str:
    """The name of the weight format: the manifest's, the quantizer's that config.json names, or the tensors' type."""
    packed = (manifest or {}).get("format")
    if isinstance(packed, str) and packed:
        return packed.upper()
    quantizer = config.get("quantization_config")
    method = quantizer.get("quant_method") if isinstance(quantizer, Mapping) else None
    return method.upper() if isinstance(method, str) and method else dtype


def default_context(shape: Shape) -> int:
    """The context that the model was trained for; where that is not known, the one that is taken by default."""
    return shape.context_length or DEFAULT_CTX
