"""Which names make up a model: quantizations, split files, side files, and places without one."""

from __future__ import annotations

import pytest

from runner.errors import BadModelFile, RunnerError, UnsupportedModel, UsageError
from runner.model_files import choose, gguf_groups, intended_groups, part_number, safetensors_weights
from runner.registry import ModelSpec, Registry

HF = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "README.md"]
HUB = ModelSpec(name="a/b", origin="hub", gguf="a/b", repo="a/b")


def asked(quant: str) -> ModelSpec:
    return ModelSpec(name=f"a/b:{quant}", origin="hub", gguf="a/b", repo="a/b", asked=quant)


def split(stem: str, count: int) -> list[str]:
    return [f"{stem}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def test_a_registry_name_takes_its_file_in_any_case() -> None:
    spec = Registry.load_for().resolve("gpt-oss-20b")
    for name in ("gpt-oss-20b-mxfp4.gguf", "gpt-oss-20b-MXFP4.gguf", "sub/gpt-oss-20b-MXFP4.gguf"):
        assert choose(spec, ["README.md", name], "r").weights == (name,)


def test_all_parts_of_a_split_model_are_taken_in_order() -> None:
    spec = Registry.load_for().resolve("gpt-oss-120b")
    parts = split("gpt-oss-120b-mxfp4", 12)
    assert choose(spec, parts[::-1], "r").weights == tuple(parts)


def test_a_whole_file_wins_over_the_same_model_in_parts_and_in_folders() -> None:
    names = ["x-Q4_K_M.gguf", *split("x-Q4_K_M", 2), "old/x-Q4_K_M.gguf"]
    assert choose(asked("Q4_K_M"), names, "r").weights == ("x-Q4_K_M.gguf",)


def test_a_split_model_with_a_part_missing_is_none() -> None:
    with pytest.raises(BadModelFile, match=r"x-Q4_K_M.gguf \(2 of 3 parts\)"):
        choose(HUB, split("x-Q4_K_M", 3)[1:], "r")


def test_without_a_choice_the_best_liked_quantization_is_taken() -> None:
    names = [f"x-{quant}.gguf" for quant in ("Q2_K", "Q8_0", "Q4_K_M", "F16")]
    assert choose(HUB, names, "r").weights == ("x-Q4_K_M.gguf",)
    assert choose(HUB, names[:2], "r").quant == "Q8_0"
    assert choose(HUB, names[:1], "r").quant == "Q2_K"


def test_different_models_in_one_repository_have_to_be_chosen() -> None:
    with pytest.raises(UsageError, match="several models") as caught:
        choose(HUB, ["x-7b-Q4_0.gguf", "x-13b-Q8_0.gguf"], "r")
    assert "x-13b-Q8_0.gguf, x-7b-Q4_0.gguf" in caught.value.message
    assert choose(asked("Q4_0"), ["x-7b-Q4_0.gguf", "x-13b-Q8_0.gguf"], "r").weights == ("x-7b-Q4_0.gguf",)
    with pytest.raises(UsageError, match="several models"):
        choose(asked("Q4_0"), ["x-7b-Q4_0.gguf", "x-13b-Q4_0.gguf", "x-7b-Q8_0.gguf"], "r")


def test_a_quantization_that_is_not_there_lists_the_others() -> None:
    with pytest.raises(UsageError, match="no Q6_K") as caught:
        choose(asked("Q6_K"), ["x-Q4_0.gguf", "x-Q8_0.gguf"], "a/b")
    assert "Q4_0, Q8_0" in caught.value.hint


def test_projectors_and_calibration_data_are_no_models() -> None:
    names = ["mmproj-F16.gguf", "m-BF16-mmproj.gguf", "m.imatrix.gguf", "m-F16.gguf"]
    assert [group.label for group in gguf_groups(names)] == ["m-F16.gguf"]
    assert choose(asked("F16"), names, "r").weights == ("m-F16.gguf",)


def test_a_gguf_brings_the_configuration_beside_it() -> None:
    choice = choose(HUB, ["q/x-Q8_0.gguf", "q/config.json", "generation_config.json"], "r")
    assert choice.names == ("q/x-Q8_0.gguf", "q/config.json")


def test_safetensors_bring_configuration_and_tokenizer_and_nothing_else() -> None:
    choice = choose(HUB, ["model.safetensors", *HF, "pytorch_model.bin", "onnx/model.onnx"], "r")
    assert (choice.format, choice.weights) == ("safetensors", ("model.safetensors",))
    assert set(choice.side) == set(HF) - {"README.md"}


def test_shards_bring_their_index_and_win_over_consolidated_files() -> None:
    shards = [f"model-{number:05d}-of-00002.safetensors" for number in (1, 2)]
    names = [*shards, "model.safetensors.index.json", "consolidated.safetensors", *HF]
    choice = choose(HUB, names, "r")
    assert choice.weights == tuple(shards)
    assert "model.safetensors.index.json" in choice.side


def test_a_missing_shard_is_named() -> None:
    with pytest.raises(BadModelFile, match=r"1 of 2 parts"):
        safetensors_weights(["model-00002-of-00002.safetensors", *HF])


@pytest.mark.parametrize(
    "names",
    [
        ["model-00002-of-00002.safetensors", *HF],
        ["x-00001-of-00003.gguf"],
        ["model.safetensors", "tokenizer.json"],
    ],
)
def test_what_a_repository_itself_lacks_is_not_to_be_fetched_again(names: list[str]) -> None:
    for are_all, hint in ((True, "The repository itself lacks that"), (False, "Fetch ")):
        with pytest.raises(BadModelFile) as caught:
            choose(HUB, names, "r", are_all=are_all)
        assert caught.value.hint.startswith(hint)


def test_other_weights_do_not_stand_in_for_a_model_with_a_part_missing() -> None:
    names = [*HF, "model-00001-of-00002.safetensors", "vision.safetensors"]
    with pytest.raises(BadModelFile, match=r"missing: model.safetensors \(1 of 2 parts\)"):
        choose(HUB, names, "r", are_all=True)
    with pytest.raises(BadModelFile, match=r"missing in r: x-Q4_0.gguf \(1 of 2 parts\)") as said:
        choose(asked("Q4_0"), ["x-Q8_0.gguf", *split("x-Q4_0", 2)[1:]], "r", are_all=True)
    assert "fetching again brings nothing" in said.value.hint


def test_gguf_wins_over_safetensors_unless_the_original_is_asked_for() -> None:
    names = ["x-Q8_0.gguf", "model.safetensors", *HF]
    assert choose(HUB, names, "r").format == "gguf"
    assert choose(asked("safetensors"), names, "r").format == "safetensors"


@pytest.mark.parametrize(("without", "said"), [("config.json", "no config.json"), ("tokenizer.json", "no tokenizer")])
def test_a_missing_side_file_is_named(without: str, said: str) -> None:
    names = [name for name in ["model.safetensors", *HF] if name != without]
    with pytest.raises(BadModelFile, match=said):
        choose(HUB, names, "r")


def test_other_forms_of_a_tokenizer_count() -> None:
    for tokenizer in (["tokenizer.model"], ["vocab.json", "merges.txt"]):
        assert choose(HUB, ["model.safetensors", "config.json", *tokenizer], "r").format == "safetensors"


def test_pickles_alone_are_refused_with_the_remedy() -> None:
    with pytest.raises(UnsupportedModel, match="pickle") as caught:
        choose(HUB, ["pytorch_model.bin", *HF], "r")
    assert "safetensors or GGUF" in caught.value.hint


def test_a_quantization_of_original_weights_points_at_them() -> None:
    with pytest.raises(UsageError, match="original weights") as caught:
        choose(asked("Q4_K_M"), ["model.safetensors", *HF], "r")
    assert ":safetensors" in caught.value.hint


@pytest.mark.parametrize("names", [[], ["README.md"], ["a.onnx"], ["sub/model.safetensors"]])
def test_a_place_without_weights_is_said_so(names: list[str]) -> None:
    with pytest.raises(RunnerError, match="no GGUF and no safetensors"):
        choose(HUB, names, "r")


@pytest.mark.parametrize("name", ["x-00000-of-00000.gguf", "x-00001-of-00000.gguf", "x-00003-of-00002.gguf"])
def test_a_number_that_no_part_can_have_makes_no_split_file(name: str) -> None:
    for groups in (gguf_groups([name]), intended_groups([name])):
        assert [group.names for group in groups] == [(name,)]
    assert part_number(name) is None
