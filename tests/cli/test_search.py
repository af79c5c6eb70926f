"""`runner search`: the registry's models first, then what the hub finds, safely."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from hub_server import Hub, Repo, serving
from pulled import GGUF, WEIGHTS, begin_fetch, small_hub

from runner.cli import render
from runner.cli.app import main
from runner.cli.columns import fitting

NASTY = "evil/\x1b]0;owned\x07qwen\u202e[/]"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    repos = {
        "Qwen/Qwen3-8B-GGUF": Repo({"Qwen3-8B-Q4_K_M.gguf": b"x"}, downloads=3_456_789, likes=432),
        "someone/Qwen3-8B-tuned": Repo({"model.safetensors": b"x"}, downloads=12, num_parameters=8_190_735_360),
        "closed/qwen3-8b": Repo({"x.gguf": b"x"}, is_gated=True),
        NASTY: Repo({"x.gguf": b"x"}),
    }
    with serving(Hub(repos=repos)) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["search", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.usefixtures("server")
def test_registry_models_come_first_then_the_hub_by_downloads(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "qwen3-8b")
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [
        "qwen3-8b",
        "Qwen/Qwen3-8B-GGUF",
        "someone/Qwen3-8B-tuned",
        "closed/qwen3-8b",
    ]
    assert "3.5M" in lines[2]
    assert "432" in lines[2]
    assert "8.2B" in lines[3]
    assert "gated" in lines[4]
    assert "2025-03-09" in lines[2]


@pytest.mark.usefixtures("server")
def test_text_of_the_hub_does_not_act_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "owned")
    assert "owned" in out
    assert not set(out) & {"\x1b", "\x07", "\u202e"}
    code, out, _ = run(capsys, "owned", "--json")
    assert code == 0
    assert json.loads(out)["models"][0]["repo"] == NASTY
    assert "\x1b" not in out


@pytest.mark.usefixtures("server")
def test_json_has_raw_facts_and_the_names_of_the_registry(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(run(capsys, "qwen3-8b", "--json", "--limit", "2")[1])
    assert (answer["schema"], answer["query"]) == ("runner.search/1", "qwen3-8b")
    assert [one["name"] for one in answer["registry"]] == ["qwen3-8b"]
    first, second = answer["models"]
    assert (first["repo"], first["name"], first["downloads"]) == ("Qwen/Qwen3-8B-GGUF", "qwen3-8b", 3_456_789)
    assert (second["name"], second["num_parameters"], second["formats"]) == ("", 8_190_735_360, ["safetensors"])


def test_what_is_here_or_was_begun_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, demo_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_hub(tmp_path / "served", demo_directory) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        begin_fetch(GGUF, WEIGHTS, server)
        assert run(capsys, "llama-gguf")[1].splitlines()[-1].endswith("partial")
        main(["pull", "-q", GGUF])
        capsys.readouterr()
        assert run(capsys, "llama-gguf")[1].splitlines()[-1].endswith("Q8_0")


def test_offline_only_the_registry_answers(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    code, out, err = run(capsys, "qwen3-8b", "--offline")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["MODEL", "qwen3-8b"]
    assert "not asked" in err
    assert server.requests == []


def test_when_the_hub_refuses_the_registry_still_answers(capsys: pytest.CaptureFixture[str], server: Hub) -> None:
    server.status = 418
    code, out, err = run(capsys, "qwen3-8b")
    assert code == 3
    assert [line.split()[0] for line in out.splitlines()] == ["MODEL", "qwen3-8b"]
    assert "418" in err
    assert run(capsys, "qwen3-8b", "--json")[:2] == (3, "")


@pytest.mark.usefixtures("server")
def test_nothing_found_and_nothing_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "zzzz-no-such")[:2] == (0, "")
    assert run(capsys, "  ")[0] == 2
    assert run(capsys)[0] == 2


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("columns", [120, 80, 40])
def test_every_line_fits_the_terminal_and_names_stay_readable(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with redirect_stdout(FakeTerminal()) as terminal:
        assert main(["search", "qwen3-8b"]) == 0
    lines = terminal.getvalue().splitlines()
    assert all(render.text_width(line) < columns for line in lines)
    assert lines[1].startswith("qwen3-8b ")
    assert lines[2].startswith("Qwen/Qwen3-8B"[: columns // 4])
    assert ("LIKES" in lines[0]) == (columns >= 120)


def test_columns_are_kept_by_worth_and_shown_in_their_order() -> None:
    rows = [{"A": "a" * 30, "B": "b" * 8, "C": "c" * 8}]
    assert fitting("ABC", "ACB", rows, 100, elastic=frozenset("A")) == ("A", "B", "C")
    assert fitting("BCA", "ACB", rows, 22, elastic=frozenset("A")) == ("C", "A")
    assert fitting("ABC", "ACB", rows, 3, elastic=frozenset("A")) == ("A",)
    assert fitting("ABC", "ACB", rows, 31, elastic=frozenset()) == ("A",)
    assert fitting("ABC", "ACB", [], 100, elastic=frozenset()) == ("A", "B", "C")
