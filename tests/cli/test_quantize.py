"""`runner quantize` as a user runs it: a path, a name, and what it says of a wrong one."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from runner.cli.app import main
from runner.paths import user_paths


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


def test_a_directory_without_a_model_is_refused_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", str(tmp_path)]) == 2
    assert f"{tmp_path} is not the directory of a model" in capsys.readouterr().err


def test_json_says_what_was_made(tmp_path: Path, demo_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = str(demo_directory / "demo-q8_0.gguf"), str(tmp_path / "out.gguf")
    assert main(["quantize", source, "--format", "q4_0", "-o", output, "--json", "-q"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["schema"] == "runner.quantize/1"
    assert result["size_bytes"] == Path(output).stat().st_size
    assert 4.5 <= result["bpw"] < 6


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["dmeo"], 2, "demo"),
        (["no/such/directory/at/all"], 2, "There is no file or directory"),
        (["demo", "--format", "q4_k_x"], 2, "q4_k_m"),
        (["qwen3-0.6b", "--offline"], 3, "--offline"),
    ],
)
def test_wrong_arguments_say_what_is_right(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", *arguments]) == code
    assert words in capsys.readouterr().err
