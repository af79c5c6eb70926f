"""`runner eval` as a user runs it."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import has_ended, wait_for

from runner.cli.app import main
from runner.evaluation.process import evaluate_apart
from runner.evaluation.report import Measuring
from runner.paths import user_paths

RUNNER = [sys.executable, "-c", "import sys; from runner.cli.app import main; sys.exit(main())"]
STORY = "The old house by the river had been empty for years. One night a light was seen in it. " * 60


@pytest.fixture
def story(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    path.write_text(STORY, encoding="utf-8")
    return path


def test_figures_come_with_intervals(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["eval", "demo", "--against", "demo", "--text", str(story), "--window", "64", "--windows", "6"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    rows = {line[:29].strip(): line[29:].split() for line in out.splitlines()}
    assert rows["mean KL divergence"] == ["0.000000", "0.000000", "..", "0.000000"]
    assert rows["same likeliest token"][:2] == ["100.00", "%"]
    value, low, _, high = rows["perplexity"]
    assert float(low) < float(value) < float(high)
    assert "8.51 bits a weight" in out
    assert "story.txt: 6 windows, 186 tokens" in out
    assert "Measuring" in err


def test_one_window_is_one(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "demo", "--text", str(story), "--window", "64", "--windows", "1", "-q"]) == 0
    assert "story.txt: 1 window, 31 tokens" in capsys.readouterr().out


@pytest.mark.usefixtures("no_gpu")
def test_perplexity_needs_no_reference_and_a_text_may_come_from_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(STORY.encode())))
    assert main(["eval", "demo", "--text", "-", "--window", "64", "--windows", "2", "--json", "-q"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["schema"] == "runner.eval/1"
    assert report["reference"] is None
    assert report["results"][0]["text"] == "stdin"
    assert report["results"][0]["perplexity"]["low"] is None
    assert err == ""


def test_progress_for_programs_is_ndjson_on_stderr(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "demo", "--text", str(story), "--window", "64", "--windows", "3", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["results"][0]["n_windows"] == 3
    last = json.loads(err.splitlines()[-1])
    assert (last["stage"], last["done"], last["total"], last["unit"]) == ("Measuring", 3 * 63, 3 * 63, "tokens")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "There is no text"),
        (["--text", "STORY", "--windows", "many"], 2, "a number of windows, or all"),
        (["--text", "STORY", "--window", "64", "--stride", "10"], 2, "score tokens twice"),
        (["--text", "-", "--text", "-"], 2, "given twice"),
        (["--text", "no-such-file"], 2, "or - for what is piped in"),
        (["--text", "GGUF"], 2, "not plain text: it has zero bytes"),
        (["--text", "LATIN"], 2, "byte 3 is not UTF-8"),
        (["--text", "STORY", "--keep-logits", "x"], 2, "--keep-logits is about a reference"),
        (["--text", "STORY", "--two-pass"], 2, "--against"),
        (["--text", "STORY", "--reference-backend", "native"], 2, "--against"),
        (["--text", "STORY", "--window", "20000"], 2, "a window has 20000"),
        (["--text", "STORY", "--against", "dmeo"], 2, "The reference dmeo"),
        (["--text", "STORY", "--backend", "vllm"], 2, "llamacpp"),
        (["--text", "STORY", "--against", "demo", "--reference-backend", "fake"], 2, "different vocabularies"),
    ],
)
def test_wrong_arguments_say_what_is_right(
    arguments: list[str],
    code: int,
    words: str,
    story: Path,
    tmp_path: Path,
    demo_directory: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    names = {"STORY": story, "GGUF": demo_directory / "demo-q8_0.gguf", "LATIN": tmp_path / "latin.txt"}
    assert main(["eval", "demo", *(str(names.get(word, word)) for word in arguments)]) == code
    out, err = capsys.readouterr()
    assert words in err
    assert out == ""


def test_a_process_that_dies_is_an_error_that_says_how(
    story: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Text on stderr and an abort: what a failing assertion in native code looks like from outside.
    program = "import os, sys; sys.stdin.readline(); os.write(2, b'GGML_ASSERT failed'); os.abort()"
    real = subprocess.Popen

    def popen(_command: list[str], **options: object) -> subprocess.Popen[bytes]:
        return real([sys.executable, "-c", program], **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(f"{evaluate_apart.__module__}.subprocess.Popen", popen)
    monkeypatch.setattr(tempfile, "tempdir", str(story.with_name("missing")))  # as where the disk of /tmp is full
    assert main(["eval", "demo", "--text", str(story)]) == 1
    assert "was ended by SIGABRT" in capsys.readouterr().err
    assert "GGML_ASSERT failed" in user_paths().log_file.read_text()


def test_ctrl_c_ends_it_at_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    long = tmp_path / "long.txt"
    long.write_text(STORY * 40, encoding="utf-8")
    kept = tmp_path / "kept.logits"
    arguments = ["demo", "--against", "demo", "--text", str(long), "--keep-logits", str(kept), "--json"]
    command = [*RUNNER, "eval", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if "Measuring" in line:
                break
        assert (tmp_path / "kept.logits.partial").exists()
        running.send_signal(signal.SIGINT)
        pressed = time.monotonic()
        out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert out == ""
    assert err.endswith("the same command starts over. --windows N measures less.\n")
    assert time.monotonic() - pressed < 10
    assert not list(tmp_path.glob("kept*"))


@pytest.mark.parametrize(
    ("events", "kept", "said"),
    [
        ([], False, "Stopped before anything was measured. What was fetched is kept."),
        ([Measuring(1, 2)], True, "kept.logits: the same command goes on with them."),
    ],
)
def test_ctrl_c_says_what_is_kept(
    story: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    events: list[Measuring],
    kept: bool,
    said: str,
) -> None:
    logits = tmp_path / "kept.logits"
    if kept:
        logits.touch()

    def press(_request: object, _paths: object, on_event: Callable[[Measuring], None]) -> None:
        for event in events:
            on_event(event)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("runner.evaluation.process.evaluate_apart", press)
    arguments = ["--against", "demo", "--keep-logits", str(logits), "--text", str(story)]
    assert main(["eval", "demo", *arguments]) == 130
    assert capsys.readouterr().err.endswith(f"{said}\n")


def test_the_child_leaves_when_its_parent_is_killed(tmp_path: Path) -> None:
    long = tmp_path / "long.txt"
    long.write_text(STORY * 40, encoding="utf-8")
    command = [*RUNNER, "eval", "demo", "--text", str(long), "--json"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert any("Measuring" in line for line in running.stderr)
        (child,) = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        running.kill()
    wait_for(lambda: has_ended(int(child)))
