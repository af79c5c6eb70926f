"""Makes a model directory (or one .gguf) in a weight format, from a Hugging Face directory, a GGUF or a hipfire file.

Everything is written into "<output>.partial" and renamed at the end, so that a killed run leaves nothing that looks
whole; before that comes runner.json, with the hashes of a directory's files. It knows the order of the work; the
conversion itself is convert.py's and kquants.py's.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gguf import GGMLQuantizationType

from runner.errors import BadModelFile, UnsupportedModel, UsageError
from runner.quant.convert import Source, convert, read_source
from runner.quant.file_records import FileRecord, files_json, record_of
from runner.quant.formats import FORMATS, Format, encoded_bytes, type_of
from runner.quant.gguf_file import parts_of, read_header
from runner.quant.hipfire import is_hipfire_file
from runner.quant.kquants import quantize_gguf
from runner.quant.packed_files import is_packed
from runner.quant.safetensors_file import plain_file_name
from runner.quant.work_directory import COMPANIONS, WorkDirectory, sync

# What a stage is doing, how much is done, and of how much: bytes when converting, tensors when quantizing.
OnStage = Callable[[str, int, int], None]

SOURCES_HINT: Final = "Give a Hugging Face directory, a GGUF or a hipfire file."
_SOURCE_TYPES: Final = frozenset({"F32", "F16", "BF16", "Q8_0"})
_HUB_DIRECTORY: Final = re.compile(r"models--(?:.+--)?(?P<name>.+)")
_FORMAT_SUFFIX: Final = re.compile(r"[-._](?:f32|f16|bf16|q8_0|mq4|mq6|mq8|hfq4|gguf)$", re.IGNORECASE)
_NOT_IN_NAMES: Final = re.compile(r"[^\w.-]|^\.+")
_SPARE_BYTES: Final = 64 * 2**20  # tokenizer, metadata, copied files
# Bits a weight of llama.cpp's mixtures, rounded up: for the disk space, before anything is written.
_BITS: Final = {"q4_k_m": 5.5, "q5_k_m": 6.2, "q6_k": 7.0, "q4_0": 5.0, "q8_0": 8.6, "f16": 16.1, "bf16": 16.1}


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """What was made. path: the directory or .gguf that was asked for; weights: the GGUF itself."""

    path: Path
    weights: Path
    format: str
    size_bytes: int
    source_bytes: int
    num_parameters: int
    bpw: float
    seconds: float
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """Where the weights come from: a checkpoint to convert, or a GGUF for llama.cpp's quantizer."""

    checkpoint: Source | None
    gguf: Path | None
    files: Path
    source_bytes: int
    needed_bytes: int
    warnings: tuple[str, ...]


def quantize_model(source: Path, chosen: Format, output: Path, *, force: bool, on_stage: OnStage) -> Quantized:
    """Write `source` in the format `chosen` to `output`: a .gguf by that suffix, else a directory ready to load.

    force: replace an output that is there. Raises UsageError when it is there without, and for the name of another kind
    of file, DoesNotFit when the disk is too small, UnsupportedModel and BadModelFile as the source deserves, BusyError
    when another process is making it.
    """
    started = time.monotonic()
    refuse_packed(source)
    work, name = WorkDirectory(output), model_name(source)
    if work.is_file and output.suffix.lower() != ".gguf":
        raise UsageError(
            f"{output} would be one of hipfire's files, and {chosen.name} makes a GGUF.",
            hint="Let its name end in .gguf, or leave the suffix out for a directory.",
        )
    one_file = {f"{name}-{form}.gguf" for form in FORMATS}
    work.check_target(force=force, source=source, one_file=one_file)
    with ExitStack() as held:
        plan = _plan(source, chosen, held)
        with work.opened() as lock:
            work.require_room(plan.needed_bytes + _SPARE_BYTES)
            weights = work.path / work.weights_name(f"{name}-{chosen.name}.gguf")
            record = _make(plan, chosen, weights, lock, on_stage)
            header = read_header(weights)
            _finish(work, weights, record, plan.files, on_stage)
    return Quantized(
        path=output,
        weights=output if work.is_file else output / weights.name,
        format=chosen.label,
        size_bytes=header.size_bytes,
        source_bytes=plan.source_bytes,
        num_parameters=header.num_parameters,
        bpw=8 * sum(tensor.size_bytes for tensor in header.tensors) / max(1, header.num_parameters),
        seconds=time.monotonic() - started,
        warnings=plan.warnings,
    )


def made_name(source: Path, weight_format: str) -> str:
    """What a model made of `source` in that format is called, unless the user says otherwise."""
    return f"{_NOT_IN_NAMES.sub('', model_name(source)) or 'model'}-{weight_format}"


def model_name(source: Path) -> str:
    """A name for what is made from `source`: its directory's or file's, the repository's in the Hugging Face cache."""
    return plain_file_name(_own_name(source)) or "model"


def _own_name(source: Path) -> str:
    resolved = source.absolute()
    if resolved.suffix.lower() == ".gguf" or is_hipfire_file(resolved):
        stem = re.sub(r"-\d{5}-of-\d{5}$", "", resolved.stem)
        return _FORMAT_SUFFIX.sub("", stem)
    for part in reversed(resolved.parts):
        if match := _HUB_DIRECTORY.fullmatch(part):
            return match["name"]
    return _FORMAT_SUFFIX.sub("", resolved.name)


def refuse_packed(source: Path) -> None:
    """Raise UsageError for the directory of a packed model."""
    if source.is_dir() and is_packed(os.listdir(source)):
        raise UsageError(
            f"{source} is a packed model already.", hint="Start from the original: a second rounding makes it worse."
        )


def _plan(source: Path, chosen: Format, held: ExitStack) -> _Plan:
    """held: what the plan needs until it is carried out."""
    if not source.exists():
        raise BadModelFile(f"{source} does not exist.", hint=SOURCES_HINT)
    if is_hipfire_file(source):
        # The files that it has inside. Others need no directory for temporary files, whose disk may be full.
        unpacked = held.enter_context(tempfile.TemporaryDirectory(prefix="runner-"))
        return _plan_hipfire(source, chosen, Path(unpacked))
    gguf = gguf_of(source)
    if gguf is not None:
        return _plan_gguf(gguf, chosen)
    return _plan_checkpoint(read_source(source, name=model_name(source)), chosen)


def _plan_hipfire(source: Path, chosen: Format, unpacked: Path) -> _Plan:
    from runner.quant.hipfire.source import HfqWeights  # imports torch

    weights = HfqWeights(source)
    weights.write_companions(unpacked)
    checkpoint = read_source(unpacked, name=model_name(source), weights=weights)
    return _plan_checkpoint(checkpoint, chosen, warnings=weights.warnings())


def _plan_checkpoint(checkpoint: Source, chosen: Format, warnings: tuple[str, ...] = ()) -> _Plan:
    formats = [chosen, lossless_format(checkpoint)] if chosen.by_llama_cpp else [chosen]
    return _Plan(
        checkpoint=checkpoint,
        gguf=None,
        files=checkpoint.directory,
        source_bytes=checkpoint.checkpoint.total_bytes,
        needed_bytes=sum(_converted_bytes(checkpoint, one) for one in formats),
        warnings=(*warnings, *checkpoint_warnings(checkpoint)),
    )


def gguf_of(source: Path) -> Path | None:
    """The GGUF that `source` is, or holds when it holds no safetensors. Raises UsageError for another file."""
    if source.is_file():
        if source.suffix.lower() != ".gguf":
            raise UsageError(f"{source.name} is no model to begin with.", hint=SOURCES_HINT)
        return source
    if any(source.glob("*.safetensors")):
        return None
    found = sorted(path for path in source.iterdir() if path.suffix.lower() == ".gguf")
    return found[0] if found and set(parts_of(found[0])) == set(found) else None


def _plan_gguf(path: Path, chosen: Format) -> _Plan:
    parts = parts_of(path)
    headers = [read_header(part) for part in parts]
    types = {tensor.type.name for header in headers for tensor in header.tensors}
    if others := sorted(types - _SOURCE_TYPES):
        raise UnsupportedModel(
            f"{path.name} is quantized already ({headers[0].quantization}: it has {', '.join(others)}).",
            hint="Start from the safetensors, or from a GGUF in F32, F16, BF16 or Q8_0.",
        )
    num_parameters = sum(header.num_parameters for header in headers)
    lossy = ("The source is Q8_0: its rounding stays in the result.",) if "Q8_0" in types else ()
    return _Plan(
        checkpoint=None,
        gguf=parts[0],
        files=path.parent,
        source_bytes=sum(header.size_bytes for header in headers),
        needed_bytes=int(num_parameters * _BITS.get(chosen.name, 32.5) / 8),
        warnings=lossy,
    )


def lossless_format(source: Source) -> Format:
    """The smallest format that keeps every weight of the checkpoint as it is."""
    types = {source.checkpoint.dtype(tensor.source) for tensor in source.tensors if not tensor.keeps_f32}
    if types == {"BF16"}:
        return FORMATS["bf16"]
    return FORMATS["f16"] if types == {"F16"} else FORMATS["f32"]


def checkpoint_warnings(source: Source) -> tuple[str, ...]:
    """What the GGUF cannot say that the checkpoint does."""
    found = []
    config = source.config
    if config.sliding_window is not None and config.sliding_window < config.max_position_embeddings:
        found.append(
            f"llama.cpp has no sliding window for {config.model_type}: the context ends at {config.sliding_window} "
            f"tokens instead of {config.max_position_embeddings}."
        )
    if (count := len(source.vocabulary.special.end_ids)) > 3:
        found.append(f"A GGUF has room for 3 of the {count} tokens that end an answer; generation_config.json has all.")
    if source.vocabulary.limits:
        found.append(source.vocabulary.limits)
    return tuple(found)


def _converted_bytes(source: Source, chosen: Format) -> int:
    if bits := _BITS.get(chosen.name) if chosen.by_llama_cpp else None:
        return int(sum(encoded_bytes(tensor.shape, GGMLQuantizationType.I8) for tensor in source.tensors) * bits / 8)
    return sum(encoded_bytes(tensor.shape, type_of(tensor, chosen)) for tensor in source.tensors)


def _make(plan: _Plan, chosen: Format, weights: Path, lock: int, on_stage: OnStage) -> FileRecord | None:
    """Returns the record of the weights where they were written here, None where llama.cpp wrote them."""

    def converting(done: int, total: int) -> None:
        on_stage("converting", done, total)

    def quantizing(done: int, total: int) -> None:
        on_stage("quantizing", done, total)

    if plan.gguf is not None:
        quantize_gguf(plan.gguf, weights, int(chosen.file_type), quantizing, lock=lock)
        return None
    assert plan.checkpoint is not None
    if not chosen.by_llama_cpp:
        return convert(plan.checkpoint, chosen, weights, converting)
    between = weights.with_name("intermediate.gguf")
    convert(plan.checkpoint, lossless_format(plan.checkpoint), between, converting, is_kept=False)
    quantize_gguf(between, weights, int(chosen.file_type), quantizing, lock=lock)
    between.unlink()
    return None


def _finish(work: WorkDirectory, weights: Path, record: FileRecord | None, companions: Path, on_stage: OnStage) -> None:
    """Put it in its place, a directory with companions and a manifest, which a model of one file has no place for.

    record: of the weights, None where they are still to be hashed.
    """
    if work.is_file:
        work.place_file(weights)
        return
    sync(weights)
    work.copy_companions(companions)
    files = {weights.name: record or record_of(weights, lambda done, total: on_stage("hashing", done, total))}
    files |= {name: record_of(path) for name in COMPANIONS if (path := work.path / name).is_file()}
    work.write_manifest(files_json(files))
    work.place()
