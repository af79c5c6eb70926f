"""A model in one of hipfire's files as a source of weights: Hugging Face names, decoded values, the files beside them.

hipfire keeps the names and the order of rows of the checkpoint, so nothing is renamed. Weights that it scaled by input
channel before quantizing (AWQ, "<name>.awq_scale.weight" beside them) are scaled back. It knows nothing of what the
weights are converted to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runner.errors import FETCH_AGAIN, BadModelFile, UnsupportedModel
from runner.quant.hipfire.container import HfqHeader, HfqTensor, read_header
from runner.quant.hipfire.tensor_types import MQ4_G256, decode_rows, plain_rows
from runner.quant.weights import OUTPUT

_DRAFTS: Final = MappingProxyType({20: "a drafter for speculative decoding", 21: "a prediction head"})


class HfqWeights:
    """The tensors of a container by Hugging Face name; headers are checked when it is opened, weights read when asked.

    Raises BadModelFile and UnsupportedModel as `read_header` does, and UnsupportedModel for a file that is no whole
    model or has rows that are not whole blocks.
    """

    def __init__(self, path: Path) -> None:
        self.header: HfqHeader = read_header(path)
        self.where = path.name
        self.quantization = self.header.quantization
        _refuse_drafts(self.header)
        stored = {tensor.name: tensor for tensor in self.header.tensors}
        self._scales = {name: stored[scale] for name in stored for scale in _scale_names(name) if scale in stored}
        scales = {tensor.name for tensor in self._scales.values()}
        self._tensors = {name: tensor for name, tensor in stored.items() if name not in scales}
        self.shapes: Mapping[str, tuple[int, ...]] = {name: tensor.shape for name, tensor in self._tensors.items()}
        self.types: Mapping[str, str] = {name: tensor.type.name for name, tensor in self._tensors.items()}
        self.bits: Mapping[str, float] = {
            name: 8 * tensor.size_bytes / max(1, tensor.num_values) for name, tensor in self._tensors.items()
        }
        self.total_bytes = sum(tensor.size_bytes for tensor in self.header.tensors)
        for tensor in self._tensors.values():
            _check_shape(tensor, self._scales.get(tensor.name), self.where)

    @property
    def config(self) -> dict[str, Any]:
        """The contents of config.json: hipfire uses lm_head.weight where there is one, whatever the key says."""
        config = dict(self.header.config)
        return {**config, "tie_word_embeddings": False} if OUTPUT in self.shapes else config

    def dtype(self, name: str) -> str:
        """What is read of a tensor: "F32", or "F16" or "BF16" for one that is stored so."""
        return "F32" if name in self._scales else self._tensors[name].type.plain or "F32"

    def read(self, name: str) -> NDArray[Any]:
        """One tensor in its shape: float32 or float16, or bfloat16 as uint16 bits. Raises KeyError, OSError."""
        return self.rows(name, slice(None))

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Rows start to stop - 1 of one tensor, a copy, in the same types. Raises KeyError, OSError."""
        return self.rows(name, slice(start, stop))

    def rows(self, name: str, index: slice | NDArray[np.intp]) -> NDArray[Any]:
        """Some of the rows of a tensor (of a vector, the elements), decoded. Raises KeyError, OSError."""
        tensor = self._tensors[name]
        if tensor.num_values == 0:
            return np.empty(tensor.shape, np.float32)
        if len(tensor.shape) == 1:
            return self._decoded(tensor, self.header.read_raw(tensor).reshape(1, -1)).reshape(-1)[index]
        rows = self.header.read_raw(tensor).reshape(tensor.shape[0], -1)[index]
        return self._decoded(tensor, rows).reshape(-1, *tensor.shape[1:])

    def mq4_blocks(self, name: str) -> NDArray[np.uint8] | None:
        """The blocks [N, K / 256, 136] of an MQ4-G256 matrix as they lie in the file, mapped; None for any other."""
        tensor = self._tensors[name]
        if tensor.type.number != MQ4_G256 or len(tensor.shape) != 2 or name in self._scales:
            return None
        return self.header.read_raw(tensor).reshape(tensor.shape[0], -1, tensor.type.block_bytes)

    def warnings(self) -> tuple[str, ...]:
        """What a user should know before converting the file to something else."""
        kinds = {tensor.type.name: tensor.type.bits for tensor in self._tensors.values() if len(tensor.shape) > 1}
        coarse = sorted(name for name, bits in kinds.items() if bits < 16)
        if not coarse:
            return ()
        fewest = min(kinds.values())
        return (
            f"{self.where} is quantized already, to {fewest} bits ({', '.join(coarse)}): its rounding stays in the "
            "result. The original model gives a better one.",
        )

    def write_companions(self, directory: Path) -> None:
        """Write config.json, tokenizer.json and what else the metadata holds, as they lie beside a model's weights.

        Raises BadModelFile when the tokenizer is missing or is no JSON, OSError.
        """
        (directory / "config.json").write_text(json.dumps(self.config, indent=2) + "\n", "utf-8")
        (directory / "tokenizer.json").write_text(_tokenizer(self.header), "utf-8")
        for key in ("tokenizer_config", "generation_config"):
            if isinstance(value := self.header.metadata.get(key), dict):
                (directory / f"{key}.json").write_text(json.dumps(value, indent=2) + "\n", "utf-8")

    def _decoded(self, tensor: HfqTensor, rows: NDArray[np.uint8]) -> NDArray[Any]:
        scale = self._scales.get(tensor.name)
        if scale is None and tensor.type.plain:
            return plain_rows(np.array(rows), tensor.type)
        values = decode_rows(rows, tensor.type)
        if scale is not None:
            values /= self._input_scale(scale)
        return values

    def _input_scale(self, tensor: HfqTensor) -> NDArray[np.float32]:
        """What the columns of a matrix were multiplied with, [K]."""
        scale: NDArray[np.float32] = decode_rows(self.header.read_raw(tensor).reshape(1, -1), tensor.type)[0]
        if not (np.isfinite(scale) & (scale > 0)).all():
            raise BadModelFile(
                f"{self.where} has scales in {tensor.name!r} that are not positive numbers.",
                hint=f"The file is damaged: {FETCH_AGAIN}.",
            )
        return scale


def _scale_names(name: str) -> tuple[str, ...]:
    return (name.removesuffix(".weight") + ".awq_scale.weight", name + ".awq_scale")


def _check_shape(tensor: HfqTensor, scale: HfqTensor | None, where: str) -> None:
    if not tensor.type.is_whole(tensor.shape):
        raise UnsupportedModel(
            f"Tensor {tensor.name!r} of {where} has rows of {tensor.shape[-1]} weights, which are not whole blocks of "
            f"{tensor.type.name}.",
            hint="Start from the original model instead.",
        )
    if scale is not None and (len(tensor.shape) != 2 or scale.shape != tensor.shape[-1:] or not scale.type.plain):
        raise BadModelFile(
            f"{where} has scales in {scale.name!r} that do not fit {tensor.name!r}.",
            hint=f"The file is damaged: {FETCH_AGAIN}.",
        )


def _refuse_drafts(header: HfqHeader) -> None:
    if (what := _DRAFTS.get(header.arch_id)) is not None:
        raise UnsupportedModel(
            f"{header.path.name} is no model of its own but {what}.", hint="Give the file of the model that it is for."
        )


def _tokenizer(header: HfqHeader) -> str:
    text = header.tokenizer
    if not text:
        raise BadModelFile(
            f"{header.path.name} has no tokenizer.json in its metadata.",
            hint="Start from the original model instead: a file that hipfire made from a GGUF has none.",
        )
    try:
        json.loads(text)
        text.encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise BadModelFile(
            f"{header.path.name} has a tokenizer.json in its metadata that is not JSON.",
            hint=f"The file is damaged: {FETCH_AGAIN}.",
        ) from error
    return text
