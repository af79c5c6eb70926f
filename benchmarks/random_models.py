"""Packed models of a given shape with random weights, as `runner quantize` would lay them out, without a source.

    python benchmarks/random_models.py llama-3.1-8b mq4 DIR

The directory is whole: `runner run`, `runner chat` and `runner bench` take it, though what it writes is noise. Its
tokenizer is the demo's, with as many more tokens as the shape's vocabulary has. Every bit pattern of a word is a
weight, so words are random; scales are such that a matrix gives its output the size of its input. It knows nothing of
how fast anything is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import time
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import torch
from arguments import positive
from shapes import SHAPES, config_of
from torch import Tensor

import runner
from runner.backends.native.architectures import build
from runner.backends.native.fused import FusedDecoder
from runner.backends.native.fused_execution import FusedExecution
from runner.backends.native.kv_cache import KvCache
from runner.backends.native.loader import unfilled
from runner.backends.native.matrices import MatrixReader
from runner.backends.native.model_files import read_config
from runner.backends.native.places import places_of
from runner.model_config import ModelConfig, num_parameters, parse_model_config
from runner.paths import builtin
from runner.quant.mq.formats import TENSOR_FORMATS
from runner.quant.mq.grid import GridFormat
from runner.quant.mq.manifest import FileRecord, Manifest, SourceRecord, TensorRecord, to_json
from runner.quant.mq.packed_file import Layout, lay_out
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.mq.plan import PackedPlan, TensorPlan, make_plan
from runner.quant.mq.recipe import RECIPES
from runner.quant.mq.tensor_format import Encoded
from runner.quant.packed_files import MANIFEST_NAME, WEIGHTS_NAME
from runner.types import CancelToken, ReadyModel

_TOKENIZER = "tokenizer.json"
COMPANIONS = ("tokenizer_config.json", "generation_config.json")
RECIPE_NAMES = ("mq4", "mq4-uniform")
_CODES = (32, 64)  # of scales: two octaves
_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class Names:
    """Stands where a source's weights do when a model is planned: names and shapes, nothing to read."""

    shapes: Mapping[str, tuple[int, ...]]
    where: str = "random weights"
    quantization: str = "random"

    @cached_property
    def types(self) -> Mapping[str, str]:
        return dict.fromkeys(self.shapes, "BF16")

    @cached_property
    def bits(self) -> Mapping[str, float]:
        return dict.fromkeys(self.shapes, 16.0)

    def read(self, name: str) -> NoReturn:
        raise AssertionError(name)

    def read_rows(self, name: str, _start: int, _stop: int) -> NoReturn:
        raise AssertionError(name)


def plan_of(config: ModelConfig, recipe: str) -> PackedPlan:
    """Which tensors a packed model of that configuration has, in which formats."""
    with torch.device("meta"):
        model = build(config)
    parameters = dict(model.named_parameters())
    shapes = {name: tuple(parameters[at.parameter][at.part].shape) for name, at in places_of(model).items()}
    return make_plan(config, Names(shapes=shapes), RECIPES[recipe], "online")


def random_tensor(tensor: TensorPlan, config: ModelConfig, device: torch.device) -> Encoded:
    """The parts of one tensor, the same ones each time on one kind of device."""
    generator = torch.Generator(device).manual_seed(zlib.crc32(tensor.name.encode()))
    if tensor.is_kept:
        (part,) = tensor.parts.values()
        if len(tensor.shape) == 1:
            values = torch.full(tensor.shape, _gain(tensor, config), device=device)
        else:
            values = torch.randn(tensor.shape, generator=generator, device=device) * tensor.shape[-1] ** -0.5
        return Encoded(parts={"": values.to(part.dtype)}, parameters={})
    form = TENSOR_FORMATS[tensor.format]
    assert isinstance(form, GridFormat), tensor.format
    return random_matrix(form, tensor.matrix_shape, generator, device)


def _gain(tensor: TensorPlan, config: ModelConfig) -> float:
    """What a vector is made of: 1, but where a trained one undoes what Gemma 4 leaves to it.

    Scores are not divided there, the norm of queries does it: without that attention is all but one-hot, and logits of
    two layers in bfloat16 are off by 0.057 of themselves for 0.009. A router's scale is divided by the root of its
    size: experts' scores then differ as they do in other models.
    """
    if config.attention_scale == 1 and tensor.name.endswith(".q_norm.weight"):
        return float(tensor.shape[0] ** -0.5)
    return float(tensor.shape[0] ** 0.5) if tensor.name.endswith(".router.scale") else 1.0


def random_matrix(
    form: GridFormat, shape: tuple[int, int], generator: torch.Generator, device: torch.device
) -> Encoded:
    """A matrix [N, K] of random levels whose weights have a deviation of about 1 / sqrt(K)."""
    parts = form.parts(shape)
    # -128 is no level of 8 bits; of fewer bits every byte is levels.
    lowest = -127 if form.bits == 8 else -128
    size = (*parts["packed"].shape, 4)
    octets = torch.randint(lowest, 128, size, dtype=torch.int8, generator=generator, device=device)
    scale = torch.randint(*_CODES, parts["scale"].shape, dtype=torch.uint8, generator=generator, device=device)
    if form.is_signed:  # else a level's mean would not be 0, and a row's sum would
        sign = torch.randint(0, 2, scale.shape, dtype=torch.uint8, generator=generator, device=device)
        scale |= sign << 7
    return Encoded(
        parts={"packed": octets.view(torch.int32).squeeze(-1), "scale": scale},
        parameters={"scale_exponent": round(math.log2(shape[1] ** -0.5 / _deviation(form)))},
    )


def _deviation(form: GridFormat) -> float:
    """The deviation of level * scale with the exponent 0."""
    levels = torch.tensor(form.levels, dtype=torch.float64)
    codes = torch.arange(*_CODES)
    scales = (1 + (codes & 15) / 16.0) * 2.0 ** (codes >> 4)
    return float((levels.square().mean() * scales.square().mean()).sqrt())


def about_bytes(config: Mapping[str, Any]) -> float:
    """What such a model takes packed, or in a 4-bit GGUF, roughly."""
    return 0.65 * num_parameters(parse_model_config(dict(config)))


# --- as a directory --------------------------------------------------------------------------------------------------


def write_directory(target: Path, config: Mapping[str, Any], recipe: str, *, is_hashed: bool) -> int:
    """The packed model in `target`, which must not be there; returns the bytes of its weights.

    is_hashed: with the checksum of the weights' file, which reads it once more and which only `runner verify` wants.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parsed = parse_model_config(dict(config))
    plan = plan_of(parsed, recipe)
    layout = lay_out(plan.tensors)
    target.mkdir(parents=True)
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for name in COMPANIONS:
        shutil.copyfile(builtin("models") / "demo" / name, target / name)
    description = json.loads((builtin("models") / "demo" / _TOKENIZER).read_bytes())
    add_tokens(description["model"], config["vocab_size"])
    (target / _TOKENIZER).write_text(json.dumps(description, ensure_ascii=False), encoding="utf-8")
    records = _write_tensors(target / WEIGHTS_NAME, parsed, plan, layout, device)
    (target / MANIFEST_NAME).write_text(to_json(_manifest(target, plan, records, is_hashed)), encoding="utf-8")
    return layout.total_bytes


def add_tokens(bpe: dict[str, Any], size: int) -> None:
    """Further tokens and merges up to a vocabulary of that size: to open a tokenizer takes as long as it is large."""
    vocab, merges = bpe["vocab"], bpe["merges"]
    octets = [token for token in vocab if len(token) == 1]
    longer = list(octets)
    for left in longer:
        for right in octets:
            if len(vocab) >= size:
                return
            if (token := left + right) not in vocab:
                vocab[token] = len(vocab)
                merges.append([left, right])
                longer.append(token)


def _write_tensors(
    path: Path, config: ModelConfig, plan: PackedPlan, layout: Layout, device: torch.device
) -> dict[str, TensorRecord]:
    with path.open("wb") as file, ThreadPoolExecutor(_THREADS) as pool:
        os.ftruncate(file.fileno(), layout.total_bytes)
        os.pwrite(file.fileno(), layout.header, 0)
        made = [pool.submit(_write_one, file.fileno(), tensor, config, layout, device) for tensor in plan.tensors]
        return {tensor.name: one.result() for tensor, one in zip(plan.tensors, made, strict=True)}


def _write_one(
    file: int, tensor: TensorPlan, config: ModelConfig, layout: Layout, device: torch.device
) -> TensorRecord:
    encoded = random_tensor(tensor, config, device)
    digest = hashlib.sha256()
    for suffix, place in layout.places[tensor.name].items():
        part: Tensor = encoded.parts[suffix]
        assert tuple(part.shape) == place.part.shape, tensor.name
        data = part.cpu().contiguous().flatten().view(torch.uint8).numpy().data
        digest.update(data)
        written = 0
        while written < len(data):
            written += os.pwrite(file, data[written : written + 2**28], place.offset + written)
    return TensorRecord(
        format=tensor.format,
        shape=tensor.shape,
        input_rotation=tensor.input_rotation,
        parameters=encoded.parameters,
        sha256=digest.hexdigest(),
        weight_error=None,
    )


def _manifest(target: Path, plan: PackedPlan, records: Mapping[str, TensorRecord], is_hashed: bool) -> Manifest:
    """What a finished model says of itself."""
    names = [WEIGHTS_NAME, "config.json", _TOKENIZER, *COMPANIONS]
    return Manifest(
        format=plan.main_format,
        bpw=round(plan.bpw, 4),
        bpw_body=round(plan.bpw_body, 4),
        rotation=plan.rotation,
        recipe=plan.recipe,
        calibration=None,
        config_changes={},
        notes=("The weights are random.",),
        source=SourceRecord(name="random weights", repo="", revision="", quantization="random", files={}),
        tool=f"runner {runner.__version__}, benchmarks",
        tensors=records,
        files={name: _file_record(target / name, is_hashed or name != WEIGHTS_NAME) for name in names},
    )


def _file_record(path: Path, is_hashed: bool) -> FileRecord:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest() if is_hashed else ""
    return FileRecord(size_bytes=path.stat().st_size, sha256=digest)


# --- loaded ----------------------------------------------------------------------------------------------------------


def ready(directory: Path) -> ReadyModel:
    """The directory as a backend is given it."""
    weights = directory / WEIGHTS_NAME
    return ReadyModel(
        name=directory.name,
        format="packed",
        weights=(weights,),
        directory=directory,
        size_bytes=weights.stat().st_size,
    )


def fused_execution(directory: Path, n_ctx: int, kv_dtype: torch.dtype | None = None) -> FusedExecution:
    """The model on the kernels: on a GPU in bfloat16, on a CPU in Triton's interpreter in float32."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    config, weights = read_config(directory), PackedWeights(directory)
    reader = MatrixReader(weights, dtype=dtype, device=device, on_progress=lambda _: None, cancel=CancelToken())
    cache = KvCache.of(config, n_ctx=n_ctx, dtype=dtype, device=device, kv_dtype=kv_dtype)
    return FusedExecution(FusedDecoder(unfilled(config, weights), reader), cache)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("recipe", choices=RECIPE_NAMES)
    parser.add_argument("output", type=Path)
    parser.add_argument("--layers", type=positive)
    asked = parser.parse_args()
    if asked.output.exists():
        parser.error(f"{asked.output} is there already: give another path, or remove it")
    started = time.perf_counter()
    size = write_directory(asked.output, config_of(asked.shape, asked.layers), asked.recipe, is_hashed=True)
    print(f"{asked.output}: {size / 1e9:.2f} GB in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
