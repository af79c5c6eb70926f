"""`runner explain` as a user runs it: the demo, scripts, models that cannot be had or run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.cli.app import main
from runner.paths import user_paths
from tests.backends.cache_gguf import write_mamba


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
    rows, _ = explain(capsys, "demo", "--backend", "native", "--kv-type", "q8_0", "-ngl", "0")
    assert rows["backend"].strip().startswith("none: ")


def test_what_would_draft_is_told_with_its_memory(capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = explain(capsys, "demo")
    assert rows["speculation"].strip() == "suffix: it needs no memory"
    assert "draft" not in rows
    rows, _ = explain(capsys, "demo", "--draft", "demo", "-c", "1024")
    assert rows["speculation"].strip() == "model: demo drafts"
    assert rows["draft"].strip().endswith("MiB (demo)")
    assert explain(capsys, "demo", "--spec", "off")[0]["speculation"].strip() == "off: it was turned off"
    assert "--draft" in explain(capsys, "demo", "--spec", "model")[0]["speculation"]


@pytest.mark.usefixtures("no_gpu")
def test_a_draft_model_of_another_vocabulary_is_refused_as_a_load_would(
    capsys: pytest.CaptureFixture[str], shared_data: Path
) -> None:
    other = str(shared_data / "stories260K" / "gguf" / "stories260K-f32.gguf")
    rows, err = explain(capsys, "demo", "--draft", other)
    said = rows["speculation"]
    assert ".." not in err
    assert "cannot draft for demo: their vocabularies differ. Token" in said
    assert said.strip().startswith("refused:")


def test_files_that_drafts_may_quote_are_counted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("a text")
    b.write_text("another")
    rows, err = explain(capsys, "demo", "--draft-file", str(a), "--draft-file", str(b))
    assert rows["speculation"].strip() == "suffix: it needs no memory, and may quote 2 files"
    assert err == ""
    _, err = explain(capsys, "demo", "--draft-file", str(a), "--spec", "off")
    assert "No draft quotes the files of --draft-file: it was turned off." in err
    assert main(["explain", "demo", "--draft-file", str(a), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["drafting"]["files"] == [str(a)]
    _, err = explain(capsys, "demo", "--draft-file", str(tmp_path / "none"))
    assert "none, given by --draft-file, is no file here." in err


@pytest.mark.usefixtures("no_gpu")
def test_a_head_for_a_backend_without_heads_drafts_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for backend in ("auto", "native"):  # a GGUF has none for any
        rows, _ = explain(capsys, "demo", "--spec", "mtp", "--backend", backend)
        assert rows["speculation"].strip().startswith("refused: demo has no multi-token head")
    (tmp_path / "config.json").write_text('{"draft_vocab_size": 9}')
    rows, err = explain(capsys, "demo", "--draft", str(tmp_path))
    why = "the llamacpp backend has no eagle3 drafter, --backend native has"
    assert rows["speculation"].strip() == f"refused: {why}"
    assert err == ""


def test_the_registry_s_draft_model_is_a_suggestion(
    capsys: pytest.CaptureFixture[str], demo_directory: Path, runner_home: Path
) -> None:
    path = user_paths(runner_home).user_models_file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'[mine]\npath = "{demo_directory}"\ndraft = "demo"\n')
    assert main(["explain", "mine"]) == 0
    assert "demo is known to draft for it: --spec model" in capsys.readouterr().out
    rows, _ = explain(capsys, "mine", "--spec", "model")
    assert rows["speculation"].strip() == "model: demo drafts"


def test_a_model_that_cannot_go_back_is_seen_in_its_header(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, demo_directory: Path
) -> None:
    rows, _ = explain(capsys, str(write_mamba(tmp_path / "mamba.gguf", demo_directory)))
    assert rows["speculation"].strip().startswith("off: this model cannot go back")


@pytest.mark.usefixtures("no_gpu")
def test_a_draft_model_that_cannot_go_back_is_seen_in_its_header(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, demo_directory: Path
) -> None:
    rows, _ = explain(capsys, "demo", "--draft", str(write_mamba(tmp_path / "mamba.gguf", demo_directory)))
    said = rows["speculation"].strip()
    assert said.startswith("refused: ")
    assert "mamba.gguf cannot draft: its recurrent layers keep no earlier state." in said
    assert "--spec suffix needs no draft model" in said
    assert "draft" not in rows
