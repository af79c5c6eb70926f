"""`runner logs`, as a user calls it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from runner.cli.app import main
from runner.cli.logs import tail
from runner.paths import user_paths


@pytest.fixture
def log_file(runner_home: Path) -> Path:
    file = user_paths(runner_home).log_file
    file.parent.mkdir(parents=True)
    return file


def test_the_last_lines_are_printed_safely(log_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_file.write_bytes(b"".join(b"line %d \x1b[31m\xff\n" % number for number in range(100)))
    assert main(["logs", "-n", "2"]) == 0
    out, _ = capsys.readouterr()
    assert out == "line 98 [31m\ufffd\nline 99 [31m\ufffd\n"
    assert main(["logs"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 50


def test_the_path_alone_is_printed(runner_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "--path"]) == 0
    assert capsys.readouterr().out == f"{user_paths(runner_home).log_file}\n"


def test_without_anything_logged_there_is_no_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "Nothing is logged" in err


def test_a_log_that_cannot_be_read_is_an_error(log_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_file.mkdir()
    assert main(["logs"]) == 1
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["", "\n"])
@pytest.mark.parametrize("lines", [0, 1, 3, 1000, 20_000])
def test_tail_equals_the_end_of_the_whole_file(lines: int, ending: str) -> None:
    text = "\n".join(f"{number} {'x' * (number % 91)}" for number in range(5000)) + ending
    expected: Sequence[str] = text.splitlines()[-lines:] if lines else []
    assert tail(io.BytesIO(text.encode()), lines).decode().splitlines() == expected


def test_follow_prints_what_is_added_also_after_a_rotation(log_file: Path) -> None:
    log_file.write_text("old\nlast\n")
    command = [sys.executable, "-c", "from runner.cli.app import main; main(['logs', '-f', '-n', '1'])"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "last\n"
            with log_file.open("a") as file:
                file.write("added\nhal")
            assert process.stdout.readline() == "added\n"
            with log_file.open("a") as file:
                file.write("f\n")
            assert process.stdout.readline() == "half\n"
            os.replace(log_file, log_file.with_name("runner.log.1"))
            log_file.write_text("new file\n")
            assert process.stdout.readline() == "new file\n"
        finally:
            process.kill()
