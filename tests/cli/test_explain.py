"""`runner explain` as a user runs it: the demo, a model that is not here, a GPU that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.backends import llamacpp
from runner.cli.app import main
from runner.types import Device

GPU = Device(kind="cuda", index=0, name="Big GPU", total_bytes=24 * 2**30, free_bytes=20 * 2**30)
RAM = Device(kind="cpu", index=0, name="RAM", total_bytes=32 * 2**30, free_bytes=16 * 2**30)


def explain(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, str], str]:
    """The rows by their names, and stderr."""
    assert main(["explain", *arguments]) == 0
    out, err = capsys.readouterr()
    return dict(line.split("  ", 1) for line in out.splitlines()), err


def test_the_demo_runs_on_llama_cpp_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = explain(capsys, "demo", "-c", "1024")
    assert "llamacpp: the model is a GGUF file" in rows["backend"]
    assert rows["context"].strip() == "1024 tokens"
    assert rows["KV cache"].strip() == "6.0 MiB"
    assert "it fits" in rows["in all"]


def test_native_holds_the_weights_wider(capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = explain(capsys, "demo", "--backend", "native", "-ngl", "0")
    assert rows["weights"].strip() == "70.0 MiB"
    assert "it was asked for" in rows["backend"]


def test_json_names_the_choice_and_the_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "demo", "-c", "60000000", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == "runner.explain/1"
    assert value["choice"]["name"] == "llamacpp"
    assert value["fits"] is False


def test_the_fake_model_and_a_script_have_an_explanation_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "script" in explain(capsys, "fake")[0]["backend"]
    path = tmp_path / "a.script.json"
    path.write_text('{"replies": ["x"]}')
    assert "a.script.json" in explain(capsys, str(path))[0]["files"]


def test_a_model_that_is_not_here_is_not_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "qwen3-8b"]) == 2
    err = capsys.readouterr().err
    assert "not on this machine" in err
    assert "runner show qwen3-8b" in err


@pytest.mark.parametrize("has_offload", [True, False])
def test_a_gpu_counts_only_when_the_wheel_can_use_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, has_offload: bool
) -> None:
    probe = llamacpp.Probe(version="0.0.0", gpu_offload=has_offload, error=None)
    monkeypatch.setattr("runner.engine.probe", lambda: probe)
    monkeypatch.setattr("runner.machine.devices", lambda: (GPU, RAM))
    rows, err = explain(capsys, "demo")
    assert rows["GPU layers"].strip() == ("6" if has_offload else "0")
    assert ("Big GPU" in rows["device"]) is has_offload
    assert ("GGML_CUDA=on" in err) is not has_offload
