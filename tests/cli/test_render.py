"""What reaches stdout and stderr: colour rules, safety, tables, sizes, progress, and a reader that goes away."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.cli import render
from runner.cli.fit_text import print_rows
from runner.errors import DoesNotFit, RunnerError, UsageError
from runner.measures import hung, wrap


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def on_terminal() -> Iterator[FakeTerminal]:
    """stdout and stderr are one terminal of 40 columns with colour."""
    stream = FakeTerminal()
    with redirect_stdout(stream), redirect_stderr(stream):
        yield stream


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "40")
    render.configure()


def test_narration_knows_its_width_where_stdout_is_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("COLUMNS")
    theirs, ours = os.openpty()
    with open(theirs, "w"), open(ours, "w") as terminal, open(tmp_path / "out", "w") as out:
        termios.tcsetwinsize(terminal, (20, 33))
        monkeypatch.setattr(sys, "__stdout__", out)
        monkeypatch.setattr(sys, "__stderr__", terminal)
        assert render.terminal_size() == (33, 20)


@pytest.mark.parametrize(
    ("environment", "is_coloured"),
    [
        ({}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "0"}, False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
    ],
)
def test_colour_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], is_coloured: bool
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with on_terminal() as terminal:
        render.fail(UsageError("wrong"))
    assert ("\x1b[" in terminal.getvalue()) is is_coloured


def test_a_pipe_gets_no_colour_unless_it_is_forced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    render.warn("careful", "the remedy")
    render.table(["A"], [["b"]])
    captured = capsys.readouterr()
    assert captured.err == "warning: careful\nhint: the remedy\n"
    assert captured.out == "A\nb\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    render.warn("careful")
    assert "\x1b[33m" in capsys.readouterr().err


def test_an_error_goes_to_stderr_with_its_remedy_and_returns_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert render.fail(DoesNotFit("too big", hint="use less")) == 4
    captured = capsys.readouterr()
    assert captured.err == "error: too big\nhint: use less\n"
    assert captured.out == ""


@given(st.text())
def test_no_control_character_of_a_text_reaches_any_sink(text: str) -> None:
    with on_terminal() as terminal:
        render.data(text)
        render.stream(text)
        render.say(text)
        render.narrate(text)
        render.emit_json("x/1", {"text": text})
        render.emit_ndjson("x/1", [{"text": text}])
    assert not set(terminal.getvalue()) & {*map(chr, range(9)), *map(chr, range(11, 32)), *map(chr, range(127, 160))}


def test_json_keeps_raw_text_and_puts_the_schema_first(capsys: pytest.CaptureFixture[str]) -> None:
    render.emit_json("runner.x/1", {"text": "é\x1b[31m\x9b\u202e\x7f"})
    line = capsys.readouterr().out
    assert line.startswith('{"schema": "runner.x/1"')
    assert json.loads(line)["text"] == "é\x1b[31m\x9b\u202e\x7f"
    assert "\x9b" not in line
    render.emit_ndjson("runner.x/1", [{"a": 1}, {"a": "é"}])
    assert capsys.readouterr().out == '{"schema": "runner.x/1", "a": 1}\n{"schema": "runner.x/1", "a": "é"}\n'


def test_quiet_silences_narration_but_not_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    render.configure(quiet=True)
    try:
        render.narrate("a")
        render.murmur("b")
        render.warn("c")
        with render.Progress("d", 10) as bar:
            bar.update(10)
    finally:
        render.configure()
    assert capsys.readouterr().err == "warning: c\n"


def test_a_table_in_a_pipe_is_aligned_and_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    render.table(["NAME", "SIZE"], [["模型", "1 GB"], ["x" * 200, "20 GB"]], right=[1])
    lines = capsys.readouterr().out.splitlines()
    assert "x" * 200 in lines[2]
    assert {render.text_width(line) for line in lines} == {200 + 2 + 5}


def test_a_table_on_a_terminal_fits_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with on_terminal() as terminal:
        render.table(["NAME", "WHAT", "N"], [["模型" * 30, "b\nc" * 30, "7"], ["short", "y", "8"]], right=[2])
    lines = terminal.getvalue().splitlines()
    assert len(lines) == 3
    assert all(render.text_width(line) <= 39 for line in lines)
    assert lines[1].endswith("7")
    assert lines[2].endswith("8")


@given(st.text(alphabet=st.characters(blacklist_categories=["Cc", "Cs"])), st.integers(0, 30))
def test_clipping_never_exceeds_the_width(text: str, width: int) -> None:
    assert render.text_width(render.clip(text, width)) <= width


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one two three", "one two\nthree"),
        ("  in dented words", "  in\ndented\nwords"),
        ("one\n\ntwo", "one\n\ntwo"),
        ("/a/very/long/path is kept", "/a/very/long/path\nis kept"),
        ("模型 模型", "模型\n模型"),
        ("", ""),
    ],
)
def test_narration_breaks_between_words(text: str, expected: str) -> None:
    assert wrap(text, 8) == expected


def test_errors_and_hints_are_broken_between_words_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    message, hint = "There is not nearly enough memory for this.", "Use a smaller model or a smaller context (-c)."
    render.fail(RunnerError(message, hint=hint))
    assert capsys.readouterr().err == f"error: {message}\nhint: {hint}\n"
    with on_terminal() as terminal:
        render.fail(RunnerError(message, hint=hint))
    assert terminal.getvalue() == (
        "error: There is not nearly enough memory\nfor this.\nhint: Use a smaller model or a smaller\ncontext (-c).\n"
    )


def test_what_was_asked_for_is_broken_between_words_on_a_terminal_only(capsys: pytest.CaptureFixture[str]) -> None:
    page = "last answer  answer 21 tokens · context 32/2k\nseed         7"
    render.say(page)
    assert capsys.readouterr().err == page + "\n"
    with on_terminal() as terminal:
        render.say(page)
    assert terminal.getvalue() == "last answer  answer 21 tokens · context\n32/2k\nseed         7\n"


def test_many_columns_are_cut_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with on_terminal() as terminal:
        render.table(["A" * 9] * 8, [["b" * 9] * 8])
    assert all(render.text_width(line) <= 39 for line in terminal.getvalue().splitlines())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is Linux's")
def test_a_full_disk_under_stdout_is_an_error_and_no_crash(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "import sys; from runner.cli.app import main; sys.exit(main(['config', 'show']))"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "RUNNER_HOME": str(tmp_path)},
        )
    assert (done.returncode, done.stderr) == (1, "error: The output cannot be written: No space left on device.\n")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (render.decimal_size(999), "999 B"),
        (render.decimal_size(19_799_648), "19.8 MB"),
        (render.decimal_size(123e9), "123 GB"),
        (render.binary_size(2**30), "1.0 GiB"),
        (render.binary_size(1536), "1.5 KiB"),
        (render.short_count(950), "950"),
        (render.short_count(1234), "1.2k"),
        (render.short_count(999_960), "1M"),
        (render.short_count(18_400_000), "18.4M"),
        (render.short_count(7_600_000_000), "7.6B"),
        (render.duration(0.0841), "84 ms"),
        (render.duration(0.9999), "1.0 s"),
        (render.duration(125), "2 min 05 s"),
        (render.duration(3720), "1 h 02 min"),
    ],
)
def test_numbers_are_written_in_one_way(shown: str, expected: str) -> None:
    assert shown == expected


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_progress_without_a_terminal_is_a_line_each_five_percent(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with render.Progress("Loading", 1000, unit="tokens", clock=clock) as bar:
        for done in range(1001):
            clock.now += 0.001
            bar.update(done)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 20
    assert "100 %" in lines[-1]
    assert "1000 of 1000 tokens" in lines[-1]
    assert "\x1b" not in "".join(lines)


def test_progress_of_unknown_length_is_a_line_each_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with render.Progress("Fetching", clock=clock) as bar:
        for _ in range(35):
            clock.now += 1
            bar.update(int(clock.now * 1e6))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4  # at 10, 20 and 30 s, and what was there at the end
    assert lines[0].startswith("Fetching  10.0 MB")


def test_progress_as_json_is_one_object_a_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with render.Progress("Loading", 100, unit="%", as_json=True, clock=Clock()) as bar:
        for done in range(0, 101, 10):
            bar.update(done)
    captured = capsys.readouterr()
    assert captured.out == ""
    states = [json.loads(line) for line in captured.err.splitlines()]
    assert states[-1] == {
        "schema": "runner.progress/1",
        "stage": "Loading",
        "done": 100,
        "total": 100,
        "unit": "%",
        "left_s": None,
    }


def test_progress_as_json_comes_each_second_with_rate_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with render.Progress("converting", 1_000_000, as_json=True, clock=clock) as bar:
        for _ in range(40):
            clock.now += 0.125
            bar.update(round(clock.now * 1000))
    states = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [state["done"] for state in states] == [1000, 2000, 3000, 4000, 5000]
    assert states[-1]["rate_bytes_s"] == 1000
    assert states[-1]["left_s"] == 995.0


def test_the_bar_is_redrawn_in_place_and_fits() -> None:
    clock = Clock()
    with on_terminal() as terminal, render.Progress("Downloading a model with a long name", 10**9, clock=clock) as bar:
        for step in range(100):
            clock.now += 0.01
            bar.update(step * 10**7)
    drawn = terminal.getvalue().removesuffix("\n").split("\r")[1:]
    assert 10 <= len(drawn) <= 12
    assert all(render.text_width(frame.removesuffix("\x1b[K")) <= 39 for frame in drawn)


def test_without_a_terminal_a_question_needs_y(capsys: pytest.CaptureFixture[str]) -> None:
    assert render.confirm("Delete?", yes=True)
    with pytest.raises(UsageError, match="no terminal") as refused:
        render.confirm("Delete?", yes=False)
    assert "-y" in refused.value.hint
    assert capsys.readouterr().out == ""


def test_a_reader_that_goes_away_ends_the_program_quietly() -> None:
    program = "from runner.cli import render\nfor i in range(100000): render.data('line %d' % i)"
    done = subprocess.run(
        ["bash", "-c", f'set -o pipefail; "{sys.executable}" -c "{program}" | head -1; echo "${{PIPESTATUS[0]}}"'],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout.splitlines() == ["line 0", "0"]
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("label", "width", "shown"),
    [
        ("device  ", 40, "device  words that are broken between\n        them"),
        ("a label that is long  ", 40, "a label that is long\n  words that are broken between them"),
        (" " * 20, 40, "  words that are broken between them"),
        ("device  ", None, "device  words that are broken between them"),
    ],
)
def test_text_beside_a_label_hangs_under_itself_or_under_the_label(label: str, width: int | None, shown: str) -> None:
    assert hung(label, "words that are broken between them", width, narrow=2) == shown


def test_rows_of_an_estimate_break_no_word_on_a_terminal() -> None:
    with on_terminal() as terminal:
        print_rows([("model", "demo"), ("device", "30.1 GiB free of 32.0 GiB, others hold 1.9 GiB")])
    lines = terminal.getvalue().splitlines()
    assert lines == ["model   demo", "device  30.1 GiB free of 32.0 GiB,", "        others hold 1.9 GiB"]
