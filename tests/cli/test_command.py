"""What every command refuses of its options' values: an empty one, and another option; the commands as they are."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from runner.bench.store import append_run
from runner.cli import app as app_module
from runner.cli.app import COMMANDS, _load, main, new_app
from runner.cli.command import Command
from runner.paths import user_paths
from tests.bench.bench_records import run

_ARGUMENTS = {
    "bench export": ["last", "--for", "localmaxxing"],
    "sessions export": ["some"],
    "draft train": ["demo"],
    "quantize": ["demo"],
}


@pytest.fixture(autouse=True)
def nothing_piped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))


def _commands(words: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
    """Every command that has no commands below it, and how it is called."""
    below = getattr(command, "commands", None)
    if below is None:
        yield words, command
    for name, inner in (below or {}).items():
        yield from _commands(words if name == "measure" else [*words, name], inner)


def _all_commands() -> list[tuple[list[str], Any]]:
    return [found for name in COMMANDS for found in _commands([name], _load(name))]


def test_every_command_is_one_that_looks_at_its_values() -> None:
    others = [" ".join(words) for words, command in _all_commands() if not isinstance(command, Command)]
    assert others == []


def test_an_empty_path_is_refused_by_its_flag_in_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    seen = 0
    for words, command in _all_commands():
        for param in command.params:
            if param.type.name != "path" or param.param_type_name != "option":
                continue
            flag = max(param.opts, key=len)
            assert main([*words, *_ARGUMENTS.get(" ".join(words), []), f"{flag}="]) == 2
            said = capsys.readouterr().err
            assert f"error: {flag} is empty.\nhint: Give it a value, {flag} {param.metavar}, or leave it out." in said
            assert main([*words, *_ARGUMENTS.get(" ".join(words), []), f"{flag}=~nobody-here/x"]) == 2
            assert "error: '~nobody-here/x': there is no such user.\nhint: " in capsys.readouterr().err
            seen += 1
    assert seen > 10


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "demo", "hi", "-f", ""], "--file is empty"),
        (["run", "demo", "hi", "-f", "README.md", "-f", " "], "--file is empty"),
        (["run", "demo", "hi", "--draft", ""], "--draft is empty"),
        (["bench", "demo", "--baseline", ""], "--baseline is empty"),
        (["chat", "-m", ""], "--model is empty"),
        (["draft", "show", ""], "DIR is empty"),
        (["run", "", "hi"], "name of the model is empty"),
        (["bench", ""], "name of the model is empty"),
        (["explain", ""], "name of the model is empty"),
        (["serve", "", "--port", "0"], "name of the model is empty"),
    ],
)
def test_what_a_variable_that_is_not_set_leaves_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert "hint: " in captured.err


@pytest.mark.parametrize(
    ("arguments", "flag", "option"),
    [
        (["run", "demo", "-p", "--temp", "0"], "--prompt", "--temp"),
        (["bench", "demo", "--plot", "--json"], "--plot", "--json"),
        (["run", "demo", "hi", "--stop", "-n", "5"], "--stop", "-n"),
    ],
)
def test_an_option_is_no_value_of_another(
    arguments: list[str], flag: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert f"error: {flag} needs a value, and {option} is an option.\nhint: Where that is the value, write " in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("lst", "Did you mean list?"),
        ("rm", "Known names: delete, export, list"),
        ("help", "`runner sessions --help` lists"),
    ],
)
def test_what_is_no_command_of_a_group_is_told_with_those_that_are(
    word: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sessions", word]) == 2
    assert capsys.readouterr().err.startswith(f"error: runner sessions has no command {word!r}.\nhint: {hint}")


def test_it_is_where_it_is_written_as_one_word_or_behind_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--prompt=--temp"], ["--", "-p", "--temp"]):
        assert main(["run", "fake", "-q", *arguments]) == 0
        assert capsys.readouterr().out.strip()


def test_a_path_of_a_user_who_is_not_there_is_told_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "~nobody-here/x", "hi"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: '~nobody-here/x' is not a usable path: ")
    assert ".." not in said
    assert "hint: Give the path in full." in said


def test_a_text_may_be_empty(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fake", "hi", "-q", "-p", "", "-s", ""]) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("arguments", "level", "words"),
    [
        (["--think"], "on", []),
        (["--think=low", "x"], "low", ["x"]),
        (["--think", "low", "x"], "low", ["x"]),
        (["--think", "lower", "x"], "on", ["lower", "x"]),
        (["x", "--think", "--think"], "on", ["x"]),
        (["x", "--", "--think", "low"], "", ["x", "--think", "low"]),
        ([], "", []),
    ],
)
def test_think_alone_means_on_and_a_level_may_follow_it(arguments: list[str], level: str, words: list[str]) -> None:
    seen: list[tuple[str, list[str]]] = []
    app = new_app()

    @app.command()
    def command(prompt: Annotated[list[str] | None, typer.Argument()] = None, think: str = "") -> None:
        seen.append((think, prompt or []))

    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert seen == [(level, words)]


def test_a_path_after_an_equals_sign_which_a_shell_leaves_as_it_is_may_begin_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "note.txt").write_text("hi")
    assert main(["run", "fake", "-q", "--file=~/note.txt"]) == 0
    assert main(["quantize", "demo", "-t", "q8_0", "--output=~/made.gguf", "-q"]) == 0
    assert (tmp_path / "made.gguf").is_file()


@pytest.mark.parametrize("arguments", [["quantize", "demo", "-o", "y"], ["bench", "history", "x"]])
def test_a_path_from_a_working_directory_that_was_deleted_is_told_as_that(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    append_run(user_paths().bench_history, run())
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(arguments) == 1
    assert capsys.readouterr().err == "error: The working directory was deleted.\nhint: Go to another: cd ~\n"
    monkeypatch.setattr(app_module, "app", _on_a_full_disk)
    assert main(arguments) == 1
    assert "runner failed: OSError: [Errno 28] No space left on device" in capsys.readouterr().err


def _on_a_full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
