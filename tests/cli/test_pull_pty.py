"""`runner pull` on a real pseudo-terminal: what the user sees, at every size, and Ctrl+C."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator

import pexpect
import pyte
import pytest
from hub_server import Hub
from pulled import GGUF, SHARDS, WEIGHTS, server
from waiting import PATIENCE_S

from runner.hub_cache import repo_directory

__all__ = ["server"]  # the fixture

MAIN = "import sys; from runner.cli.app import main; sys.exit(main())"
# Every sequence that pull may send: cursor up, erasing, colours.
OWN_SEQUENCES = re.compile(r"\x1b\[\d*[AJKm]")


class Terminal:
    """`runner` with those arguments in a terminal of the given size."""

    def __init__(self, arguments: list[str], columns: int, rows: int, term: str = "xterm-256color") -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.Stream(self._screen)
        self.raw = ""
        self.child = pexpect.spawn(
            sys.executable,
            ["-c", MAIN, *arguments],
            dimensions=(rows, columns),
            encoding="utf-8",
            env={**os.environ, "TERM": term, "NO_COLOR": "1"},
            timeout=20,
        )
        self.child.delaybeforesend = None
        self.child.delayafterclose = self.child.delayafterterminate = 0.02

    def read(self) -> str:
        try:
            text = self.child.read_nonblocking(65536, timeout=0.05)
        except (pexpect.TIMEOUT, pexpect.EOF):
            text = ""
        self.raw += text
        self._stream.feed(text)
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def wait_for(self, condition: Callable[[str], bool], within_s: float = PATIENCE_S) -> str:
        end = time.monotonic() + within_s
        while not condition(shown := self.read()):
            assert time.monotonic() < end, f"the screen stayed:\n{shown}"
        return shown

    def wait_for_exit(self, within_s: float = PATIENCE_S) -> tuple[int, str]:
        end = time.monotonic() + within_s
        while self.child.isalive():
            self.read()
            assert time.monotonic() < end, "it did not end"
        return int(
            self.child.exitstatus if self.child.exitstatus is not None else -self.child.signalstatus
        ), self.read()


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*arguments: str, columns: int = 80, rows: int = 24, term: str = "xterm-256color") -> Terminal:
        opened.append(Terminal(["pull", *arguments], columns, rows, term))
        return opened[-1]

    yield start
    for one in opened:
        one.child.close(force=True)


@pytest.mark.parametrize(("columns", "rows"), [(120, 40), (40, 12)])
def test_ctrl_c_stops_at_once_exits_130_and_pulling_again_goes_on(
    terminal: Callable[..., Terminal], server: Hub, columns: int, rows: int
) -> None:
    server.bytes_s, server.most_bytes = 300_000, 800_000  # of 1.3 MB: it is not whole before Ctrl+C
    screen = terminal(GGUF, columns=columns, rows=rows)
    shown = screen.wait_for(lambda text: re.search(r"[1-9]\d? %", text) is not None)
    assert sum("%" in line for line in shown.split("\n")) == 1
    pressed_at = time.monotonic()
    screen.child.send("\x03")
    code, shown = screen.wait_for_exit()
    assert time.monotonic() - pressed_at < 15  # of which 0.2 are the promise; a busy machine takes long to leave Python
    assert code == 130
    words = " ".join(shown.split())
    assert re.search(r"Stopped at \d+ % \(.* of 1\.\d MB\)", words)
    assert f"`runner pull {GGUF}` goes on from there" in words
    (part,) = (repo_directory(GGUF) / "blobs").glob("*.runner-part")
    here = part.stat().st_size
    assert here > 0
    server.let_go()
    again = terminal(GGUF, columns=columns, rows=rows)
    code, shown = again.wait_for_exit()
    assert code == 0
    assert "100 %" in shown
    assert server.ranges(WEIGHTS)[-1] == f"bytes={here}-"
    assert "\x1b" not in OWN_SEQUENCES.sub("", screen.raw + again.raw)


@pytest.mark.parametrize(("columns", "rows"), [(120, 40), (80, 24), (40, 12)])
def test_many_files_are_shown_in_place_and_leave_one_line(
    terminal: Callable[..., Terminal], server: Hub, columns: int, rows: int
) -> None:
    server.bytes_s, server.most_bytes = 30_000, 60_000  # none of 64 kB is whole before it was looked at
    screen = terminal(SHARDS, "-j", "8", columns=columns, rows=rows)

    def is_whole_frame(text: str) -> bool:
        return text.count("model-0000") == 3 and "tiny/shards" in text.split("\n")[-1]

    shown = screen.wait_for(is_whole_frame)
    assert all(len(line) < columns for line in shown.split("\n"))
    server.let_go()
    code, shown = screen.wait_for_exit()
    assert code == 0
    assert "100 %" in shown
    assert "model-0000" not in shown.split("100 %")[0]


def test_a_dumb_terminal_gets_plain_lines(terminal: Callable[..., Terminal], server: Hub) -> None:
    screen = terminal(SHARDS, term="dumb")
    code, shown = screen.wait_for_exit()
    assert code == 0
    assert "100 %" in shown
    assert "\x1b" not in screen.raw
    assert server.fetched()
