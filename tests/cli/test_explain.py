"""`runner explain` as a user runs it: the demo, scripts, models that cannot be had or run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.cli.app import main


def explain(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, str], str]:
    """The rows by their names, and stderr."""
    assert main(["explain", *arguments]) == 0
    out, err = capsys.readouterr()
    return dict(line.split("  ", 1) for line in out.splitlines()), err


def test_the_demo_runs_on_llama_cpp_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = explain(capsys, "demo", "-c", "1024")
    assert "llamacpp: the model is a GGUF file" in rows["backend"]
    assert rows["context"].strip() == "1024 tokens (trained for 2048)"
    assert rows["KV cache"].strip() == "6.0 MiB in f16"
    assert "it fits" in rows["in all"]


def test_native_holds_the_weights_wider(capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = explain(capsys, "demo", "--backend", "native", "-ngl", "0")
    assert rows["weights"].strip().startswith("70.0 MiB")
    assert "it was asked for" in rows["backend"]


def test_json_names_the_choice_and_the_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "demo", "-c", "60000000", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == "runner.explain/1"
    assert value["backing"]["name"] == "llamacpp"
    assert value["fits"] is False


def test_the_fake_model_and_a_script_have_an_explanation_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "script" in explain(capsys, "fake")[0]["backend"]
    path = tmp_path / "a.script.json"
    path.write_text('{"replies": ["x"]}')
    assert "a.script.json" in explain(capsys, str(path))[0]["files"]


def test_a_model_that_cannot_be_asked_for_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "qwen3-8b", "--offline"]) == 3
    assert "--offline forbids asking the hub" in capsys.readouterr().err
    assert main(["explain", "qwen3-8b"]) == 3  # no hub answers there
    assert "no connection" in capsys.readouterr().err


def test_a_backend_that_cannot_run_it_is_an_answer_too(capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = explain(capsys, "demo", "--backend", "native", "--kv-type", "q8_0")
    assert rows["backend"].strip().startswith("none: ")
