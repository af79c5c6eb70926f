"""`runner draft` as a user runs it: a head is trained and shown; what is wrong is said with the way out."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.backends.native.heads.eagle3_files import load_eagle3
from runner.cli.app import main
from runner.paths import user_paths
from tests.draft_training.draft_models import tiny_target

SMALL = ["--tokens", "400", "--steps", "3", "--depth", "2", "--draft-vocab", "100", "-t", "1", "--offline"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "mine.txt"
    path.write_text("\n".join(f"say {number}" for number in range(30)))
    return path


def train(model: Path, questions: Path, *more: str) -> int:
    return main(["draft", "train", str(model), "--prompts", str(questions), *SMALL, *more])


def progress(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_a_head_is_trained_and_shown(model: Path, questions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(model, questions) == 0
    out = capsys.readouterr()
    path = user_paths().drafts / "tiny-normed"
    assert out.out == f"{path}\n"  # what a script reads
    assert "as trained" in out.err
    assert f"--backend native --draft {path}" in out.err
    assert "loss" in out.err
    head = load_eagle3(path)
    assert (head.config.norm_output, head.config.draft_vocab_size) == (True, 100)
    assert main(["draft", "show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "normed" in shown
    assert "mine.txt" in shown
    assert main(["draft", "show", "tiny-normed", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["schema"] == "runner.draft/1"
    assert (plain["settings"]["variant"], plain["steps"]) == ("normed", 3)
    assert train(model, questions) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_flipped_bit_in_any_file_of_a_head_is_found(
    model: Path, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(model, questions, "-q") == 0
    head = user_paths().drafts / "tiny-normed"
    assert main(["verify", "tiny-normed"]) == 0
    assert "Checked 4 files" in capsys.readouterr().err
    for path in sorted(head.iterdir()):
        sound = path.read_bytes()
        path.write_bytes(sound[:-9] + bytes([sound[-9] ^ 1]) + sound[-8:])
        for asked in ([], ["tiny-normed"], [str(head)]):
            assert main(["verify", *asked]) == 5
            out, err = capsys.readouterr()
            assert f"{path.name}: {'unreadable' if path.name == 'runner.json' else 'wrong contents'}" in out
            assert "runner draft train MODEL --force" in err
        path.write_bytes(sound)
    copied = shutil.copytree(head, tmp_path / "copied")
    assert main(["verify", "tiny-normed", str(copied)]) == 0
    assert "Checked 8 files" in capsys.readouterr().err
    (copied / "corpus.jsonl").unlink()
    assert main(["verify", str(copied)]) == 5
    assert "corpus.jsonl: missing" in capsys.readouterr().out
    (head / "runner.json").unlink()  # as heads of earlier versions
    assert main(["verify", "tiny-normed"]) == 0
    assert "not checked" in capsys.readouterr().out
    assert train(model, questions, "-q", "--force") == 0
    assert main(["verify", "tiny-normed"]) == 0


def test_both_variants_on_one_text_as_json(
    model: Path, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert train(model, questions, "--variant", "eagle3", "-o", str(first), "--json") == 0
    out = capsys.readouterr()
    one = json.loads(out.out)
    lines = progress(out.err)
    assert {"loading", "writing text", "training", "measuring"} <= {line["stage"] for line in lines}
    steps = [line for line in lines if line["stage"] == "training"]
    assert set(steps[-1]["figures"]) == {"loss", "acceptance_length"}
    assert (steps[-1]["done"], steps[-1]["total"], steps[-1]["unit"]) == (3, 3, "steps")
    assert train(model, questions, "--corpus", str(first), "-o", str(second), "--json", "-q") == 0
    two = json.loads(capsys.readouterr().out)
    assert one["text"] == two["text"]
    assert (one["settings"]["variant"], two["settings"]["variant"]) == ("eagle3", "normed")
    assert len(two["measured"][0]["accepted"]) == 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--variant", "eagle9"], "--variant is 'eagle9'"),
        (["--time-limit", "soon"], "--time-limit is 'soon'"),
        (["--time-limit", "0m"], "--time-limit is '0m'"),
        (["--depth", "99"], "--depth is 99"),
        (["--prompts", "/nowhere.txt"], "/nowhere.txt cannot be read"),
        (["--corpus", "/nowhere"], "/nowhere/corpus.jsonl is no text"),
        (["-o", "head.gguf"], "would be one file"),
    ],
)
def test_what_is_wrong_is_said_with_the_way_out(
    model: Path, questions: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert train(model, questions, *more) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "hint: " in err


def test_a_directory_without_a_report_is_no_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draft", "show", str(tmp_path)]) == 2
    assert "no training.json" in capsys.readouterr().err


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(
    model: Path, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "head"
    command = [sys.executable, "-m", "runner", "draft", "train", str(model), "--prompts", str(questions), *SMALL]
    command += ["--steps", "100000", "-o", str(output), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ) as child:
        assert child.stderr is not None
        said = []
        for line in child.stderr:
            said.append(line)
            if '"training"' in line:
                child.send_signal(signal.SIGINT)
                break
        said += child.stderr.readlines()
        assert child.wait(60) == 130
    assert f"kept in {output}.partial" in said[-1]
    assert (Path(f"{output}.partial") / "checkpoint.safetensors").is_file()
    assert main([*command[3:], "--time-limit", "3s"]) == 0
    out = capsys.readouterr()
    assert "Going on after step" in out.err
    assert json.loads(out.out)["ended"] == "time limit"
