"""`runner bench --speculation` as a user runs it, on the demo, and what happens when speculation changes a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.bench.process import BenchProcess
from runner.bench.run import Bench
from runner.bench.turn import Turn
from runner.cli.app import main
from tests.backends.native import tiny_models

CHECKOUT = Path(__file__).parent.parent.parent
SHORT = ["bench", "demo", "--speculation", "--genres", "maths,code", "-n", "12", "-r", "2", "-t", "1", "--offline"]


def measured(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(capsys.readouterr().out)
    return plain


def test_the_demo_writes_each_genre_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--temp", "0,0.7", "--json"]) == 0
    run = measured(capsys)
    (backend,) = run["backends"]
    assert backend["name"] == "llamacpp"  # which chats use for a GGUF
    assert [row["test"] for row in backend["rows"]] == ["maths12", "code12", "maths12 @ t0.7", "code12 @ t0.7"]
    for row in backend["rows"]:
        found = row["speculation"]
        assert row["invalid"] is None
        assert len(row["samples"]) == len(found["plain"]) == 2
        assert found["gain"] == pytest.approx(
            sum(a / b for a, b in zip(row["samples"], found["plain"], strict=True)) / 2
        )
        assert found["record"]["drafter"] == "suffix"
    assert run["options"]["genres"] == ["maths", "code"]
    assert (run["options"]["speculation"], run["options"]["n_prompt"]) == ("auto", [])
    assert len(run["prompts_md5"]) == 32

    assert main(["bench", "show", "last"]) == 0
    report = capsys.readouterr().out
    assert "GAIN" in report
    assert "maths12 @ t0.7" in report
    assert main(["bench", "history"]) == 0
    assert "SPECULATION" in capsys.readouterr().out
    assert main(["bench", "compare", "last", "last"]) == 0
    assert "code12" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "setting", "kv_type"),
    [
        (["-t", "2"], None, "bf16"),
        (["-t", "2", "--kv-type", "f16"], None, "f16"),
        (["-t", "2"], "f16", "f16"),
        (["-t", "1"], None, "f16"),
    ],
)
def test_several_threads_of_a_cpu_keep_keys_and_values_in_what_leaves_texts_alike(
    arguments: list[str],
    setting: str | None,
    kv_type: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Bench, "_measure_bandwidth", lambda _: iter(()))
    monkeypatch.setattr(Turn, "measure", lambda _: iter(()))  # what it is loaded with is known by then
    if setting:
        monkeypatch.setenv("RUNNER_KV_TYPE", setting)
    short = ["bench", "demo", "--speculation", "--genres", "code", "-n", "4", "-r", "1", "-ngl", "0", "--offline"]
    main([*short, *arguments, "--json", "--no-save"])
    run = measured(capsys)
    assert run["options"]["kv_type"] == kv_type
    assert any("KV cache is bf16" in note for note in run["notes"]) == (kv_type == "bf16")


def test_speculation_that_changes_a_text_makes_the_row_invalid(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    monkeypatch.setattr(BenchProcess, "child_module", "tests.bench.wrong_child")
    assert main([*SHORT, "--json", "--no-save"]) == 1
    (backend,) = measured(capsys)["backends"]
    for row in backend["rows"]:
        assert row["invalid"].startswith("prompt 1: tokens with speculation differ from those without, from token 3 on")
        assert (row["samples"], row["speculation"], row["cold"]) == ([], None, None)


def test_drafts_that_are_shorter_than_asked_for_are_told_as_long_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tiny_models.save(tiny_models.make("qwen3-5", max_position_embeddings=2048), tmp_path / "qwen"))
    short = ["bench", model, "--speculation", "--genres", "code", "-n", "4", "-r", "2", "-t", "1", "-ngl", "0"]
    for asked, used in ((9, 5), (4, 4)):
        assert main([*short, "--random-weights", "--draft-max", str(asked), "--json"]) == 0
        run = measured(capsys)
        (backend,) = run["backends"]
        assert (run["options"]["draft_max"], backend["draft_max"]) == (asked, used)
        assert main(["bench", "show", "last"]) == 0
        report = " ".join(capsys.readouterr().out.split())
        assert f"drafts of {used} tokens at most" in report
        assert report.count("not the 9 of --draft-max: no more can be taken back.") == (asked > used)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--genres", "code"], "--speculation alone"),
        (["--temp", "0.7"], "--speculation alone"),
        (["--spec", "suffix"], "--speculation alone"),
        (["--speculation", "--genres", "poems"], "no genre 'poems'"),
        (["--speculation", "--temp", "hot"], "--temp is 'hot'"),
        (["--speculation", "--temp", "-1"], "--temp is -1"),
        (["--speculation", "--spec", "off"], "Speculation is off"),
        (["--speculation", "-p", "512"], "no meaning for speculation"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_loaded(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "demo", *arguments]) == 2
    assert words in capsys.readouterr().err
