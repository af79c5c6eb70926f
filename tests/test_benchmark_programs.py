"""The benchmarks' programs as anybody runs them, on models so small that they end in seconds on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import quick_interpreter

# Each is many programs in Triton's interpreter: a minute on two cores, and five where others are at work there.
pytestmark = pytest.mark.timeout(900)

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One thread: the programs' threads spin, and tests run side by side."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RUNNER_N_THREADS": "1"}
    command = [sys.executable, quick_interpreter.__file__, str(BENCHMARKS / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_models_are_measured_beside_llama_cpp_python(tmp_path: Path) -> None:
    sizes = ["--prompts", "24", "--messages", "18", "--depths", "0", "20", "--tokens", "4", "-r", "1"]
    out = tmp_path / "rows.jsonl"
    places = ["--json", str(out), "--work", str(tmp_path), "--commit", "abc"]
    done = run("models.py", "--shape", "demo-moe", *sizes, "--wheel", *places)
    assert done.returncode == 0, done.stderr
    doing = [line.partition(" demo-moe: ")[2] for line in done.stderr.splitlines()]
    assert doing == ["making mq4", "measuring mq4", "making and measuring q4_k_m", "measuring mq4 again"], done.stderr
    rows = {(row["engine"], row["test"]): row for row in rows_of(out)}
    both = ("runner mq4", "llama-cpp-python q4_k_m")
    for engine in both:
        assert {"tg4", "tg4 @ d20", "pp24", "pp18 @ d20"} <= {test for name, test in rows if name == engine}
        assert rows[engine, "tg4"]["median"] > 0
    assert len(rows["runner mq4", "tg4"]["samples"]) == 2  # a pass before the peer and one after
    assert rows["runner mq4", "tg4"]["is_repeatable"]
    assert rows["runner mq4", "t(16)"]["unit"] == "ms"
    assert rows["runner mq4", "tg4"]["origin"]["commit"] == "abc"
    assert "| ratio |" in done.stdout
    assert not list(tmp_path.glob("runner-benchmark-*"))


def test_loading_is_timed_stage_by_stage_and_the_made_model_stays(tmp_path: Path) -> None:
    out, kept = tmp_path / "rows.jsonl", tmp_path / "made"
    arguments = [
        "--make",
        "demo-moe",
        "--keep",
        str(kept),
        "--ctx-size",
        "64",
        "--repeats",
        "1",
        "--prompts",
        "20",
        "--ready",
    ]
    done = run("load_time.py", *arguments, "--json", str(out))
    assert done.returncode == 0, done.stderr
    empty, warm, ready = rows_of(out)
    assert [(row["cache"], row["n_prompt"]) for row in (empty, warm, ready)] == [
        ("empty", 20), ("warm", 20), ("ready", 20)
    ]  # fmt: skip
    assert all(seconds >= 0 for seconds in warm["stages_s"].values())
    assert warm["stages_s"]["imports"] > 0.1
    command = [sys.executable, "-c", "import sys; from runner.cli.app import main; sys.exit(main())"]
    answer = subprocess.run([*command, "run", str(kept), "hi", "-n", "2"], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


def test_products_are_right_before_they_are_timed(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    done = run("matmul.py", "--shape", "tiny", "--rows", "1", "--matrix", "o", "--json", str(out))
    assert done.returncode == 0, done.stderr
    ours, library = rows_of(out)
    assert (ours["way"], library["way"]) == ("mq4", "cuBLAS bf16")
    assert 0 < ours["error"] < 0.02
    assert ours["us"] > ours["floor_us"] > 0


def test_scripted_drafts_are_verified_by_the_native_path_and_change_no_text(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    sizes = ["--shape", "demo-moe", "--layers", "1", "--depth", "4", "--tokens", "6", "-r", "1"]
    done = run("speculation_gpu.py", *sizes, "--json", str(out), "--work", str(tmp_path), "--commit", "abc")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = rows_of(out)
    steps = [row for row in rows if row["test"].startswith("t(")]
    assert [row["test"] for row in steps] == [f"t({n})" for n in range(1, 17)]
    assert {"draft of 3", "draft of 3, through the host"} <= {row["test"] for row in rows if row["unit"] == "ms"}
    ways = {(row["sampling"], row["test"]): row for row in rows if row["unit"] == "tok/s"}
    assert all(row["is_equal"] and row["median"] > 0 for row in ways.values())
    assert {("greedy", "plain"), ("sampled", "in vain"), ("greedy", "model: 5, some right")} <= ways.keys()
    assert {ways[sampling, "copy: 3"]["acceptance_rate"] for sampling in ("greedy", "sampled")} == {1}


def test_what_cannot_be_measured_is_refused_with_the_reason(tmp_path: Path) -> None:
    for arguments, reason in (
        (("load_time.py", str(tmp_path)), "no packed model"),
        (("load_time.py",), "give a packed model's directory"),
        (("grammar.py", str(tmp_path / "none")), "there is no"),
        (("random_gguf.py", "demo", "q4_0", str(tmp_path / "none" / "made.gguf")), "cannot be written"),
        (("speculation.py", "texts", "--shape", "nope"), "invalid choice: 'nope'"),
        (("sampling.py", "--vocab", "0"), "it is 0, and must be 1 or more"),
    ):
        done = run(*arguments)
        assert done.returncode == 2
        assert reason in done.stderr


def test_a_grammar_is_timed_on_the_demos_vocabulary() -> None:
    done = run("grammar.py")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.strip().startswith("8192")]
    assert [row[1] for row in rows] == ["schema", "json.gbnf"]
    assert all(float(row[2]) > 0 for row in rows)
