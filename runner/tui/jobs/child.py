"""One run of the command line as a child process: its stderr line by line, its result, and stopping it.

The child ends with this process: it watches its standard input (`runner --with-parent`). It knows no job.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any, Final

from runner.errors import RunnerError

# A download stops in tenths of a second; llama.cpp and torch look at signals between two pieces of work.
STOP_GRACE_S: Final = 10.0
_MAX_RESULT_BYTES: Final = 16 * 2**20


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a child ended. exit_code: negative for a signal. result: the JSON object of its stdout, {} for none."""

    exit_code: int
    result: Mapping[str, Any] = field(default_factory=dict)


class CommandLine:
    """A running child. on_line and on_end are called on a thread of its own; on_end once, after the last line."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        on_line: Callable[[str], None],
        on_end: Callable[[Ending], None],
    ) -> None:
        """Start it. arguments: after `runner`. environment: over this process's own. Raises RunnerError."""
        self._on_line, self._on_end = on_line, on_end
        self._killer: threading.Timer | None = None
        try:
            self._result: IO[bytes] = tempfile.TemporaryFile(prefix="runner-job-")  # noqa: SIM115 - closed at the end
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "runner", "--with-parent", *arguments],
                stdin=subprocess.PIPE,
                stdout=self._result,
                stderr=subprocess.PIPE,
                env={**os.environ, "NO_COLOR": "1", **environment},
                start_new_session=True,  # the terminal's Ctrl+C is for the screens, which decide what it means
            )
        except OSError as error:
            raise RunnerError(
                f"The program cannot be started: {error.strerror or error}.",
                hint="Make room: memory, processes, open files or the disk may be exhausted.",
            ) from error
        self._thread = threading.Thread(target=self._read, name=f"job-{self._child.pid}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def interrupt(self, grace_s: float = STOP_GRACE_S) -> None:
        """Ask it to stop, as Ctrl+C does; it is killed after `grace_s`. What it has made so far is kept either way."""
        if self._killer is None:
            self._killer = threading.Timer(grace_s, self.kill)
            self._killer.daemon = True
            self._killer.start()
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """End it and what it has started, at once."""
        with suppress(OSError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._signal(signal.SIGKILL)

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended and all has been told within that time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _signal(self, number: int) -> None:
        with suppress(OSError):  # it has ended by itself
            self._child.send_signal(number)

    def _read(self) -> None:
        assert self._child.stderr is not None
        with self._child.stderr as lines:
            for line in lines:
                self._on_line(line.decode("utf-8", "replace").rstrip("\n"))
        code = self._child.wait()
        if self._killer is not None:
            self._killer.cancel()
        if self._child.stdin is not None:
            with suppress(OSError):
                self._child.stdin.close()
        result = self._read_result()
        self._on_end(Ending(exit_code=code, result=result))

    def _read_result(self) -> Mapping[str, Any]:
        with self._result as file:
            try:
                file.seek(0)
                plain = json.loads(file.read(_MAX_RESULT_BYTES))
            except (OSError, ValueError, RecursionError):
                return {}
        return plain if isinstance(plain, dict) else {}


def wait_for_all(children: Sequence[CommandLine], patience_s: float) -> None:
    """Wait until all of them have ended; those that have not after `patience_s` are killed."""
    deadline = time.monotonic() + patience_s
    for child in children:
        if not child.wait(max(0.0, deadline - time.monotonic())):
            child.kill()
