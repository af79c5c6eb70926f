"""Converts a Hugging Face directory of safetensors into one GGUF file, a tensor at a time.

It writes the file it is told to and nothing else: temporary names, disk space and the K-quants are quantize.py's
business. Peak memory is one encoded tensor and a few rows as float32.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from gguf import GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from runner.errors import FETCH_AGAIN, BadModelFile, UnsupportedModel
from runner.model_config import ModelConfig, parse_model_config
from runner.quant.architectures import architecture_of
from runner.quant.byte_level_bpe import is_byte_level, read_byte_level_bpe
from runner.quant.file_records import FileRecord
from runner.quant.formats import Format, encode_rows, encoded_bytes, row_spans, type_of
from runner.quant.fp8 import FP8
from runner.quant.gguf_metadata import (
    NOT_BY_LLAMA_CPP,
    QUANTIZATION_VERSION,
    attention_interval,
    rope_factors,
    write_model,
    write_vocabulary,
)
from runner.quant.json_file import read_json
from runner.quant.safetensors_file import Checkpoint, to_f32
from runner.quant.sentencepiece_vocabulary import is_sentencepiece, read_from_json, read_from_model
from runner.quant.tensor_rules import Architecture, PlannedTensor, plan
from runner.quant.text_tensors import of_text_model
from runner.quant.vocabulary import Vocabulary

OnProgress = Callable[[int, int], None]


class Tensors(Protocol):
    """Where the weights come from: `Checkpoint`, or another file with tensors under Hugging Face names.

    dtype: "F32", "F16", "BF16" or what else safetensors have. rows: some rows of a tensor, or elements of a vector, in
    it, BF16 as uint16 bits.
    """

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    @property
    def total_bytes(self) -> int: ...

    def dtype(self, name: str) -> str: ...

    def rows(self, name: str, index: slice | NDArray[np.intp]) -> NDArray[Any]: ...


@dataclass(frozen=True, kw_only=True)
class Source:
    """A Hugging Face directory that was read and found convertible; no weight has been touched yet."""

    name: str
    directory: Path
    config: ModelConfig
    architecture: Architecture
    checkpoint: Tensors
    tensors: tuple[PlannedTensor, ...]
    vocabulary: Vocabulary


def read_source(directory: Path, *, name: str | None = None, weights: Tensors | None = None) -> Source:
    """Read everything but the weights, and check that all of it can be converted.

    weights: where they are, if not in the directory's safetensors.

    Raises UnsupportedModel for an architecture, option, tensor or tokenizer that cannot be, by its name, and
    BadModelFile for files that are malformed or do not belong together.
    """
    config = parse_model_config(read_json(directory / "config.json"))
    architecture = architecture_of(config.model_type)
    _check_rotation(architecture, config)
    _check_delta_nets(architecture, config)
    checkpoint = weights or _own_tensors(directory, config)
    tensors = plan(architecture, config, checkpoint.shapes)
    _check_tied_copy(checkpoint, config)
    return Source(
        name=name or directory.resolve().name,
        directory=directory,
        config=config,
        architecture=architecture,
        checkpoint=checkpoint,
        tensors=tensors,
        vocabulary=read_vocabulary(directory, config.vocab_size),
    )


def _own_tensors(directory: Path, config: ModelConfig) -> Checkpoint:
    """The model's tensors alone, without heads that draft for it and what sees images."""
    found = of_text_model(Checkpoint.open(directory).tensors, config.model_type)
    if any(tensor.dtype == FP8 for tensor in found.values()):
        raise UnsupportedModel(
            "These weights are FP8, of which no GGUF is made here.",
            hint="Quantize them to mq4 and the like, or start from the model's BF16 version.",
        )
    return Checkpoint(MappingProxyType(found))


def _check_rotation(architecture: Architecture, config: ModelConfig) -> None:
    """llama.cpp's graph of an architecture has fixed which layers are rotated, and what scales their frequencies."""
    every = architecture.unrotated_every
    if every is not None and config.unrotated_layers != tuple(range(every - 1, config.num_layers, every)):
        raise UnsupportedModel(
            f"llama.cpp rotates all layers of a {config.model_type} model but each {every}th, and config.json names "
            "others (no_rope_layers, no_rope_layer_interval).",
            hint=NOT_BY_LLAMA_CPP,
        )
    if rope_factors(config) is not None and not architecture.has_llama3_rope:
        raise UnsupportedModel(
            f"llama.cpp has no llama3 rope scaling for {config.model_type} models.", hint=NOT_BY_LLAMA_CPP
        )
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind == "longrope":
        raise UnsupportedModel(
            f"A GGUF of a {config.model_type} model with longrope cannot be made here.", hint=NOT_BY_LLAMA_CPP
        )
    if scaling is not None and scaling.beta_slow != 1 and not architecture.has_beta_slow:
        raise UnsupportedModel(
            f"llama.cpp takes beta_slow to be 1 in {config.model_type} models; config.json has {scaling.beta_slow:g}.",
            hint=NOT_BY_LLAMA_CPP,
        )


def _check_delta_nets(architecture: Architecture, config: ModelConfig) -> None:
    """llama.cpp's graph has them in fixed layers, with states that are square."""
    if not architecture.has_delta_nets:
        return
    attention_interval(config)
    delta = config.delta
    if delta is not None and delta.key_dim != delta.value_dim:
        raise UnsupportedModel(
            f"llama.cpp wants keys and values of one size in delta nets, and config.json says {delta.key_dim} and "
            f"{delta.value_dim} (linear_key_head_dim, linear_value_head_dim).",
            hint=NOT_BY_LLAMA_CPP,
        )


def read_vocabulary(directory: Path, vocab_size: int) -> Vocabulary:
    """The tokenizer of `directory`, byte-level BPE or SentencePiece, filled up to vocab_size ids.

    Raises UnsupportedModel for one that llama.cpp's tokenizers do not equal, BadModelFile for malformed files.
    """
    try:
        return _read_vocabulary(directory, vocab_size)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        # A part of the JSON that is not of the kind it should be, anywhere in a large and free structure.
        raise BadModelFile(
            f"The tokenizer's files in {directory} are malformed ({type(error).__name__}: {error}).",
            hint="Fetch the model's tokenizer files again.",
        ) from error


def _read_vocabulary(directory: Path, vocab_size: int) -> Vocabulary:
    path = directory / "tokenizer.json"
    tokenizer = read_json(path) if path.is_file() else None
    if tokenizer is not None and is_byte_level(tokenizer):
        return read_byte_level_bpe(directory, tokenizer, vocab_size)
    if tokenizer is not None and is_sentencepiece(tokenizer):
        return read_from_json(directory, tokenizer, vocab_size)
    if (model := directory / "tokenizer.model").is_file():
        return read_from_model(directory, model, vocab_size)
    if tokenizer is None:
        raise BadModelFile(f"{directory} has no tokenizer.json.", hint="Fetch the model's tokenizer files as well.")
    raise UnsupportedModel(
        f"A tokenizer of type {tokenizer['model'].get('type')!r} cannot be converted; BPE, byte-level or of "
        "SentencePiece, can.",
        hint="Look for a ready GGUF of the model.",
    )


def convert(
    source: Source, chosen: Format, output: Path, on_progress: OnProgress, *, is_kept: bool = True
) -> FileRecord:
    """Write `source` to `output` in a format made here; returns its size and hash, taken on its way to the disk.

    is_kept: of a file that is to be read once and removed there is no hash. on_progress gets (bytes written, bytes in
    all). Raises OSError when the file cannot be written, BadModelFile for a weight that is NaN or infinite,
    UnsupportedModel for one that the format cannot hold.
    """
    types = {tensor.target: type_of(tensor, chosen) for tensor in source.tensors}
    _write_header(source, chosen, types, output)
    written = _Appended(output, is_hashed=is_kept)
    with written.file:
        if (factors := rope_factors(source.config)) is not None:
            written.add(factors)
        done, total = 0, sum(encoded_bytes(tensor.shape, types[tensor.target]) for tensor in source.tensors)
        for tensor in source.tensors:
            encoded = _encode(source.checkpoint, tensor, types[tensor.target])
            written.add(encoded)
            done += encoded.size
            on_progress(done, total)
    return FileRecord(size_bytes=output.stat().st_size, sha256=written.digest.hexdigest() if is_kept else "")


def _write_header(source: Source, chosen: Format, types: Mapping[str, GGMLQuantizationType], output: Path) -> None:
    """All that is before the first tensor but the padding."""
    writer = GGUFWriter(output, source.architecture.gguf_name)
    try:
        write_model(writer, source.config, name=source.name)
        writer.add_file_type(int(chosen.file_type))
        writer.add_quantization_version(QUANTIZATION_VERSION)
        write_vocabulary(writer, source.vocabulary)
        if (factors := rope_factors(source.config)) is not None:
            writer.add_tensor_info("rope_freqs.weight", factors.shape, factors.dtype, factors.nbytes)
        for tensor in source.tensors:
            stored = types[tensor.target]
            size = encoded_bytes(tensor.shape, stored)
            writer.add_tensor_info(tensor.target, tensor.gguf_shape, np.dtype(np.float32), size, stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    finally:
        writer.close()


class _Appended:
    """Tensors behind the header that is in a file, each filled up to the alignment, and the hash of all of it.

    is_hashed: whether that is wanted; it takes as long as many disks write.
    """

    def __init__(self, path: Path, *, is_hashed: bool) -> None:
        header = path.read_bytes()
        self.digest, self._is_hashed = hashlib.sha256(header), is_hashed
        self.file = path.open("ab")
        self._put(bytes(-len(header) % GGUF_DEFAULT_ALIGNMENT))

    def add(self, tensor: NDArray[Any]) -> None:
        self._put(tensor.data)
        self._put(bytes(-tensor.nbytes % GGUF_DEFAULT_ALIGNMENT))

    def _put(self, data: bytes | memoryview) -> None:
        self.file.write(data)
        if self._is_hashed:
            self.digest.update(data)


def _encode(checkpoint: Tensors, tensor: PlannedTensor, stored: GGMLQuantizationType) -> NDArray[np.uint8]:
    """One tensor as the bytes of its GGUF type, reordered and changed where the architecture wants that."""
    dtype = checkpoint.dtype(tensor.source)
    encoded = np.empty(encoded_bytes(tensor.shape, stored), dtype=np.uint8)
    at = 0
    for start, stop in row_spans(tensor.shape):
        index = slice(start, stop) if tensor.row_order is None else tensor.row_order[start:stop]
        rows = checkpoint.rows(tensor.source, index)
        _check_finite(rows, dtype, tensor.source)
        if tensor.column_order is not None:
            rows = rows[:, tensor.column_order]
        if dtype == stored.name and tensor.change is None:  # F32, F16, BF16: one name and one layout in both files
            piece = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
        else:
            piece = _encode_rows(to_f32(rows, dtype), tensor, stored)
        encoded[at : at + piece.size] = piece
        at += piece.size
    assert at == encoded.size
    return encoded


def _check_finite(rows: NDArray[Any], dtype: str, name: str) -> None:
    """Raise BadModelFile when a weight is NaN or infinite: every answer of such a model is damaged."""
    # All exponent bits set, in the upper half of a float32.
    is_finite = (rows & 0x7F80) != 0x7F80 if dtype == "BF16" else np.isfinite(rows)
    if not is_finite.all():
        raise BadModelFile(
            f"Tensor {name!r} has weights that are NaN or infinite.", hint=f"The file is damaged: {FETCH_AGAIN}."
        )


def _encode_rows(rows: NDArray[np.float32], tensor: PlannedTensor, stored: GGMLQuantizationType) -> NDArray[np.uint8]:
    try:
        with np.errstate(over="raise"):
            return encode_rows(rows if tensor.change is None else tensor.change.to_gguf(rows), stored)
    except FloatingPointError as error:
        raise UnsupportedModel(
            f"Tensor {tensor.source!r} has weights that are too large for {stored.name}.",
            hint="Use --format bf16 or f32.",
        ) from error


def _check_tied_copy(checkpoint: Tensors, config: ModelConfig) -> None:
    """A checkpoint of tied embeddings may carry the output matrix too, but then it must be the same one."""
    if not config.tie_word_embeddings or "lm_head.weight" not in checkpoint.shapes:
        return
    everything = slice(None)
    if not np.array_equal(
        checkpoint.rows("lm_head.weight", everything), checkpoint.rows("model.embed_tokens.weight", everything)
    ):
        raise BadModelFile(
            "config.json ties the embeddings, but the checkpoint's 'lm_head.weight' differs from them.",
            hint="Set tie_word_embeddings to false in config.json (in text_config, where it has one) if the output "
            "matrix is meant to be used.",
        )
