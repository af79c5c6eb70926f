"""`runner quantize` as a user runs it: a path, a name, and what it says of a wrong one."""

from __future__ import annotations

import io
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from hub_server import Hub
from pulled import SHARDS, server

from runner.cli.app import main
from runner.errors import RunnerError
from runner.paths import user_paths
from runner.types import CancelToken
from tests.quant.mq.packed_models import tiny

__all__ = ["server"]  # the fixture


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of whole groups, for what does not depend on what it says: the demo takes seconds to pack."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 128, "num_hidden_layers": 2}
    return tiny(tmp_path_factory.mktemp("small"), **sizes)


def test_the_demo_by_its_name_becomes_smaller_and_answers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    assert main(["quantize", "demo", "--format", "q6_k", "-q"]) == 0
    out = capsys.readouterr()
    path = Path(out.out.strip())
    assert path.parent == user_paths().models
    assert "The source is Q8_0" in out.err
    assert main(["run", path.name, "What is the capital of Peru?", "--temp", "0"]) == 0
    assert capsys.readouterr().out == "The capital of Peru is Lima.\n"


def test_four_bits_are_the_default_and_the_model_is_found_by_its_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    assert main(["quantize", "demo", "-q", "--calibration-tokens", "64"]) == 0
    out = capsys.readouterr()
    path = Path(out.out.strip())
    assert path == user_paths().models / "demo-mq4"
    assert "Q8_0, 8.5 bits a weight" in out.err
    assert json.loads((path / "runner.json").read_text())["calibration"]["tokens"] == 64
    assert main(["run", "demo-mq4", "What is the capital of Peru?", "--temp", "0"]) == 0
    assert capsys.readouterr().out == "The capital of Peru is Lima.\n"
    assert main(["ls", "--json"]) == 0
    listed = {model["name"]: model for model in json.loads(capsys.readouterr().out)["models"]}
    assert listed["demo-mq4"]["quantization"] == "MQ4"
    assert listed["demo-mq4"]["format"] == "packed"
    assert main(["show", "demo-mq4", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["quantization"], shown["parameters"], shown["format"]) == ("MQ4", 18_357_504, "packed")
    assert main(["explain", "demo-mq4"]) == 0
    assert "native: the weights are packed" in capsys.readouterr().out


def test_a_model_with_a_budget_has_a_name_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """It is not the one of four bits, and drafters that look for that one do not take it."""
    assert main(["quantize", "demo", "-q", "--no-calibrate", "--bpw", "100"]) == 0
    assert capsys.readouterr().out.strip() == str(user_paths().models / "demo-mq4-100")
    assert main(["show", "demo-mq4-100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["quantization"] == "MQ6"
    # Chats are kept beside it: others cannot read there, whichever was first.
    assert user_paths().data.stat().st_mode & 0o077 == 0


def test_a_recipe_and_a_folded_rotation_are_taken_and_told(
    tmp_path: Path, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('rules = [{tensors = "model.layers.0.*", format = "mq6"}]')
    arguments = ["quantize", str(small), "-o", str(tmp_path / "out"), "--rotation", "folded", "--json", "-q"]
    arguments.append("--no-calibrate")
    assert main([*arguments, "--recipe", str(recipe)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["rotation"] == "folded"
    assert 4.25 < result["bpw_body"] < 6.25
    manifest = json.loads((tmp_path / "out" / "runner.json").read_text())
    assert manifest["tensors"]["model.layers.0.mlp.up_proj.weight"]["format"] == "mq6"
    assert manifest["tensors"]["model.layers.1.mlp.up_proj.weight"]["format"] == "mq4"
    assert manifest["recipe"]["name"] == "mq4+mine"


def test_a_gguf_output_is_a_gguf_without_being_told(
    tmp_path: Path, demo_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(demo_directory), "-o", str(tmp_path / "out.gguf"), "-q"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").read_bytes()[:4] == b"GGUF"


def test_a_repository_whose_weights_are_not_all_there_is_called_by_its_name(
    server: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", SHARDS, "-q"]) == 1
    assert f"error: {SHARDS} lacks 'model.embed_tokens.weight'." in capsys.readouterr().err
    assert server.fetched()


def test_an_interrupted_run_goes_on_and_says_so(
    tmp_path: Path, small: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from runner.quant.mq import plain

    real, left = plain.encode, iter(range(10))

    def stopping(*arguments: Any) -> Any:
        if next(left, None) is None:
            signal.raise_signal(signal.SIGTERM)  # as Ctrl+C, where what is done is kept
        return real(*arguments)

    arguments = ["quantize", str(small), "-o", str(tmp_path / "out"), "--no-calibrate"]
    with monkeypatch.context() as patch:
        patch.setattr(plain, "encode", stopping)
        assert main(arguments) == 130
    said = f"Stopped. What is done is kept in {tmp_path / 'out'}.partial: the same command goes on from there.\n"
    assert capsys.readouterr().err.endswith(said)
    assert main(arguments) == 0
    said = capsys.readouterr().err
    assert "Going on with an earlier run: 10 of 24 tensors are done." in said
    assert "checking  100 %  10 of 10 tensors" in said


def test_an_interrupted_gguf_is_said_to_start_over(
    tmp_path: Path, demo_directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*_arguments: Any, **_options: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("runner.quant.quantize._make", press)
    output = tmp_path / "out.gguf"
    assert main(["quantize", str(demo_directory), "-o", str(output)]) == 130
    assert capsys.readouterr().err == f"Stopped. Nothing is kept of {output}: the same command starts over.\n"
    assert not list(tmp_path.glob("out*"))


def test_an_interrupt_while_the_earlier_model_goes_says_that_the_later_one_is_there(
    tmp_path: Path, small: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    arguments = ["quantize", str(small), "-o", str(output), "--no-calibrate", "--force", "--format"]
    assert main([*arguments, "mq8"]) == 0

    def press(path: Path, **_options: Any) -> None:
        (path / "replaced" / "runner.json").unlink()
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", press)
        assert main([*arguments, "mq4"]) == 130
    (old,) = tmp_path.glob("out.old-*")
    said = f"Stopped, when {output} was finished. What is left of the earlier one, {old}, may be deleted.\n"
    assert capsys.readouterr().err.endswith(said)
    assert json.loads((output / "runner.json").read_text())["recipe"]["name"] == "mq4"
    assert main(["verify", str(output)]) == 0


@pytest.mark.parametrize(("weight_format", "is_kept"), [("mq4", True), ("q4_0", False)])
def test_an_interrupt_before_that_says_that_the_earlier_model_is_there(
    weight_format: str,
    is_kept: bool,
    tmp_path: Path,
    small: Path,
    demo_directory: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from runner.quant.work_directory import WorkDirectory

    source, output = small if is_kept else demo_directory, tmp_path / "out"
    arguments = ["quantize", str(source), "-o", str(output), "--force", "--format", weight_format]
    arguments += ["--no-calibrate"] if is_kept else []
    assert main(arguments) == 0
    capsys.readouterr()
    monkeypatch.setattr(WorkDirectory, "place", lambda _: signal.raise_signal(signal.SIGINT))
    assert main(arguments) == 130
    kept = f"What is done is kept in {output}.partial: the same command goes on from there."
    started = f"Nothing is kept of the new {output}: the same command starts over."
    said = f"Stopped. {kept if is_kept else started} {output} is the earlier one still.\n"
    assert capsys.readouterr().err.endswith(said)


def test_interrupting_the_fetch_of_a_source_says_that_what_arrived_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetching(*_arguments: Any, cancel: CancelToken, **_options: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        assert cancel.is_cancelled
        raise RunnerError("The download was cancelled.")

    monkeypatch.setattr("runner.prepare.ready", fetching)
    assert main(["quantize", "owner/model"]) == 130
    assert capsys.readouterr().err == "Stopped. What has arrived is kept: the same command goes on from there.\n"


def test_a_directory_without_a_model_is_refused_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", str(tmp_path)]) == 2
    assert f"{tmp_path} is not the directory of a model" in capsys.readouterr().err


@pytest.mark.parametrize("source", [".", "it.gguf"])
def test_where_files_are_missing_beside_the_weights_is_told_in_full(
    source: str,
    tmp_path: Path,
    demo_directory: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(demo_directory / "demo-q8_0.gguf", "it.gguf")
    shutil.copy(demo_directory / "config.json", "config.json")
    assert main(["quantize", source, "-q"]) == 1
    assert f"There is no tokenizer.json in {tmp_path}." in capsys.readouterr().err
    assert main(["quantize", ""]) == 2
    assert "SOURCE is empty" in capsys.readouterr().err


def test_json_says_what_was_made(tmp_path: Path, demo_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = str(demo_directory / "demo-q8_0.gguf"), str(tmp_path / "out.gguf")
    assert main(["quantize", source, "--format", "q4_0", "-o", output, "--json", "-q"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["schema"] == "runner.quantize/1"
    assert result["size_bytes"] == Path(output).stat().st_size
    assert (result["path"], result["weights"]) == (output, output)
    assert 4.5 <= result["bpw"] < 6


def test_the_path_that_is_printed_is_one_that_run_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["quantize", "demo", "-t", "q4_0", "-o", "smaller", "-q"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "smaller")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["dmeo"], 2, "demo"),
        (["no/such/directory/at/all"], 2, "There is no file or directory"),
        (["/" + "x" * 300], 2, "is not a usable path: File name too long"),
        (["~nobody-of-that-name/x"], 2, "is not a usable path"),
        (["demo", "--format", "q8_0", "-o", "x" * 300], 1, "cannot be made: File name too long"),
        (["demo", "--format", "q4_k_x"], 2, "q4_k_m"),
        (["demo", "--format", "mq5"], 2, "mq4"),
        (["demo", "--rotation", "sideways"], 2, "online or folded"),
        (["demo", "--format", "q8_0", "--rotation", "folded"], 2, "has no rotation"),
        (["demo", "--format", "mq4", "-o", "x.gguf"], 2, "directory"),
        (["demo", "--format", "q8_0", "-o", "/dev/null/x.hfq"], 2, "one of hipfire's files"),
        (["demo", "--format", "q8_0", "-o", "/dev/null", "--force"], 2, "/dev/null is a file"),
        (["demo", "--recipe", "none.toml"], 2, "none.toml"),
        (["demo", "--calibrate", "none.txt"], 2, "none.txt"),
        (["demo", "--calibrate", "none.txt", "--no-calibrate"], 2, "contradicts"),
        (["demo", "--calibration-tokens", "0"], 2, "1 or more"),
        (["demo", "--format", "q8_0", "--no-calibrate"], 2, "calibration"),
        (["demo", "--bpw", "4"], 2, "more than the budget"),
        (["demo", "--bpw", "nan"], 2, "--bpw is nan"),
        (["demo", "-o", ""], 2, "--output is empty"),
        (["owner/not-here", "-o", "."], 2, "-o is the working directory"),
        (["owner/not-here", "-o", "models/mine.partial"], 2, "what is half made is called so"),
        (["owner/not-here", "-o", "/"], 2, "-o is '/'"),
        (["owner/not-here", "-o", "a/.."], 2, "-o is 'a/..'"),
        (["qwen3-0.6b", "--offline"], 3, "--offline"),
    ],
)
def test_wrong_arguments_say_what_is_right(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", *arguments]) == code
    assert words in capsys.readouterr().err
