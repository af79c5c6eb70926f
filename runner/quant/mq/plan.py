"""What a packed model will consist of, decided from names, shapes and types before any weight is read.

Every tensor of the source gets its format by the recipe, or is kept for a reason that is said. It knows nothing of
files: packed_file.py lays the parts out, and a producer makes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import torch

from runner.errors import BadModelFile, UnsupportedModel, UsageError, nearest_hint
from runner.model_config import ModelConfig
from runner.quant.architectures import blocks
from runner.quant.architectures.experts import with_experts
from runner.quant.mq.basis import config_changes, stored_rotation
from runner.quant.mq.formats import TENSOR_FORMATS
from runner.quant.mq.manifest import PLAIN_FORMATS, Rotation
from runner.quant.mq.mq4_hipfire import BLOCK_WEIGHTS, HIPFIRE_NAME, MQ4_HIPFIRE
from runner.quant.mq.recipe import KEEP, LAYER_INPUTS, Recipe, Rule
from runner.quant.mq.rotation import LARGEST, rotation_size
from runner.quant.mq.tensor_format import Part
from runner.quant.tensor_rules import Architecture, TensorRule, tensors_of
from runner.quant.weights import EMBEDDINGS, LAYER_EMBEDDINGS, OUTPUT, Weights, check_count

PLAIN_TYPES: Final[Mapping[str, torch.dtype]] = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_KEPT_AS: Final[Mapping[str, str]] = {"F64": "f32", "F32": "f32", "F16": "f16", "BF16": "bf16"}
_LOSSLESS_BITS: Final = 16


@dataclass(frozen=True, kw_only=True)
class TensorPlan:
    """One tensor of the result. See TensorRecord for the fields; source_bytes: what reading it once costs."""

    name: str
    shape: tuple[int, ...]
    format: str
    input_rotation: int
    source_bytes: int

    @property
    def is_kept(self) -> bool:
        return self.format in PLAIN_FORMATS

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """[N, K] of a quantized matrix."""
        rows, columns = self.shape
        return rows, columns

    @property
    def parts(self) -> Mapping[str, Part]:
        """The stored parts by suffix, in storage order; a kept tensor has one part without a suffix."""
        return parts_of(self.format, self.shape)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())


@dataclass(frozen=True, kw_only=True)
class PackedPlan:
    """The whole result: tensors in the order in which a forward pass needs them. notes: what differs from the recipe,
    for people and the manifest."""

    config: ModelConfig
    recipe: Recipe
    rotation: Rotation
    tensors: tuple[TensorPlan, ...]
    config_changes: Mapping[str, bool]
    notes: tuple[str, ...]

    @property
    def by_name(self) -> Mapping[str, TensorPlan]:
        return {tensor.name: tensor for tensor in self.tensors}

    @property
    def source_bytes(self) -> int:
        return sum(tensor.source_bytes for tensor in self.tensors)

    @property
    def largest_f32_bytes(self) -> int:
        return max(4 * math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def bpw(self) -> float:
        """Stored bits a weight of everything, scales included."""
        return 8 * sum(tensor.nbytes for tensor in self.tensors) / self.num_parameters

    @property
    def body(self) -> tuple[TensorPlan, ...]:
        """The matrices inside the layers, and what makes their inputs of the embedding."""
        ends = (EMBEDDINGS, LAYER_EMBEDDINGS, OUTPUT)
        return tuple(one for one in self.tensors if len(one.shape) == 2 and one.name not in ends)

    @property
    def num_body_weights(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.body)

    @property
    def bpw_body(self) -> float:
        """Stored bits a weight of the body."""
        return 8 * sum(tensor.nbytes for tensor in self.body) / max(1, self.num_body_weights)

    @property
    def main_format(self) -> str:
        """The format of most weights of the body: what the model is called after."""
        sizes: dict[str, int] = {}
        for tensor in self.body:
            sizes[tensor.format] = sizes.get(tensor.format, 0) + math.prod(tensor.shape)
        return max(sizes, key=sizes.__getitem__)


@lru_cache(maxsize=1024)  # a mixture of experts has thousands of tensors of two shapes
def parts_of(form: str, shape: tuple[int, ...]) -> Mapping[str, Part]:
    """The stored parts of a tensor of that shape in the format of that name. Raises BadModelFile for one not known."""
    if form in PLAIN_TYPES:
        return {"": Part(dtype=PLAIN_TYPES[form], shape=shape)}
    found = TENSOR_FORMATS.get(form)
    if found is None:
        raise BadModelFile(f"The weight format {form!r} is not known.", hint="Use a newer version of runner.")
    if len(shape) != 2 or shape[1] % found.unit:
        raise BadModelFile(
            f"A tensor of shape {list(shape)} cannot have the format {form}: rows are multiples of {found.unit}.",
            hint="The file is damaged: fetch or make it again.",
        )
    return found.parts((shape[0], shape[1]))


def make_plan(config: ModelConfig, weights: Weights, recipe: Recipe, rotation: Rotation) -> PackedPlan:
    """The plan for `weights`, which are those of the basis `rotation` (basis.in_basis).

    Raises UsageError for a recipe that names formats that do not exist, BadModelFile and UnsupportedModel for weights
    that are not those of the configuration.
    """
    _check_formats(recipe)
    names = _names_in_order(config, weights, rotation)
    notes: list[str] = []
    tensors = tuple(_plan_one(name, weights, recipe, rotation, notes) for name in names)
    notes += [f"The rule for {rule.tensors!r} matches no tensor." for rule in recipe.rules if _is_idle(rule, names)]
    return PackedPlan(
        config=config,
        recipe=recipe,
        rotation=rotation,
        tensors=tensors,
        config_changes=config_changes(config, rotation),
        notes=(*_of_source(weights, tensors, rotation), *_of_stream(config, rotation), *_grouped(notes)),
    )


def _check_formats(recipe: Recipe) -> None:
    for rule in recipe.rules:
        if rule.format != KEEP and rule.format not in TENSOR_FORMATS:
            raise UsageError(
                f"The recipe gives {rule.tensors!r} the unknown format {rule.format!r}.",
                hint=nearest_hint(rule.format, [*TENSOR_FORMATS, KEEP]),
            )


def _is_idle(rule: Rule, names: tuple[str, ...]) -> bool:
    """Whether a rule that somebody wrote for this model matches nothing: probably a misspelt name."""
    is_of_all_recipes = rule.tensors in (OUTPUT, EMBEDDINGS, LAYER_INPUTS, "*") or rule.format == KEEP
    return not is_of_all_recipes and not any(rule.matches(name) for name in names)


def _names_in_order(config: ModelConfig, weights: Weights, rotation: Rotation) -> tuple[str, ...]:
    """The tensors that a model of this configuration has, in the order of a forward pass, each found in `weights`."""
    check_count(weights, config)
    decoder = Architecture(model_type=config.model_type, gguf_name="", interleaved_rotary=False, rules=_rules(config))
    wanted = with_experts({tensor.source: tensor.shape for tensor in tensors_of(decoder, config)}, config)
    wanted["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_word_embeddings or rotation == "folded":
        wanted[OUTPUT] = (config.vocab_size, config.hidden_size)
    for name, shape in wanted.items():
        if name not in weights.shapes:
            raise BadModelFile(
                f"{weights.where} lacks {name!r}.",
                hint="Fetch the model again; if it is complete, its config.json does not belong to it.",
            )
        if weights.shapes[name] != shape:
            raise BadModelFile(
                f"Tensor {name!r} of {weights.where} has shape {list(weights.shapes[name])}, not {list(shape)}.",
                hint="config.json and the weights do not belong together.",
            )
    if extra := sorted(weights.shapes.keys() - wanted.keys()):
        raise UnsupportedModel(
            f"{weights.where} has tensors that a {config.model_type} model does not, such as {extra[0]!r}.",
            hint="It is a variant of the architecture that this version does not know; look for a ready GGUF.",
        )
    return tuple(wanted)


def _rules(config: ModelConfig) -> tuple[TensorRule, ...]:
    """The tensors of the embedding and of all layers."""
    return (
        *blocks.EMBEDDINGS[:1],
        *{"before": blocks.NORMS, "after": blocks.NORMS_AFTER, "around": blocks.NORMS_AROUND}[config.norms],
        *(blocks.JOINED_ATTENTION if config.is_joined else (*blocks.ATTENTION, *blocks.QKV_BIASES)),
        *blocks.OUTPUT_BIAS,
        *{"none": (), "head": blocks.QK_NORMS, "row": blocks.QK_ROW_NORMS}[config.qk_norm],
        *blocks.SINKS,
        *blocks.DELTA_NET,
        *blocks.LAYER_SCALARS,
        *(blocks.JOINED_MLP if config.is_joined else (*blocks.GATED_MLP, *blocks.MLP_BIASES)),
        *blocks.LAYER_INPUTS,
    )


def _plan_one(name: str, weights: Weights, recipe: Recipe, rotation: Rotation, notes: list[str]) -> TensorPlan:
    shape, stored = weights.shapes[name], weights.types[name]
    source_bytes = max(1, int(math.prod(shape) * weights.bits[name] / 8))
    form, blocks_of = KEEP if len(shape) != 2 else recipe.format_for(name), 1
    kept_as = _KEPT_AS.get(stored, "f32" if len(shape) == 1 else "bf16")
    if form != KEEP:
        unit, columns = TENSOR_FORMATS[form].unit, shape[1]
        if columns % unit:
            notes.append(f"{form} needs rows that are multiples of {unit}, so they are kept as {kept_as} | {name}")
            form = KEEP
        else:
            blocks_of = stored_rotation(name, columns, rotation)
            if blocks_of > 1 and columns % LARGEST:
                notes.append(
                    f"rows are no multiple of {LARGEST}, so they are rotated in blocks of {blocks_of} | {name}"
                )
    return TensorPlan(
        name=name,
        shape=shape,
        format=kept_as if form == KEEP else form,
        input_rotation=blocks_of,
        source_bytes=source_bytes,
    )


def _grouped(notes: list[str]) -> list[str]:
    """One sentence a reason, with the number of tensors and the first of them."""
    found: dict[str, list[str]] = {}
    for note in notes:
        reason, _, name = note.partition(" | ")
        found.setdefault(reason, []).append(name)
    return [
        f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {reason}." if names[0] else reason
        for reason, names in found.items()
    ]


def _of_source(weights: Weights, tensors: tuple[TensorPlan, ...], rotation: Rotation) -> list[str]:
    """What the source has lost already, and loses again."""
    coarse = [one for one in tensors if len(one.shape) == 2 and weights.bits[one.name] < _LOSSLESS_BITS]
    rounded = [one for one in coarse if rotation == "folded" or not _stays(one, weights)]
    if not rounded:
        return []
    if len(rounded) == len(coarse):
        sizes = [math.prod(one.shape) for one in rounded]
        bits = sum(weights.bits[one.name] * size for one, size in zip(rounded, sizes, strict=True)) / sum(sizes)
        what = f"The source is {weights.quantization}, {bits:.1f} bits a weight:"
    else:
        first, more = rounded[0].name, f" and {len(rounded) - 1} more" if len(rounded) > 1 else ""
        types = ", ".join(sorted({weights.types[one.name] for one in rounded}))
        what = f"The source is {weights.quantization} and is taken over as it is, but for {first}{more} ({types}):"
    return [
        f"{what} its rounding stays in the result, and the new one is added to it. The original weights, where they "
        "are published, give a better model."
    ]


def _stays(tensor: TensorPlan, weights: Weights) -> bool:
    """Whether its bits are taken over from one of hipfire's files (hipfire/producer.py)."""
    is_there = weights.types[tensor.name] == HIPFIRE_NAME
    return is_there and tensor.format == MQ4_HIPFIRE.name and tensor.input_rotation == BLOCK_WEIGHTS


def _of_stream(config: ModelConfig, rotation: Rotation) -> list[str]:
    """Where the folded rotation of the residual stream is a smaller one."""
    size = rotation_size(config.hidden_size)
    if rotation == "online" or size == LARGEST:
        return []
    return [f"The hidden size {config.hidden_size} is no multiple of {LARGEST}: it is rotated in blocks of {size}."]


def plain_plan(plan: PackedPlan) -> dict[str, Any]:
    """What of a plan a half-made file depends on, as JSON."""
    return {
        "rotation": plan.rotation,
        "tensors": [[one.name, list(one.shape), one.format, one.input_rotation] for one in plan.tensors],
    }
