"""What a packed model will consist of: sizes, what is kept and why, and what is refused, before a weight is read."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.errors import BadModelFile
from runner.model_config import ModelConfig
from runner.quant.mq.plan import PackedPlan, make_plan, parts_of, plain_plan
from runner.quant.mq.recipe import KEEP, Recipe, Rule, recipe_of
from tests.quant.mq.packed_models import opened, tiny

DOWN = "model.layers.0.mlp.down_proj.weight"


class Headers:
    """What a source says of its tensors: no weight of it is read."""

    def __init__(self, config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], stored: str, bits: float) -> None:
        self.config, self.shapes = config, dict(shapes)
        self.types = dict.fromkeys(shapes, stored)
        self.bits = dict.fromkeys(shapes, bits)
        self.quantization, self.where = stored, "the source"

    def read(self, name: str) -> Any:
        raise AssertionError(name)

    def read_rows(self, name: str, start: int, stop: int) -> Any:
        raise AssertionError((name, start, stop))


def headers(directory: Path, stored: str = "BF16", bits: float = 16.0, **more: Any) -> Headers:
    weights, config = opened(tiny(directory, **more))
    return Headers(config, weights.shapes, stored, bits)


def planned(source: Headers, recipe: Recipe | str = "mq8", rotation: Any = "online") -> PackedPlan:
    return make_plan(source.config, source, recipe_of(recipe) if isinstance(recipe, str) else recipe, rotation)


@pytest.mark.parametrize("wrong", [(96, 64), (64, 32), (64, 96, 1)])
def test_a_tensor_of_another_shape_is_refused_with_both(tmp_path: Path, wrong: tuple[int, ...]) -> None:
    source = headers(tmp_path)
    assert source.shapes[DOWN] == (64, 96)
    source.shapes[DOWN] = wrong
    with pytest.raises(BadModelFile) as refused:
        planned(source)
    assert f"{DOWN!r} of the source has shape {list(wrong)}, not [64, 96]" in refused.value.message


def test_reading_costs_what_the_source_stores(tmp_path: Path) -> None:
    source = headers(tmp_path / "bf16")
    count = sum(math.prod(shape) for shape in source.shapes.values())
    assert planned(source).source_bytes == 2 * count
    quarter = headers(tmp_path / "q4", "Q4_K", 4.5)
    plan = planned(quarter)
    assert plan.by_name[DOWN].source_bytes == int(64 * 96 * 4.5 / 8)
    assert min(tensor.source_bytes for tensor in plan.tensors) >= 1


def test_room_for_the_largest_tensor_is_room_for_it_as_float32(tmp_path: Path) -> None:
    source = headers(tmp_path)
    assert planned(source).largest_f32_bytes == 4 * max(math.prod(shape) for shape in source.shapes.values())


@pytest.mark.parametrize(
    ("stored", "vector", "matrix"),
    [
        ("F64", "f32", "f32"),
        ("F32", "f32", "f32"),
        ("F16", "f16", "f16"),
        ("BF16", "bf16", "bf16"),
        ("Q8_0", "f32", "bf16"),
    ],
)
def test_what_is_kept_is_kept_as_it_is_stored_and_what_has_no_such_type_as_near(
    tmp_path: Path, stored: str, vector: str, matrix: str
) -> None:
    plan = planned(headers(tmp_path, stored), Recipe(name="none", rules=(Rule(tensors="*", format=KEEP),)))
    formats = {(len(tensor.shape), tensor.format) for tensor in plan.tensors}
    assert formats == {(1, vector), (2, matrix)}
    assert {tensor.input_rotation for tensor in plan.tensors} == {1}


def test_stored_parts_want_rows_of_whole_groups_and_matrices() -> None:
    assert parts_of("mq4", (8, 64))
    for shape in ((8, 48), (64,), (2, 8, 64)):
        with pytest.raises(BadModelFile, match="multiples of 32"):
            parts_of("mq4", shape)
    with pytest.raises(BadModelFile, match="'mq3' is not known"):
        parts_of("mq3", (8, 64))


def test_rows_that_no_format_divides_are_kept_and_that_is_said_once(tmp_path: Path) -> None:
    plan = planned(headers(tmp_path, intermediate_size=72))
    kept = [tensor.name for tensor in plan.body if tensor.is_kept]
    assert kept == [name for name in plan.by_name if name.endswith("down_proj.weight")]
    said = [note for note in plan.notes if "kept as bf16" in note]
    assert len(said) == 1
    assert said[0].startswith(f"{DOWN} and {len(kept) - 1} more: mq8 needs rows that are multiples of 32")


def test_rows_that_are_rotated_in_smaller_blocks_are_named_with_them(tmp_path: Path) -> None:
    plan = planned(headers(tmp_path))
    assert plan.by_name[DOWN].input_rotation == 32
    assert any("in blocks of 32" in note and DOWN in note for note in plan.notes)
    assert any("in blocks of 64" in note for note in plan.notes)
    whole = planned(headers(tmp_path / "whole", hidden_size=256, intermediate_size=512, num_attention_heads=8))
    assert {tensor.input_rotation for tensor in whole.body} == {256}
    assert whole.notes == ()


def test_a_folded_stream_that_is_rotated_in_smaller_blocks_is_named(tmp_path: Path) -> None:
    source = headers(tmp_path, tie_word_embeddings=False)
    says = "The hidden size 64 is no multiple of 256: it is rotated in blocks of 64."
    assert says in planned(source, rotation="folded").notes
    assert says not in planned(source).notes
    whole = headers(tmp_path / "whole", tie_word_embeddings=False, hidden_size=256)
    assert not [note for note in planned(whole, rotation="folded").notes if "hidden size" in note]


@pytest.mark.parametrize(("rule", "is_said"), [("*.nowhere.weight", True), ("*", False), ("lm_head.weight", False)])
def test_a_rule_that_matches_nothing_is_told_where_somebody_wrote_it_for_this_model(
    tmp_path: Path, rule: str, is_said: bool
) -> None:
    rules = (Rule(tensors=rule, format="mq6"), Rule(tensors="*.idle.weight", format=KEEP), *recipe_of("mq4").rules)
    plan = planned(headers(tmp_path, tie_word_embeddings=True), Recipe(name="own", rules=rules))
    assert [note for note in plan.notes if "matches no tensor" in note] == (
        [f"The rule for {rule!r} matches no tensor."] if is_said else []
    )


def test_a_half_made_file_depends_on_all_that_its_bytes_follow_from(tmp_path: Path) -> None:
    plan = planned(headers(tmp_path))
    first = plan.tensors[-1]
    for change in ({"name": "other"}, {"shape": (1, 2)}, {"format": "mq6"}, {"input_rotation": 8}):
        other = dataclasses.replace(plan, tensors=(*plan.tensors[:-1], dataclasses.replace(first, **change)))
        assert plain_plan(other) != plain_plan(plan), change
    assert plain_plan(dataclasses.replace(plan, rotation="folded")) != plain_plan(plan)
    assert plain_plan(dataclasses.replace(plan, notes=("a note",))) == plain_plan(plan)


def test_a_source_that_is_rounded_already_is_told_with_its_bits(tmp_path: Path) -> None:
    assert not [note for note in planned(headers(tmp_path / "a")).notes if "rounding stays" in note]
    (said,) = [note for note in planned(headers(tmp_path / "b", "Q4_K", 4.5)).notes if "rounding stays" in note]
    assert said.startswith("The source is Q4_K, 4.5 bits a weight")
