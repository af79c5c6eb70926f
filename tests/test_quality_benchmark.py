"""benchmarks/quality.py as anybody runs it, on a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.quant.hf_directories import random_model

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "quality.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True)


@pytest.mark.slow
def test_the_table_is_made_in_one_command_and_nothing_is_made_twice(tmp_path: Path, demo_directory: Path) -> None:
    random_model(tmp_path / "tiny", demo_directory, "qwen3", dtype=torch.bfloat16)
    text = tmp_path / "story.txt"
    text.write_text("The old house by the river had been empty for years. | One night a light was seen.\n" * 30)
    work, out = tmp_path / "work", tmp_path / "out"
    inputs = ["--model", str(tmp_path / "tiny"), "--text", str(text), "--work", str(work), "-o", str(out)]
    arguments = [*inputs, "--window", "64", "--windows", "6", "--weights-alone", "--formats", "Q8_0"]
    first = run(*arguments)
    assert first.returncode == 0, first.stderr + first.stdout
    data = json.loads((out / "quality.json").read_text())
    (row,) = data["rows"]
    assert row["report"]["results"][0]["n_windows"] == 6
    assert 0 < row["weights_alone"]["results"][0]["against"]["mean_kld"]["value"] < 0.1
    assert 1e-6 < row["weight_error"] < 1e-4
    assert str(tmp_path) not in (out / "quality.json").read_text()
    page = (out / "QUALITY.md").read_text()
    assert "| Q8_0 | llamacpp | 8." in page
    assert "## Synthetic matrices" in page
    for name in ("quality.svg", "quality.png", "weight_error.svg", "weight_error.png"):
        assert (out / name).stat().st_size > 5000
    times = {path: path.stat().st_mtime_ns for path in work.iterdir()}
    again = run(*arguments)
    assert again.stdout == first.stdout
    assert {path: path.stat().st_mtime_ns for path in work.iterdir()} == times
