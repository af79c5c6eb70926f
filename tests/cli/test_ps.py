"""`runner ps` shows the engines that run, and only those."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.cli.app import main
from runner.config import LoadOptions
from runner.engine_process import EngineProcess
from runner.paths import user_paths


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "quiet\x1b[31m.script.json"
    path.write_text(json.dumps({"replies": ["hello"]}))
    return str(path)


def test_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "No model is loaded.\n")
    assert main(["ps", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": "runner.ps/1", "engines": []}


def test_a_loaded_model_is_shown_until_its_process_is_gone(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    with EngineProcess(user_paths()) as engine:
        list(engine.load(script, LoadOptions()))
        pid = engine.pid
        assert main(["ps"]) == 0
        header, row = capsys.readouterr().out.splitlines()
        assert header.split()[:4] == ["PID", "MODEL", "QUANT", "BACKEND"]
        assert row.split()[0] == str(pid)
        assert "fake" in row
        assert "\x1b" not in row
        assert main(["ps", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["engines"][0]["pid"] == pid
    assert main(["ps"]) == 0
    assert capsys.readouterr().out == ""
