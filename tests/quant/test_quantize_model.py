"""`runner quantize`: what it makes, what it refuses, and what a killed run leaves."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import llama_cpp_oracle as oracle
import numpy as np
import pytest
import torch
from disk_limits import file_size_limit, fill, small_disk
from hf_directories import QWEN35, demo_as_safetensors, edit_json, random_model
from safetensors.torch import save_file
from tokenizers import Tokenizer
from waiting import wait_for

from runner.cli.app import main
from runner.errors import BadModelFile, BusyError, DoesNotFit, RunnerError, UnsupportedModel, UsageError
from runner.model_config import parse_model_config
from runner.quant.convert import read_source
from runner.quant.formats import FORMATS, format_of
from runner.quant.gguf_file import read_header
from runner.quant.half_made import olds_of
from runner.quant.journal import refusal
from runner.quant.json_file import read_json
from runner.quant.quantize import Quantized, lossless_format, made_name, model_name, quantize_model
from runner.quant.safetensors_file import to_f32
from runner.quant.weights import open_source
from runner.quant.work_directory import WorkDirectory, no_room

BPW = {"q4_0": 5.4, "q4_k_m": 5.1, "q5_k_m": 5.8, "q6_k": 6.6, "q8_0": 8.5, "f16": 16.0, "bf16": 16.0, "f32": 32.0}


def made(source: Path, name: str, output: Path, *, force: bool = False) -> Quantized:
    return quantize_model(source, format_of(name), output, force=force, on_stage=lambda _name, _done, _total: None)


def files(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir()}


@pytest.fixture(scope="module")
def demo_source(tmp_path_factory: pytest.TempPathFactory, demo_directory: Path) -> Path:
    return demo_as_safetensors(tmp_path_factory.mktemp("source") / "demo", demo_directory)


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_loads_and_answers(
    demo_source: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: list[tuple[str, int, int]] = []
    monkeypatch.chdir(tmp_path)  # no code comes from there: it may be the directory of a model from the hub
    (tmp_path / "llama_cpp.py").write_text("raise ValueError")
    result = quantize_model(
        demo_source, format_of(name), tmp_path / "out", force=False, on_stage=lambda *stage: stages.append(stage)
    )
    header = read_header(result.weights)
    assert header.quantization == result.format == name.upper()
    assert result.num_parameters == header.num_parameters == 18_357_504
    assert abs(result.bpw - BPW[name]) < 0.1
    names = ["converting", "quantizing", "hashing"] if FORMATS[name].by_llama_cpp else ["converting"]
    assert list(dict.fromkeys(stage for stage, _, _ in stages)) == names
    if len(names) == 1:  # each stage counts from 0
        assert all(before[1] <= after[1] for before, after in pairwise(stages))
    assert stages[-1][1] == stages[-1][2]
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    prompt = tokenizer.encode("<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n").ids
    assert tokenizer.decode(oracle.greedy(result.weights, prompt, 16)) == "Hello! How can I help you today?"


@pytest.fixture(scope="module")
def delta_source(tmp_path_factory: pytest.TempPathFactory, demo_directory: Path) -> Path:
    """Rows of whole blocks, so that every format is taken for what is not kept."""
    directory = tmp_path_factory.mktemp("delta")
    sizes = {"hidden_size": 256, "intermediate_size": 256, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
    random_model(directory, demo_directory, "qwen3_5_text", dtype=torch.bfloat16, **QWEN35 | sizes | {"head_dim": 64})
    return directory


ERRORS = {
    "q4_0": 0.12,
    "q4_k_m": 0.09,
    "q5_k_m": 0.05,
    "q6_k": 0.03,
    "q8_0": 0.01,
    "f16": 1e-6,
    "bf16": 0.0,
    "f32": 0.0,
}


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_of_a_model_with_delta_nets_has_its_weights_and_runs(
    delta_source: Path, tmp_path: Path, name: str
) -> None:
    result = made(delta_source, name, tmp_path / "made.gguf")
    assert np.isfinite(oracle.logits(result.weights, list(range(3, 40)))).all()
    config = parse_model_config(read_json(delta_source / "config.json"))
    source, found = open_source(delta_source, None, config), open_source(delta_source, result.weights, config)
    for tensor, shape in source.shapes.items():
        expected = to_f32(source.read(tensor), source.types[tensor])
        error = np.linalg.norm(found.read(tensor) - expected) / np.linalg.norm(expected)
        assert error <= (ERRORS[name] if len(shape) == 2 else 1e-6)  # the others are kept


def test_the_result_is_a_directory_that_can_be_loaded(demo_source: Path, tmp_path: Path) -> None:
    (demo_source / "LICENSE").write_text("MIT")
    (tmp_path / "out.partial").mkdir()
    for name in ("journal.jsonl", "model.safetensors"):  # of a packed model that was to be made there
        (tmp_path / "out.partial" / name).write_bytes(b"{}")
    result = made(demo_source, "q8_0", tmp_path / "out")
    assert result.path == tmp_path / "out"
    assert files(result.path) == {
        "demo-q8_0.gguf",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "LICENSE",
        "runner.json",
    }
    assert [name for name in files(tmp_path) if name.startswith("out")] == ["out"]


@pytest.mark.parametrize("name", ["model.gguf", "MODEL.GGUF"])
def test_a_gguf_output_is_one_file(
    demo_source: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))  # as where the disk of /tmp is full
    half_made = tmp_path / "sub" / f"{name}.partial" / name  # by a run that was killed
    half_made.parent.mkdir(parents=True)
    half_made.write_bytes(b"GGUF")
    result = made(demo_source, "q6_k", tmp_path / "sub" / name)
    assert result.weights == result.path == tmp_path / "sub" / name
    assert files(tmp_path / "sub") == {name}
    assert read_header(result.path).quantization == "Q6_K"


@pytest.mark.parametrize("name", ["q4_k_m", "q6_k", "q4_0"])
def test_rows_that_are_not_whole_blocks_still_give_a_model(shared_data: Path, tmp_path: Path, name: str) -> None:
    """stories260K has rows of 64 and 172: neither K-quants nor 4-bit blocks divide them."""
    result = made(shared_data / "stories260K" / "hf", name, tmp_path / "out")
    golden = json.loads((shared_data / "stories260K" / "golden_greedy_200.json").read_text())["greedy_ids"]
    assert oracle.greedy(result.weights, [1], 5) == golden[1:6]


class TestFromGguf:
    """A GGUF is a source as well."""

    @pytest.mark.parametrize("name", ["q8_0", "q4_0"])
    def test_our_blocks_and_llama_cpps_are_the_same_bytes(self, demo_source: Path, tmp_path: Path, name: str) -> None:
        ours = read_header(made(demo_source, name, tmp_path / "ours.gguf").path)
        wide = made(demo_source, "f16", tmp_path / "wide.gguf").path
        theirs = read_header(made(wide, name, tmp_path / "theirs.gguf").path)
        # llama.cpp puts the embeddings of a 4-bit model into Q6_K, we into Q8_0.
        others = {"token_embd.weight"} if name == "q4_0" else set()
        for tensor in ours.tensors:
            other = theirs.tensor(tensor.name)
            assert other is not None
            assert np.array_equal(ours.read_raw(tensor), theirs.read_raw(other)) == (tensor.name not in others)

    @pytest.mark.parametrize("name", ["q4_k_m", "f16"])
    def test_the_shipped_demo_is_quantized_with_a_warning(
        self, demo_directory: Path, tmp_path: Path, name: str
    ) -> None:
        result = made(demo_directory, name, tmp_path / "out")
        assert result.weights.name == f"demo-{name}.gguf"
        assert "rounding stays" in result.warnings[0]
        assert "tokenizer.json" in files(result.path)
        header = read_header(result.weights)
        assert header.quantization == name.upper()
        assert header.metadata["tokenizer.chat_template"]
        tokenizer = Tokenizer.from_file(str(demo_directory / "tokenizer.json"))
        question = "<|im_start|>user\nWhat is the capital of Peru?<|im_end|>\n<|im_start|>assistant\n"
        answer = oracle.greedy(result.weights, tokenizer.encode(question).ids, 16)
        assert tokenizer.decode(answer) == "The capital of Peru is Lima."

    def test_f16_is_no_reason_for_a_warning(self, demo_source: Path, tmp_path: Path) -> None:
        first = made(demo_source, "f16", tmp_path / "FIRST.GGUF")
        assert made(first.path, "q8_0", tmp_path / "second.gguf").warnings == ()

    def test_a_k_quant_is_refused(self, demo_directory: Path, tmp_path: Path) -> None:
        first = made(demo_directory, "q4_k_m", tmp_path / "first.gguf")
        with pytest.raises(UnsupportedModel, match="quantized already"):
            made(first.path, "q8_0", tmp_path / "second.gguf")
        assert not (tmp_path / "second.gguf").exists()

    def test_a_damaged_one_is_refused_before_llama_cpp_sees_it(self, demo_directory: Path, tmp_path: Path) -> None:
        content = (demo_directory / "demo-q8_0.gguf").read_bytes()
        (tmp_path / "m.gguf").write_bytes(content[: len(content) // 2])
        with pytest.raises(BadModelFile, match="truncated"):
            made(tmp_path / "m.gguf", "q6_k", tmp_path / "out")

    def test_what_llama_cpp_cannot_do_is_said_with_its_own_words(self, demo_directory: Path, tmp_path: Path) -> None:
        content = (demo_directory / "demo-q8_0.gguf").read_bytes()
        (tmp_path / "m.gguf").write_bytes(content.replace(b"qwen3", b"qwen9"))
        with pytest.raises(Exception, match="qwen9") as failed:
            made(tmp_path / "m.gguf", "q6_k", tmp_path / "out")
        assert type(failed.value).__name__ == "RunnerError"
        assert not (tmp_path / "out").exists()
        assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize(
    ("dtype", "expected"), [(torch.bfloat16, "bf16"), (torch.float16, "f16"), (torch.float32, "f32")]
)
def test_the_file_between_keeps_every_weight(
    tmp_path: Path, demo_directory: Path, dtype: torch.dtype, expected: str
) -> None:
    random_model(tmp_path, demo_directory, "llama", dtype=dtype, num_hidden_layers=1)
    assert lossless_format(read_source(tmp_path)) is FORMATS[expected]


class TestExistingOutput:
    """Nothing is overwritten unasked, and never anything that a run like this did not make."""

    def test_it_needs_force(self, demo_source: Path, tmp_path: Path) -> None:
        first = made(demo_source, "q8_0", tmp_path / "out")
        with pytest.raises(UsageError, match="exists already"):
            made(demo_source, "f16", tmp_path / "out")
        assert read_header(first.weights).quantization == "Q8_0"
        made(demo_source, "f16", tmp_path / "out", force=True)
        assert {name for name in files(tmp_path / "out") if name.endswith(".gguf")} == {"demo-f16.gguf"}
        assert [name for name in files(tmp_path) if name.startswith("out")] == ["out"]
        (tmp_path / "out" / "model.safetensors").write_bytes(b"mine")  # no run makes weights of both kinds
        with pytest.raises(UsageError, match=r"such as 'model\.safetensors'"):
            made(demo_source, "f16", tmp_path / "out", force=True)

    def test_a_file_is_replaced_by_a_file(self, demo_source: Path, tmp_path: Path) -> None:
        (tmp_path / "m.gguf").write_bytes(b"old")
        with pytest.raises(UsageError):
            made(demo_source, "f16", tmp_path / "m.gguf")
        assert (tmp_path / "m.gguf").read_bytes() == b"old"
        made(demo_source, "f16", tmp_path / "m.gguf", force=True)
        assert read_header(tmp_path / "m.gguf").quantization == "F16"

    @pytest.mark.parametrize("force", [False, True])
    def test_a_directory_with_other_files_is_never_deleted(
        self, demo_source: Path, tmp_path: Path, force: bool
    ) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.txt").write_text("mine")
        with pytest.raises(UsageError):
            made(demo_source, "q8_0", tmp_path / "out", force=force)
        assert (tmp_path / "out" / "thesis.txt").read_text() == "mine"

    def test_a_partial_directory_with_other_files_is_never_deleted(self, demo_source: Path, tmp_path: Path) -> None:
        (tmp_path / "out.partial").mkdir()
        (tmp_path / "out.partial" / "thesis.txt").write_text("mine")
        with pytest.raises(UsageError, match=r"thesis\.txt"):
            made(demo_source, "q8_0", tmp_path / "out")
        assert (tmp_path / "out.partial" / "thesis.txt").read_text() == "mine"

    @pytest.mark.parametrize("output", ["demo", "demo/demo-q8_0.gguf", "link"])
    @pytest.mark.parametrize("source", ["demo", "demo/demo-q8_0.gguf", "other"])
    def test_the_source_itself_is_never_replaced(
        self, demo_directory: Path, tmp_path: Path, source: str, output: str
    ) -> None:
        """As a directory, as a file of it, by a link to it, and where a directory's files are links."""
        shutil.copytree(demo_directory, tmp_path / "demo")
        (tmp_path / "demo" / "README.md").unlink()
        (tmp_path / "link").symlink_to("demo")
        (tmp_path / "other").mkdir()
        for name in files(tmp_path / "demo"):
            (tmp_path / "other" / name).symlink_to(tmp_path / "demo" / name)
        before = (tmp_path / "demo" / "demo-q8_0.gguf").read_bytes()
        for form in ("q6_k", "q8_0"):
            with pytest.raises(UsageError, match="it would be replaced"):
                made(tmp_path / source, form, tmp_path / output, force=True)
        assert (tmp_path / "demo" / "demo-q8_0.gguf").read_bytes() == before

    def test_a_source_where_the_work_is_done_is_not_deleted(self, demo_directory: Path, tmp_path: Path) -> None:
        (tmp_path / "out.partial").mkdir()
        kept = Path(shutil.copy(demo_directory / "demo-q8_0.gguf", tmp_path / "out.partial"))
        with pytest.raises(UsageError, match="has what is read"):
            made(kept, "q4_0", tmp_path / "out")
        assert kept.exists()

    def test_a_circle_of_links_is_no_place_for_a_model(self, demo_directory: Path, tmp_path: Path) -> None:
        (tmp_path / "circle").symlink_to("circle")
        with pytest.raises(RunnerError, match="Too many levels of symbolic links"):
            made(demo_directory, "q4_0", tmp_path / "circle" / "out")

    def test_models_that_somebody_keeps_there_are_not_deleted(self, demo_source: Path, tmp_path: Path) -> None:
        (tmp_path / "models").mkdir()
        for name in ("Llama-3.1-8B-Q4_K_M.gguf", "demo-q4_0.gguf"):
            (tmp_path / "models" / name).write_bytes(b"mine")
        with pytest.raises(UsageError, match="such as 'Llama"):
            made(demo_source, "q4_0", tmp_path / "models", force=True)
        assert files(tmp_path / "models") == {"Llama-3.1-8B-Q4_K_M.gguf", "demo-q4_0.gguf"}


def replacing(directory: Path, name: str = "out", *, has_later: bool = False) -> Path:
    """What a kill in the middle of a replacement leaves; has_later: when the later model is in its place."""
    old = directory / f"{name}.old-a1_b2c3d"
    (old / "replaced").mkdir(parents=True)
    (old / "replaced" / "config.json").write_text("earlier")
    if has_later:
        (directory / name).mkdir()
        (directory / name / "config.json").write_text("later")
    return old


class TestReplacing:
    @pytest.mark.parametrize("failing", [1, 2])
    def test_the_earlier_model_comes_back_when_the_later_one_does_not_get_there(
        self, failing: int, demo_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made(demo_source, "q8_0", tmp_path / "out")
        before, rename, calls = files(tmp_path / "out"), os.rename, iter(range(1, 10))

        def stopped(source: Path, target: Path) -> None:
            if next(calls) == failing:
                raise KeyboardInterrupt
            rename(source, target)

        monkeypatch.setattr(os, "rename", stopped)
        with pytest.raises(KeyboardInterrupt):
            made(demo_source, "q4_0", tmp_path / "out", force=True)
        assert files(tmp_path) == {"out"}
        assert files(tmp_path / "out") == before

    def test_a_model_that_is_deleted_while_it_is_made_again_is_no_obstacle(
        self, demo_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made(demo_source, "q8_0", tmp_path / "out")
        place = WorkDirectory.place

        def delete_first(work: WorkDirectory) -> None:
            shutil.rmtree(tmp_path / "out")
            place(work)

        monkeypatch.setattr(WorkDirectory, "place", delete_first)
        made(demo_source, "q4_0", tmp_path / "out", force=True)
        assert files(tmp_path) == {"out"}

    def test_after_a_kill_the_earlier_model_is_back_in_its_place(self, demo_source: Path, tmp_path: Path) -> None:
        old = replacing(tmp_path)
        with pytest.raises(UsageError, match="exists already"):
            made(demo_source, "q8_0", tmp_path / "out")
        assert (tmp_path / "out" / "config.json").read_text() == "earlier"
        assert not old.exists()
        made(demo_source, "q8_0", tmp_path / "out", force=True)
        assert files(tmp_path) == {"out"}

    def test_after_a_kill_that_came_later_the_earlier_one_goes(self, demo_source: Path, tmp_path: Path) -> None:
        replacing(tmp_path, has_later=True)
        (tmp_path / "out.old-00000000").mkdir()  # the kill came before the first rename
        other = replacing(tmp_path, "out.old")
        with pytest.raises(UsageError, match="exists already"):
            made(demo_source, "q8_0", tmp_path / "out")
        assert (tmp_path / "out" / "config.json").read_text() == "later"
        assert files(tmp_path) == {"out", other.name}

    def test_a_name_too_long_to_set_the_earlier_one_aside_is_refused_before_the_work(self, tmp_path: Path) -> None:
        for letters in (121, 122):
            (tmp_path / ("\u00e9" * letters)).mkdir()  # two bytes each; .old- and eight characters follow
        longest = WorkDirectory(tmp_path / ("\u00e9" * 121))
        longest.check_target(force=True)
        with longest.opened():
            longest.write_manifest("{}")
            longest.place()
        assert files(longest.output) == {"runner.json"}
        with pytest.raises(UsageError, match="its name is too long") as caught:
            WorkDirectory(tmp_path / ("\u00e9" * 122)).check_target(force=True)
        assert "shorter name with -o" in caught.value.hint

    def test_what_others_call_like_that_is_not_touched(self, tmp_path: Path) -> None:
        mine = tmp_path / "out.old-20240101"
        mine.mkdir()
        (mine / "config.json").write_text("mine")
        assert olds_of(tmp_path / "out") == ()

    def test_a_run_that_replaces_it_now_is_not_disturbed(self, demo_source: Path, tmp_path: Path) -> None:
        with WorkDirectory(tmp_path / "out").opened():
            old = replacing(tmp_path)
            with pytest.raises(BusyError, match="Another process"):
                made(demo_source, "q8_0", tmp_path / "out", force=True)
        assert (old / "replaced" / "config.json").read_text() == "earlier"


def test_two_runs_for_one_output_do_not_meet(demo_source: Path, tmp_path: Path) -> None:
    other = WorkDirectory(tmp_path / "out")
    with other.opened(), pytest.raises(BusyError, match=r"Another process .*is making .*out") as caught:
        made(demo_source, "q8_0", tmp_path / "out", force=True)
    assert caught.value.hint == "Wait for it to end, or give another path with -o."
    made(demo_source, "q8_0", tmp_path / "out")


@pytest.mark.parametrize(("resumes", "force"), [(False, False), (True, True)])
def test_what_another_run_has_made_just_now_is_told_before_the_work(resumes: bool, force: bool, tmp_path: Path) -> None:
    first, second = (WorkDirectory(tmp_path / "out") for _ in range(2))
    second.check_target(force=force)
    with first.opened():
        first.place()
    with pytest.raises(UsageError, match=r"has just made .*out") as caught, second.opened(resumes=resumes):
        pass
    assert caught.value.hint == "Use that one, or give another path with -o."
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_run_that_is_done_leaves_the_next_ones_directory_alone(tmp_path: Path) -> None:
    first, second = (WorkDirectory(tmp_path / "out") for _ in range(2))
    with first.opened():
        first.place()
        second.check_target(force=True)
        with second.opened(resumes=True):
            (second.path / "journal.jsonl").touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.partial"]


def test_a_directory_that_its_maker_renamed_before_it_was_locked_is_not_taken_for_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, real = WorkDirectory(tmp_path / "out"), fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        work.path.rename(tmp_path / "made")
        work.path.mkdir()
        (work.path / "config.json").touch()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(BusyError), work.opened():
        pass
    assert files(work.path) == {"config.json"}


@pytest.mark.parametrize("is_gguf", [False, True])  # which llama.cpp makes another of
def test_a_limit_on_the_size_of_files_is_told_from_a_full_disk(
    is_gguf: bool, demo_source: Path, demo_directory: Path, tmp_path: Path
) -> None:
    source = demo_directory / "demo-q8_0.gguf" if is_gguf else demo_source
    with file_size_limit(4_000_000), pytest.raises(DoesNotFit, match=r"A file in .* may not become as large") as said:
        made(source, "f16", tmp_path / "m.gguf")
    assert "ulimit -f" in said.value.hint
    assert files(tmp_path) == set()


@pytest.mark.parametrize("is_gguf", [False, True])
def test_a_disk_that_is_full_in_the_middle_is_said_so(
    is_gguf: bool, demo_source: Path, demo_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = demo_directory / "demo-q8_0.gguf" if is_gguf else demo_source
    with small_disk(tmp_path / "disk", "128m") as disk:
        has_room = WorkDirectory.require_room

        def fill_after(work: WorkDirectory, needed_bytes: int) -> None:
            """Not while it is written: llama.cpp may be done with it before another process has filled the disk."""
            has_room(work, needed_bytes)
            fill(disk / "filler", spared=8_000_000)

        monkeypatch.setattr(WorkDirectory, "require_room", fill_after)
        with pytest.raises(DoesNotFit, match=r"The disk of .* is full") as said:
            made(source, "f16", disk / "m.gguf")
        assert "Free some space" in said.value.hint
        assert files(disk) == {"filler"}


def test_why_no_more_can_be_written_is_what_the_system_says(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(1000))
    assert refusal(path).errno == errno.ENOSPC
    path.write_bytes(bytes(1000))
    with file_size_limit(1000):
        assert refusal(path).errno == errno.EFBIG


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EDQUOT, "quota"), "is full"),
        (OSError("the checkpoint cannot be written: I/O error: No space left on device (os error 28)"), "is full"),
        (OSError("the checkpoint cannot be written: File too large (os error 27)"), "may not become as large"),
        (OSError(errno.EACCES, "no"), None),
        (OSError("something"), None),
    ],
)
def test_what_there_is_no_room_for_is_said_with_its_reason(error: OSError, said: str | None) -> None:
    found = no_room(error, Path("/out"), "3 of 4 are done", ": it goes on")
    assert (said is None) == (found is None)
    if found is not None and said is not None:
        assert f"/out {said}" in found.message
        assert found.message.endswith(": 3 of 4 are done.")
        assert found.hint.endswith("ive the same command again: it goes on.")


@pytest.mark.parametrize(
    ("error", "said"), [(OSError(errno.EIO, "broken", "weights"), "broken (weights)"), (OSError("odd"), "odd")]
)
def test_what_a_disk_refuses_is_told_with_its_file_and_nothing_is_left(
    error: OSError, said: str, tmp_path: Path
) -> None:
    with pytest.raises(RunnerError) as caught, WorkDirectory(tmp_path / "out").opened():
        raise error
    assert caught.value.message == f"Making {tmp_path / 'out'} failed: {said}."
    assert files(tmp_path) == set()


def test_too_little_disk_space_is_said_before_anything_is_written(tmp_path: Path, demo_directory: Path) -> None:
    """A sparse checkpoint, larger than what is free on this disk."""
    hidden, wide = 2**17, 2**20
    layers = shutil.disk_usage(tmp_path).free // (3 * hidden * wide * 2) + 2
    random_model(tmp_path, demo_directory, "llama", num_hidden_layers=1, hidden_size=64)
    change = {"hidden_size": hidden, "intermediate_size": wide, "num_hidden_layers": layers, "head_dim": 64}
    edit_json(tmp_path / "config.json", change)
    shapes = {"model.embed_tokens": [8192, hidden], "lm_head": [8192, hidden], "model.norm": [hidden]}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        shapes |= {prefix + name: [hidden] for name in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {prefix + f"self_attn.{name}_proj": [128, hidden] for name in "kv"}
        shapes |= {prefix + "self_attn.q_proj": [256, hidden], prefix + "self_attn.o_proj": [hidden, 256]}
        shapes |= {prefix + f"mlp.{name}_proj": [wide, hidden] for name in ("gate", "up")}
        shapes |= {prefix + "mlp.down_proj": [hidden, wide]}
    end, header = 0, {}
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name + ".weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    with pytest.raises(DoesNotFit, match="B are needed"):
        made(tmp_path, "f16", tmp_path / "made" / "out")
    assert files(tmp_path / "made") == set()


def run_quantize(*arguments: str) -> subprocess.Popen[bytes]:
    """A run that is never done: what it made gets no name, however late somebody ends it."""
    program = (
        "import os, sys, time; os.rename = lambda *_: time.sleep(3600)\n"
        "from runner.cli.app import main; sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, "quantize", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def wait_for_lock(directory: Path) -> None:
    """Until the last process that works in `directory` is gone."""
    deadline = time.monotonic() + 20
    while directory.exists() and time.monotonic() < deadline:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.05)
        finally:
            os.close(descriptor)


@pytest.mark.parametrize("weights", ["intermediate.gguf", "demo-q4_k_m.gguf"])
def test_a_killed_run_leaves_nothing_that_looks_whole_and_the_next_one_succeeds(
    demo_source: Path, tmp_path: Path, weights: str
) -> None:
    output = tmp_path / "out"
    partial = tmp_path / "out.partial"
    process = run_quantize(str(demo_source), "-t", "q4_k_m", "-o", str(output))
    wait_for((partial / weights).exists)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.communicate()
    assert not output.exists()
    wait_for_lock(partial)
    result = made(demo_source, "q4_k_m", output)
    assert not partial.exists()
    whole = made(demo_source, "q4_k_m", tmp_path / "whole")
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (result.weights, whole.weights)}
    assert len(digests) == 1


def test_an_interrupt_ends_the_quantizer_and_cleans_up(demo_source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    process = run_quantize(str(demo_source), "-t", "q4_k_m", "-o", str(output))
    wait_for((tmp_path / "out.partial" / "demo-q4_k_m.gguf").exists)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not output.exists()
    assert not (tmp_path / "out.partial").exists()


class TestCommandLine:
    """stdout is the result, stderr the story."""

    def test_the_path_is_the_only_data(
        self, demo_source: Path, runner_home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["quantize", str(demo_source), "--format", "q8_0"]) == 0
        out, err = capsys.readouterr()
        made_at = runner_home / "data" / "models" / "demo-q8_0"
        assert out == f"{made_at}\n"
        assert (made_at / "demo-q8_0.gguf").is_file()
        assert "converting" in err
        assert "8.51 bits a weight" in err

    def test_json(self, demo_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["quantize", str(demo_source), "-t", "f16", "-o", str(tmp_path / "out"), "--json"]) == 0
        out, err = capsys.readouterr()
        value = json.loads(out)
        assert value["schema"] == "runner.quantize/1"
        assert value["format"] == "F16"
        assert value["num_parameters"] == 18_357_504
        assert value["size_bytes"] == Path(value["weights"]).stat().st_size
        assert all(json.loads(line)["schema"] == "runner.progress/1" for line in err.splitlines())

    def test_exit_codes_say_what_went_wrong(
        self, demo_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "there").mkdir()
        assert main(["quantize", str(demo_source), "-t", "q3"]) == 2
        assert main(["quantize", str(demo_source), "-o", str(tmp_path / "there")]) == 2
        assert main(["quantize", str(tmp_path / "nothing")]) == 2
        assert main(["quantize", str(tmp_path / "there")]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("error: ") == 4
        assert "Did you mean" in err or "Known names" in err


def test_a_name_comes_from_the_repository_the_directory_or_the_file() -> None:
    cases = {
        "/hub/models--Qwen--Qwen3-0.6B/snapshots/0123abcd": "Qwen3-0.6B",
        "/models/SmolLM2-135M": "SmolLM2-135M",
        "/models/demo-q8_0.gguf": "demo",
        "/models/big-F16-00001-of-00003.gguf": "big",
        "/models/demo-f16": "demo",
    }
    assert {path: model_name(Path(path)) for path in cases} == cases


def test_an_unknown_format_names_the_nearest() -> None:
    with pytest.raises(UsageError) as unknown:
        format_of("q4km")
    assert "q4_k_m" in unknown.value.hint
    assert format_of("Q4_K_M") is FORMATS["q4_k_m"]


def test_a_pickled_source_is_refused(tmp_path: Path, demo_source: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        shutil.copyfile(demo_source / name, tmp_path / name)
    torch.save({"w": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="pickled"):
        made(tmp_path, "q8_0", tmp_path / "out")


@pytest.mark.parametrize("name", ["notes.txt", "model.safetensors"])
@pytest.mark.parametrize("weight_format", ["mq4", "q8_0"])
def test_a_file_that_is_no_source_is_a_wrong_word_and_what_would_be_one_is_said(
    tmp_path: Path, name: str, weight_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(b"no model")
    assert main(["quantize", str(tmp_path / name), "-t", weight_format, "-o", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert name in err
    assert "a hipfire file" in err


def test_a_mix_of_types_in_one_checkpoint_keeps_every_value(tmp_path: Path, demo_directory: Path) -> None:
    model = random_model(tmp_path, demo_directory, "llama", num_hidden_layers=1, tie_word_embeddings=True)
    tensors = {name: value.detach().clone() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].bfloat16()
    save_file(tensors, tmp_path / "model.safetensors")
    result = made(tmp_path, "f32", tmp_path / "out.gguf")
    header = read_header(result.path)
    stored = header.tensor("token_embd.weight")
    assert stored is not None
    assert np.array_equal(header.read_f32(stored), tensors["model.embed_tokens.weight"].float().numpy())


def test_what_is_made_has_the_name_of_its_source_and_format_without_what_no_directory_should_have() -> None:
    cases = {"/m/Qwen3-8B-F16.gguf": "Qwen3-8B-mq4", "/m/Mein Modell:é": "MeinModellé-mq4", "/m/.hidden": "hidden-mq4"}
    assert {path: made_name(Path(path), "mq4") for path in cases} == cases
