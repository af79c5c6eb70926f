"""A chat on a real pseudo-terminal, read back by a terminal emulator: what the user would see."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import pexpect
import psutil
import pyte
from waiting import PATIENCE_S

MAIN = "import sys; from runner.cli.app import main; sys.exit(main())"
PROMPT = "›"


class Terminal:
    """A chat in a terminal of the given size. first: what its program does before."""

    def __init__(self, arguments: list[str], columns: int, rows: int, first: str = "") -> None:
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.Stream(self.screen)
        self.raw = ""
        self.child = pexpect.spawn(
            sys.executable,
            ["-c", first + MAIN, *arguments],
            dimensions=(rows, columns),
            encoding="utf-8",
            codec_errors="replace",
            env={**os.environ, "TERM": "xterm-256color", "NO_COLOR": "", "PROMPT_TOOLKIT_NO_CPR": "1"},
            timeout=20,
        )
        self.child.delaybeforesend = None
        self.child.delayafterclose = self.child.delayafterterminate = 0.02

    def type(self, text: str) -> None:
        self.child.send(text)

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(rows, columns)
        self.child.setwinsize(rows, columns)

    def read(self, for_s: float = 0.05) -> str:
        """Take what arrives in `for_s` seconds; returns the screen's text."""
        end = time.monotonic() + for_s
        while time.monotonic() < end:
            try:
                text = self.child.read_nonblocking(65536, timeout=max(0.01, end - time.monotonic()))
            except pexpect.TIMEOUT:
                break
            except pexpect.EOF:
                break
            self.raw += text
            self._stream.feed(text)
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def wait_for(self, condition: Callable[[str], bool], within_s: float = PATIENCE_S) -> str:
        end = time.monotonic() + within_s
        while not condition(shown := self.read()):
            assert time.monotonic() < end, f"the screen stayed:\n{shown}"
        return shown

    def wait_for_prompt(self) -> str:
        """Wait until the last line is an empty prompt."""
        return self.wait_for(lambda shown: shown.split("\n")[-1].strip() == PROMPT)

    def wait_for_exit(self) -> int:
        end = time.monotonic() + PATIENCE_S
        while self.child.isalive():
            self.read()
            assert time.monotonic() < end, "the chat did not end"
        self.read()
        return int(self.child.exitstatus if self.child.exitstatus is not None else -self.child.signalstatus)

    @property
    def engine(self) -> psutil.Process:
        return next(
            process
            for process in psutil.Process(self.child.pid).children(recursive=True)
            if "runner.engine_child" in process.cmdline()
        )
