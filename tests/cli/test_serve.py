"""`runner serve` before it serves: what it refuses, and how."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from runner.cli.app import main


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "--allow-remote"),
        (["--host", "0.0.0.0", "--allow-remote"], "--token"),
        (["--host", "0.0.0.0", "--token", "x"], "--allow-remote"),
        (["--host", "::"], "--allow-remote"),
        (["--token", ""], "token"),
        (["--token", "a b"], "token"),
        (["--allow-host", "https://front.example"], "no scheme"),
        (["--allow-origin", "app.example"], "https://app.example"),
        (["--host", "no.such.host.invalid"], "127.0.0.1"),
        (["--port", "70000"], "65535"),
        (["--temp", "-1"], "from 0 to 100"),
        (["--think=perhaps"], "medium"),
    ],
)
def test_wrong_usage_exits_2_with_the_remedy(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "demo", "--port", "0", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err


def test_an_empty_token_in_the_environment_is_no_token(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUNNER_SERVE_TOKEN", "")
    assert main(["serve", "demmo", "--port", "0"]) == 2
    assert "token is empty" in capsys.readouterr().err


def test_a_port_in_use_is_said_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "demo", "--port", str(port)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"Port {port} is in use" in captured.err
    assert "--port 0" in captured.err


def test_a_model_that_is_not_there_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "demmo", "--port", "0"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "demo" in captured.err


def test_only_this_command_imports_what_serves_http() -> None:
    program = "import sys\nfrom runner.cli.app import main\nmain(['serve', '--help'])\nmain(['ps'])\n"
    program += "print(sorted({'starlette', 'uvicorn', 'asyncio', 'anyio'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
