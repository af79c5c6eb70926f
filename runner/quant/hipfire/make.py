"""Makes one of hipfire's files from a model: `runner quantize MODEL -t mq4-hipfire -o out.hfq`.

It knows the order of the work; types, bytes and metadata are write.py's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from runner.errors import UsageError
from runner.model_config import parse_model_config
from runner.quant.architectures import architecture_of
from runner.quant.hipfire import is_hipfire_file
from runner.quant.hipfire.write import metadata_of, plan_container, write_container
from runner.quant.json_file import read_json
from runner.quant.quantize import OnStage, Quantized, gguf_of, refuse_packed
from runner.quant.tensor_rules import plan
from runner.quant.weights import GgufWeights, Weights, open_source
from runner.quant.work_directory import WorkDirectory

_SPARE_BYTES: Final = 64 * 2**20


def make_container(source: Path, output: Path, *, force: bool, on_stage: OnStage) -> Quantized:
    """Write `source`, a Hugging Face directory or a GGUF, as one of hipfire's files.

    force: replace an output that is there. Raises as `quantize_model` does, and UsageError for a source that is one of
    hipfire's files already.
    """
    started = time.monotonic()
    refuse_packed(source)
    work = WorkDirectory(output)
    work.check_target(force=force, source=source)
    if is_hipfire_file(source):
        raise UsageError(f"{source} is one of hipfire's files already.", hint="Copy it.")
    directory, weights = _open(source)
    planned = plan_container(weights.shapes)
    size = sum(tensor.size_bytes for tensor in planned)
    with work.opened():
        work.require_room(size + _SPARE_BYTES)
        target = work.path / output.name
        write_container(
            target, metadata_of(directory), planned, weights, lambda done, total: on_stage("converting", done, total)
        )
        size_bytes = target.stat().st_size
        work.place_file(target)
    num_parameters = sum(math.prod(shape) for shape in weights.shapes.values())
    return Quantized(
        path=output,
        weights=output,
        format="MQ4-HIPFIRE",
        size_bytes=size_bytes,
        source_bytes=_source_bytes(weights.shapes, weights.bits),
        num_parameters=num_parameters,
        bpw=8 * size / max(1, num_parameters),
        seconds=time.monotonic() - started,
        warnings=(),
    )


def _open(source: Path) -> tuple[Path, Weights]:
    """The directory of the files beside the weights, and the weights, all tensors that the architecture has."""
    gguf = gguf_of(source)
    directory = source if source.is_dir() else source.parent
    config = parse_model_config(read_json(directory / "config.json"))
    weights = open_source(directory, gguf, config)
    if not isinstance(weights, GgufWeights):
        plan(architecture_of(config.model_type), config, weights.shapes)
    return directory, weights


def _source_bytes(shapes: Mapping[str, tuple[int, ...]], bits: Mapping[str, float]) -> int:
    return round(sum(bits[name] * math.prod(shape) for name, shape in shapes.items()) / 8)
