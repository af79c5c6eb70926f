"""Progress of several files: in place on a terminal of any size, a line now and then in a pipe, NDJSON for programs."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

import pyte
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.cli import render
from runner.cli.multi_progress import FileProgress, MultiProgress

MB = 1_000_000


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    render.configure()


@contextmanager
def on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, rows: int) -> Iterator[FakeTerminal]:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(rows))
    assert shutil.get_terminal_size() == (columns, rows)
    with redirect_stderr(FakeTerminal()) as stream:
        yield stream


def screen_of(text: str, columns: int, rows: int) -> list[str]:
    screen = pyte.Screen(columns, rows)
    pyte.Stream(screen).feed(text.replace("\n", "\r\n"))
    return [line.rstrip() for line in screen.display if line.strip()]


def files(*done: int, total: int = 100 * MB) -> list[FileProgress]:
    """Files of 100 MB: all there, moving, or waiting where nothing has come."""
    return [
        FileProgress(f"f{n}", one, total, "done" if one == total else "downloading" if one else "waiting")
        for n, one in enumerate(done, 1)
    ]


@pytest.mark.parametrize(("columns", "rows"), [(120, 40), (80, 24), (40, 12)])
def test_a_line_a_file_and_one_for_all_are_redrawn_in_place(
    monkeypatch: pytest.MonkeyPatch, columns: int, rows: int
) -> None:
    clock = Clock()
    with on_terminal(monkeypatch, columns, rows) as terminal:
        progress = MultiProgress("qwen", clock=clock)
        for step in range(1, 50):
            clock.now += 0.1
            progress.update(files(100 * MB, step * MB, 2 * step * MB, 0))
        shown = screen_of(terminal.getvalue(), columns, rows)
        assert [line.split()[0] for line in shown] == ["f2", "f3", "qwen,"]
        assert "49 %" in shown[0]
        assert "10.0 MB/s" in shown[0]
        assert "61 %" in shown[2]
        clock.now += 60
        progress.update(files(*[100 * MB] * 4))
        progress.close()
    (line,) = screen_of(terminal.getvalue(), columns, rows)
    assert "100 %" in line
    assert terminal.getvalue().endswith("\n")


def test_narration_is_above_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    with on_terminal(monkeypatch, 80, 24) as terminal:
        progress = MultiProgress("qwen", clock=clock)
        progress.say("before")
        for step in range(1, 4):
            clock.now += 0.1
            progress.update(files(step * MB, step * MB))
            progress.say(f"trouble {step}")
        clock.now += 1
        progress.update(files(5 * MB, 5 * MB))
    shown = screen_of(terminal.getvalue(), 80, 24)
    assert [line.split()[0] for line in shown] == ["before", *["trouble"] * 3, "f1", "f2", "qwen,"]


def test_a_line_reads_like_this(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    with on_terminal(monkeypatch, 120, 40) as terminal:
        progress = MultiProgress("qwen3-8b", clock=clock)
        progress.update([FileProgress("a.gguf", 0, 5_000 * MB, "downloading")])
        clock.now = 4.0
        progress.update([FileProgress("a.gguf", 1_000 * MB, 5_000 * MB, "downloading")])
    (line,) = screen_of(terminal.getvalue(), 120, 40)
    assert line.split("  ") == [
        *("qwen3-8b" + " " * 34).split("  "),
        " 20 %",
        "██░░░░░░░░░░░░",
        "1.0 GB of 5.0 GB",
        "250 MB/s",
        "16 s left",
    ]


def test_more_files_than_rows_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_terminal(monkeypatch, 80, 6) as terminal:
        MultiProgress("m", clock=Clock()).update(files(*[MB] * 20))
    shown = screen_of(terminal.getvalue(), 80, 6)
    assert [line.split()[0] for line in shown] == ["f1", "f2", "f3", "and", "m,"]
    assert shown[3] == "and 17 more"


def test_a_file_that_another_process_fetches_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_terminal(monkeypatch, 100, 20) as terminal:
        MultiProgress("m", clock=Clock()).update(
            [FileProgress("a", MB, 2 * MB, "attached"), FileProgress("b", MB, 2 * MB, "downloading")]
        )
    assert "by another process" in screen_of(terminal.getvalue(), 100, 20)[0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.integers(8, 200), st.integers(2, 50), st.text(max_size=300), st.lists(st.integers(0, 100), max_size=30))
def test_no_frame_is_wider_or_higher_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int, rows: int, name: str, done: list[int]
) -> None:
    clock = Clock()
    with on_terminal(monkeypatch, columns, rows) as terminal:
        progress = MultiProgress(name, clock=clock)
        for step in (1, 2):
            clock.now += 1
            progress.update(
                FileProgress(f"{name}{n}", one * step // 2 * MB, 100 * MB, "downloading") for n, one in enumerate(done)
            )
    for frame in terminal.getvalue().split("\x1b[J"):
        lines = frame.replace("\x1b[K", "").split("\n")
        assert len(lines) < rows or len(lines) == 1
        assert all(render.text_width(line.split("A")[-1].lstrip("\r")) < columns for line in lines[1:])
        assert not set(frame) & {*map(chr, range(7)), "\x07", "\x08", "\x9b", "\u202e"}


def test_a_narrower_window_does_not_leave_old_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    with on_terminal(monkeypatch, 100, 24) as terminal:
        progress = MultiProgress("m", clock=clock)
        progress.update(files(MB, MB))
        before = len(terminal.getvalue())
        monkeypatch.setenv("COLUMNS", "50")
        clock.now += 1
        progress.update(files(2 * MB, 2 * MB))
    # Three lines of about 70 columns take two rows each in a window of 50: five rows up from the last.
    assert terminal.getvalue()[before:].startswith("\r\x1b[5A")


def test_a_pipe_gets_a_line_each_five_percent(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with MultiProgress("m", clock=clock) as progress:
        for step in range(101):
            clock.now += 0.01
            progress.update(files(step * MB, step * MB))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 20
    assert "100 %" in lines[-1]
    assert "\x1b" not in "".join(lines)


def test_a_slow_download_in_a_pipe_gets_a_line_each_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with MultiProgress("m", clock=clock) as progress:
        for _ in range(35):
            clock.now += 1
            progress.update(files(round(clock.now * 1000)))
    assert len(capsys.readouterr().err.splitlines()) == 4


def test_a_resumed_download_does_not_begin_with_a_line_for_what_was_there(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = MultiProgress("m", clock=clock)
    for _ in range(5):
        clock.now += 0.1
        progress.update(files(60 * MB))
    assert capsys.readouterr().err == ""


def test_json_lines_have_all_files_first_and_then_those_that_changed(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with MultiProgress("m", as_json=True, clock=clock) as progress:
        for done in range(0, 101, 10):
            progress.update(files(done * MB, 0))
            clock.now += 0.5
    captured = capsys.readouterr()
    states = [json.loads(line) for line in captured.err.splitlines()]
    assert captured.out == ""
    assert [len(state["files"]) for state in states] == [2, 1, 1, 1, 1, 1]
    assert states[0]["schema"] == "runner.progress/1"
    assert states[1]["rate_bytes_s"] == 20 * MB
    assert states[1]["left_s"] == 9.0
    assert (states[-1]["done"], states[-1]["total"], states[-1]["unit"]) == (100 * MB, 200 * MB, "bytes")
    assert states[-1]["files"] == [{"name": "f1", "done": 100 * MB, "total": 100 * MB, "state": "done"}]


def test_json_lines_tell_what_holds_the_files_up_while_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with MultiProgress("m", as_json=True, clock=clock) as progress:
        for trouble in ("", "The hub answered 500. Trying again in 2 s.", ""):
            progress.update(files(50 * MB), trouble=trouble)
            clock.now += 1
    told = [json.loads(line)["trouble"] for line in capsys.readouterr().err.splitlines()]
    assert told == ["", "The hub answered 500. Trying again in 2 s.", ""]


def test_quiet_and_nothing_at_all_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with MultiProgress("m"):
        pass
    render.configure(quiet=True)
    try:
        with MultiProgress("m", clock=Clock()) as progress:
            progress.update(files(100 * MB))
    finally:
        render.configure()
    assert capsys.readouterr().err == ""
