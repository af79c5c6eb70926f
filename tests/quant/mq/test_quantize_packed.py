"""Making a packed model: what it is, what it says, and what a kill, a full disk or a second process leave."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from disk_limits import fill, small_disk
from packed_models import logits, opened, packed, tiny
from safetensors.torch import load_file, save_file

from runner.backends.native.loader import unfilled
from runner.errors import BadModelFile, BusyError, DoesNotFit, UnsupportedModel, UsageError
from runner.quant.formats import format_of
from runner.quant.mq.manifest import read_manifest
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.mq.recipe import KEEP, Recipe, Rule, recipe_of
from runner.quant.packed_files import JOURNAL_NAME, MANIFEST_NAME, WEIGHTS_NAME
from runner.quant.quantize import quantize_model
from runner.quant.weights import OUTPUT
from runner.quant.work_directory import WorkDirectory
from tests.backends.native.tiny_models import save
from tests.backends.native.tiny_wholes import make_whole


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("source") / "tiny", "llama-tied")


def hashes(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def replaced(source: Path, directory: Path, **tensors: torch.Tensor) -> Path:
    """A copy of `source` with other tensors; "__" in a name stands for "."."""
    shutil.copytree(source, directory)
    stored = load_file(source / WEIGHTS_NAME)
    stored |= {name.replace("__", "."): value for name, value in tensors.items()}
    save_file(stored, directory / WEIGHTS_NAME)
    return directory


# --- what is made ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "llama-biases",
        "qwen2",
        "qwen3",
        "mistral",
        "phi3",
        "gemma3",
        "gemma4",
        "gemma4-inputs-by-layer-and-shared-caches",
        "olmo2",
        "smollm3",
        "granite",
        "ministral3",
        "qwen3-5",
    ],
)
def test_eight_bits_give_nearly_the_logits_of_the_source_in_every_rotation_that_it_has(
    tmp_path: Path, name: str
) -> None:
    directory = tiny(tmp_path / "source", name, tie_word_embeddings=True)
    weights, config = opened(directory)
    wanted = logits(config, weights)
    for rotation in ("online", "folded") if config.norms == "before" and not config.is_gated else ("online",):
        made = packed(directory, tmp_path / rotation, "mq8", rotation=rotation)
        _, new_config = opened_config(made.path)
        found = logits(new_config, PackedWeights(made.path))
        # Random weights amplify: a wrong basis would give an error as large as the logits.
        assert np.square(found - wanted).mean() < 0.01 * np.square(wanted).mean(), rotation
        assert new_config.tie_word_embeddings == (rotation == "online")


def test_a_folded_file_whose_weights_are_kept_gives_the_very_logits(tmp_path: Path) -> None:
    directory = tiny(tmp_path / "source", "qwen2", tie_word_embeddings=True, dtype=torch.float32)
    weights, config = opened(directory)
    keep = Recipe(name="keep", rules=(Rule(tensors="*", format=KEEP),))
    made = packed(directory, tmp_path / "out", keep, rotation="folded")
    wanted = logits(config, weights)
    assert np.abs(logits(opened_config(made.path)[1], PackedWeights(made.path)) - wanted).max() < 1e-4


def test_the_text_model_of_a_folded_multimodal_one_is_not_tied_any_more(tmp_path: Path) -> None:
    directory = save(make_whole("mistral3-ministral3-tied"), tmp_path / "source")
    plain, config = opened_config(packed(directory, tmp_path / "out", "mq8", rotation="folded").path)
    assert (config.tie_word_embeddings, plain["text_config"]["tie_word_embeddings"]) == (False, False)
    assert OUTPUT in unfilled(config, PackedWeights(tmp_path / "out")).state_dict()


def opened_config(directory: Path) -> tuple[dict[str, Any], Any]:
    from runner.model_config import parse_model_config

    plain = json.loads((directory / "config.json").read_text())
    return plain, parse_model_config(plain)


def test_stored_weights_are_those_of_the_source_within_the_error_that_is_told(source: Path, tmp_path: Path) -> None:
    made = packed(source, tmp_path / "out", "mq4")
    found, (wanted, _) = PackedWeights(made.path), opened(source)
    for name, record in made.tensors.items():
        exact = torch.from_numpy(np.array(wanted.read(name))).view(torch.bfloat16).double().numpy()
        if record.weight_error is None:
            assert np.array_equal(found.read(name), wanted.read(name))
            continue
        error = np.square(found.read(name) - exact).sum() / np.square(exact).sum()
        assert error == pytest.approx(record.weight_error, rel=1e-3)
        assert 0 < error < 0.015
        assert np.array_equal(found.read(name)[5:31], found.read_rows(name, 5, 31))


def test_a_directory_holds_the_model_its_tokenizer_and_nothing_else(source: Path, tmp_path: Path) -> None:
    made = packed(source, tmp_path / "out", "mq4")
    manifest = read_manifest(made.path)
    assert set(hashes(made.path)) == {*manifest.files, MANIFEST_NAME}
    assert {WEIGHTS_NAME, "config.json", "tokenizer.json"} <= set(manifest.files)
    for name, record in manifest.files.items():
        assert record.sha256 == hashes(made.path)[name]
        assert record.size_bytes == (made.path / name).stat().st_size
    assert manifest.source.files[WEIGHTS_NAME].sha256 == hashes(source)[WEIGHTS_NAME]
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    assert made.size_bytes == sum(path.stat().st_size for path in made.path.iterdir())


def test_bits_a_weight_are_those_of_the_file(source: Path, tmp_path: Path) -> None:
    made = packed(source, tmp_path / "out", "mq4")
    assert made.bpw_body == 4.25
    assert 8 * made.weights.stat().st_size / made.num_parameters == pytest.approx(made.bpw, rel=0.25)
    assert read_manifest(made.path).bpw == pytest.approx(made.bpw, abs=1e-3)


def test_rows_that_are_no_whole_groups_are_kept_and_that_is_said(tmp_path: Path) -> None:
    directory = tiny(tmp_path / "source", "qwen3", intermediate_size=80)
    made = packed(directory, tmp_path / "out", "mq4")
    down = "model.layers.0.mlp.down_proj.weight"
    assert made.tensors[down].format == "bf16"
    assert any("down_proj" in note and "multiples of 32" in note for note in made.warnings)
    assert any("rotated in blocks of 64" in note for note in made.warnings)
    assert read_manifest(made.path).notes == made.warnings
    assert np.array_equal(PackedWeights(made.path).read(down), opened(directory)[0].read(down))


def test_a_matrix_of_zeros_stays_one(source: Path, tmp_path: Path) -> None:
    up = torch.zeros(96, 64, dtype=torch.bfloat16)
    directory = replaced(source, tmp_path / "source", model__layers__0__mlp__up_proj__weight=up)
    for form in ("mq4", "mq8"):
        made = packed(directory, tmp_path / form, form)
        assert not PackedWeights(made.path).read("model.layers.0.mlp.up_proj.weight").any() or form == "mq4"
        assert np.abs(PackedWeights(made.path).read("model.layers.0.mlp.up_proj.weight")).max() < 1e-6


def test_own_rules_decide_and_misspelt_ones_are_told(source: Path, tmp_path: Path) -> None:
    rules = (
        Rule(tensors="model.layers.[02].self_attn.v_proj.weight", format="mq8"),
        Rule(tensors="*.dwon_proj.weight", format="mq6"),
        Rule(tensors="*.o_proj.weight", format=KEEP),
    )
    made = packed(source, tmp_path / "out", Recipe(name="mine", rules=(*rules, *recipe_of("mq4").rules)))
    formats = [made.tensors[f"model.layers.{layer}.self_attn.v_proj.weight"].format for layer in range(3)]
    assert formats == ["mq8", "mq4", "mq8"]
    assert made.tensors["model.layers.1.self_attn.o_proj.weight"].format == "bf16"
    assert any("dwon_proj" in note for note in made.warnings)
    assert made.format == "MQ4"


def test_a_recipe_with_an_unknown_format_is_refused_before_anything_is_made(source: Path, tmp_path: Path) -> None:
    wrong = Recipe(name="mine", rules=(Rule(tensors="*", format="mq44"),))
    with pytest.raises(UsageError, match="mq44"):
        packed(source, tmp_path / "out", wrong)
    assert not list(tmp_path.iterdir())


# --- sources ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["f16", "q8_0", "q4_k_m", "q6_k"])
def test_a_gguf_is_a_source_and_what_it_lost_is_told(demo_directory: Path, tmp_path: Path, form: str) -> None:
    quantize_model(demo_directory, format_of(form), tmp_path / "gguf", force=False, on_stage=lambda *_: None)
    name = "model.layers.3.self_attn.q_proj.weight"
    one = Recipe(name="mine", rules=(Rule(tensors=name, format="mq6"), Rule(tensors="*", format=KEEP)))
    made = packed(tmp_path / "gguf", tmp_path / "out", one)
    weights = PackedWeights(made.path)
    original, _ = opened_gguf(demo_directory)
    error = np.square(weights.read(name) - original.read(name)).sum() / np.square(original.read(name)).sum()
    assert error < {"f16": 6e-4, "q8_0": 6e-4, "q4_k_m": 0.01, "q6_k": 1.5e-3}[form]
    told = [note for note in made.warnings if "bits a weight" in note]
    assert bool(told) == (form != "f16")
    if form == "q4_k_m":
        assert "Q4_K_M" in told[0]
        assert 4.5 < float(told[0].split(", ")[1].split()[0]) < 5.6


def opened_gguf(directory: Path) -> tuple[Any, Any]:
    from runner.quant.weights import open_source

    _, config = opened_config(directory)
    return open_source(directory, directory / "demo-q8_0.gguf", config), config


def test_other_safetensors_beside_the_models_own_are_no_part_of_it(source: Path, tmp_path: Path) -> None:
    directory = replaced(source, tmp_path / "source")
    (directory / "consolidated.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    made = packed(directory, tmp_path / "out")
    assert made.source_bytes == (directory / WEIGHTS_NAME).stat().st_size
    assert list(read_manifest(made.path).source.files) == [WEIGHTS_NAME]


def test_sharded_and_float_sources_give_the_same_as_one_file(source: Path, tmp_path: Path) -> None:
    stored = {name: value.float() for name, value in load_file(source / WEIGHTS_NAME).items()}
    split = tmp_path / "split"
    shutil.copytree(source, split)
    (split / WEIGHTS_NAME).unlink()
    names, weight_map = sorted(stored), {}
    for number, some in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: stored[name] for name in some}, split / file)
        weight_map |= dict.fromkeys(some, file)
    (split / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    ours, theirs = packed(source, tmp_path / "a", "mq4"), packed(split, tmp_path / "b", "mq4")
    for name, record in ours.tensors.items():
        assert record.weight_error is None or record.sha256 == theirs.tensors[name].sha256


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["model__layers__2__mlp__up_proj__weight", "model__norm__weight"])
def test_weights_that_are_no_numbers_are_refused_and_nothing_is_left(
    source: Path, tmp_path: Path, name: str, value: float
) -> None:
    tensor = load_file(source / WEIGHTS_NAME)[name.replace("__", ".")]
    tensor.view(-1)[-1] = value
    directory = replaced(source, tmp_path / "source", **{name: tensor})
    with pytest.raises(BadModelFile, match="NaN or infinite"):
        packed(directory, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["source"]


def test_a_damaged_tokenizer_is_refused_before_any_work(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "damaged")
    (tmp_path / "damaged" / "tokenizer.json").write_text('{"model":')
    with pytest.raises(BadModelFile, match=r"tokenizer\.json is not JSON"):
        packed(tmp_path / "damaged", tmp_path / "out")
    assert not (tmp_path / "out.partial").exists()


def test_a_missing_or_an_unknown_tensor_is_named_before_any_work(source: Path, tmp_path: Path) -> None:
    extra = replaced(source, tmp_path / "extra", model__layers__0__self_attn__sinks=torch.zeros(4))
    with pytest.raises(UnsupportedModel, match="sinks"):
        packed(extra, tmp_path / "out")
    config = json.loads((source / "config.json").read_text())
    shutil.copytree(source, tmp_path / "lacking")
    (tmp_path / "lacking" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    with pytest.raises(BadModelFile, match=r"model\.layers\.3\."):
        packed(tmp_path / "lacking", tmp_path / "out")
    assert not (tmp_path / "out.partial").exists()


def test_a_packed_model_and_a_gguf_alone_are_no_sources(source: Path, tmp_path: Path, demo_directory: Path) -> None:
    made = packed(source, tmp_path / "out")
    with pytest.raises(UsageError, match="packed model already"):
        packed(made.path, tmp_path / "again")
    shutil.copy(demo_directory / "demo-q8_0.gguf", tmp_path / "alone.gguf")
    with pytest.raises(UnsupportedModel, match=r"config\.json"):
        packed(tmp_path / "alone.gguf", tmp_path / "again")


# --- where it goes ---------------------------------------------------------------------------------------------------


def test_an_output_that_is_there_is_replaced_only_when_asked(source: Path, tmp_path: Path) -> None:
    packed(source, tmp_path / "out", "mq8")
    with pytest.raises(UsageError, match="exists already"):
        packed(source, tmp_path / "out", "mq4")
    packed(source, tmp_path / "out", "mq4", force=True)
    assert read_manifest(tmp_path / "out").quantization == "MQ4"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_force_never_deletes_somebody_elses_model(source: Path, tmp_path: Path) -> None:
    """An original model has weights of the very name that a packed one's have."""
    theirs = tmp_path / "theirs"
    shutil.copytree(source, theirs)
    before = hashes(theirs)
    with pytest.raises(UsageError, match="do not belong"):
        packed(source, theirs, force=True)
    shutil.copytree(source, tmp_path / "out.partial")
    with pytest.raises(UsageError, match="do not belong"):
        packed(source, tmp_path / "out")
    assert hashes(theirs) == hashes(tmp_path / "out.partial") == before


def test_force_deletes_no_gguf(demo_directory: Path, source: Path, tmp_path: Path) -> None:
    """Neither that which it is made from nor another."""
    for name, made_from in (("own", tmp_path / "own"), ("theirs", source)):
        shutil.copytree(demo_directory, tmp_path / name)
        (tmp_path / name / "README.md").unlink()
        with pytest.raises(UsageError, match=r"would be replaced|do not belong"):
            packed(made_from, tmp_path / name, force=True)
        assert (tmp_path / name / "demo-q8_0.gguf").stat().st_size > 10**7


def test_a_file_name_cannot_be_the_output(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="directory"):
        packed(source, tmp_path / "out.gguf")


def test_what_a_gguf_run_left_is_no_hindrance(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "intermediate.gguf").write_bytes(b"half")
    made = packed(source, tmp_path / "out")
    assert "intermediate.gguf" not in hashes(made.path)


def test_a_second_process_is_told_to_wait(source: Path, tmp_path: Path) -> None:
    with WorkDirectory(tmp_path / "out").opened(resumes=True), pytest.raises(BusyError, match="Another process"):
        packed(source, tmp_path / "out")
    packed(source, tmp_path / "out")


# --- stopped in the middle -------------------------------------------------------------------------------------------


class StopAfter:
    """Raises `error` when the stage "quantizing" has been reported that often."""

    def __init__(self, count: int, error: BaseException) -> None:
        self._left, self._error = count, error

    def __call__(self, stage: str, _done: int, _total: int) -> None:
        self._left -= stage == "quantizing"
        if self._left < 0:
            raise self._error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), DoesNotFit("full")])
def test_a_stopped_run_is_continued(source: Path, tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        packed(source, tmp_path / "out", "mq4", on_stage=StopAfter(12, error))
    assert not (tmp_path / "out").exists()
    notes: list[str] = []
    made = packed(source, tmp_path / "out", "mq4", on_note=notes.append)
    assert any("Going on with an earlier run: 12 of 29 tensors are done." in note for note in notes)
    assert hashes(made.path) == hashes(packed(source, tmp_path / "whole", "mq4").path)


def test_another_recipe_starts_over_and_says_so(source: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        packed(source, tmp_path / "out", "mq4", on_stage=StopAfter(5, KeyboardInterrupt()))
    notes: list[str] = []
    packed(source, tmp_path / "out", "mq8", on_note=notes.append)
    assert any("starting over" in note for note in notes)
    assert read_manifest(tmp_path / "out").quantization == "MQ8"


def test_a_changed_source_starts_over(source: Path, tmp_path: Path) -> None:
    mine = shutil.copytree(source, tmp_path / "source")
    with pytest.raises(KeyboardInterrupt):
        packed(mine, tmp_path / "out", on_stage=StopAfter(5, KeyboardInterrupt()))
    os.utime(mine / WEIGHTS_NAME, (1, 1))
    notes: list[str] = []
    packed(mine, tmp_path / "out", on_note=notes.append)
    assert any("starting over" in note for note in notes)


_CHILD = """
import sys, torch
from pathlib import Path
from runner.quant.mq.quantize import quantize_packed
from runner.quant.mq.recipe import recipe_of
torch.set_num_threads(1)
tell = lambda *stage: print(*stage, flush=True)
quantize_packed(Path(sys.argv[1]), recipe_of("mq4"), Path(sys.argv[2]), on_stage=tell)
"""


def test_killed_at_random_moments_and_finished_it_is_the_same_model(tmp_path: Path) -> None:
    source = tiny(tmp_path / "source", "qwen2", num_hidden_layers=16)
    whole = hashes(packed(source, tmp_path / "whole", "mq4").path)
    output, chance = tmp_path / "out", random.Random(3)
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(source), str(output)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            for _ in range(chance.randrange(1, 40)):  # stages, of two hundred
                assert child.stdout.readline()
            child.send_signal(signal.SIGKILL)
            child.wait()
        assert not output.exists()
        assert (tmp_path / "out.partial" / JOURNAL_NAME).is_file()
    packed(source, output, "mq4")
    assert hashes(output) == whole
    assert not (tmp_path / "out.partial").exists()


def test_killed_before_the_rename_it_only_has_to_be_finished(source: Path, tmp_path: Path) -> None:
    """All files are there, the manifest too: nothing is computed again."""
    whole = packed(source, tmp_path / "whole", "mq4").path
    with pytest.raises(KeyboardInterrupt):
        packed(source, tmp_path / "out", "mq4", on_stage=_stop_at_hashing)
    shutil.copy(whole / MANIFEST_NAME, tmp_path / "out.partial")
    stages: list[tuple[str, int, int]] = []
    packed(source, tmp_path / "out", "mq4", on_stage=lambda *stage: stages.append(stage))
    assert [done == total for stage, done, total in stages if stage == "quantizing"] == [True]
    assert hashes(tmp_path / "out") == hashes(whole)


def _stop_at_hashing(stage: str, _done: int, _total: int) -> None:
    if stage == "hashing":
        raise KeyboardInterrupt


def test_a_disk_that_is_too_small_is_told_before_the_work(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=100_000))
    with pytest.raises(DoesNotFit, match="are needed in"):
        packed(source, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    work = WorkDirectory(tmp_path / "out")
    with work.opened():
        work.require_room(150_000, there_bytes=50_000)  # of an earlier run
        with pytest.raises(DoesNotFit):
            work.require_room(150_001, there_bytes=50_000)


def test_a_small_disk_that_fills_up_while_it_works(source: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "6m") as disk:
        filler = disk / "filler"

        def fill_once(stage: str, _done: int, _total: int) -> None:
            if stage == "quantizing" and not filler.exists():
                fill(filler)

        with pytest.raises(DoesNotFit, match="is full"):
            packed(source, disk / "out", "mq4", on_stage=fill_once)
        filler.unlink()
        assert (disk / "out.partial" / JOURNAL_NAME).is_file()
        assert hashes(packed(source, disk / "out", "mq4").path) == hashes(packed(source, tmp_path / "o", "mq4").path)


def test_rounding_on_a_cpu_takes_no_more_threads_than_a_container_grants_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, source = torch.get_num_threads(), tiny(tmp_path / "source")
    try:
        for has, granted, takes in ((3, 2, 2), (1, 2, 1)):
            torch.set_num_threads(has)
            monkeypatch.setattr("runner.quant.mq.quantize.default_threads", lambda granted=granted: granted)
            packed(source, tmp_path / str(has), "mq8")
            assert torch.get_num_threads() == takes
    finally:
        torch.set_num_threads(before)
