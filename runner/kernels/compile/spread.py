"""Calls one function on many items in several processes, of which each may die or hang without stopping the rest.

A compiler is such a function: it can abort its process, or take hours over code that it cannot fit into registers. This
file knows nothing of kernels.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_LINES_SHOWN = 12
_LOOK_S = 0.1  # between looks at whether to stop


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An item without a result. reason: one line or more, from the exception and from what was written to stderr."""

    reason: str


@dataclass(kw_only=True)
class _Worker(Generic[Item]):
    """A process with the item that it has now. log: the file that its stderr goes to."""

    process: subprocess.Popen[bytes]
    connection: Connection[Any, Any]
    log: Path
    item: Item
    deadline: float


def spread(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    processes: int,
    limit_s: float,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Item, Result | Failure]]:
    """Each item with its result, which is not None, as they come. work and items are pickled; an item has `limit_s`
    seconds.

    Ends early once is_stopped says so.
    """
    waiting = deque(items)
    workers: list[_Worker[Item]] = []
    with tempfile.TemporaryDirectory() as logs:
        try:
            while (waiting or workers) and not is_stopped():
                while waiting and len(workers) < processes:
                    workers.append(_start(work, waiting.popleft(), Path(logs), limit_s))
                soonest = min(worker.deadline for worker in workers)
                wait([worker.connection for worker in workers], min(_LOOK_S, max(0.0, soonest - time.monotonic())))
                for worker in list(workers):
                    outcome: Result | Failure | None = _outcome(worker)
                    if outcome is None:
                        continue
                    yield worker.item, outcome
                    if worker.process.poll() is None and waiting:
                        _give(worker, waiting.popleft(), limit_s)
                    else:
                        _end(worker)
                        workers.remove(worker)
        finally:
            for worker in workers:
                _end(worker)


def _start(work: Callable[[Item], Result], item: Item, logs: Path, limit_s: float) -> _Worker[Item]:
    """A new process that knows nothing of this one: a fork would copy the locks of its threads, and multiprocessing's
    other ways would run its main module again, which may load the model that kernels are compiled for."""
    ours, theirs = Pipe()
    descriptor, log = tempfile.mkstemp(dir=logs)
    os.close(descriptor)
    with theirs, open(log, "a") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # the terminal's Ctrl-C is for whoever waits for the results
        )
    worker = _Worker(process=process, connection=ours, log=Path(log), item=item, deadline=0.0)
    with suppress(OSError):  # it has died; reading from it says so
        ours.send(sys.path)
        ours.send(work)
    _give(worker, item, limit_s)
    return worker


def _give(worker: _Worker[Item], item: Item, limit_s: float) -> None:
    worker.item, worker.deadline = item, time.monotonic() + limit_s
    with suppress(OSError):
        worker.connection.send(item)


def _outcome(worker: _Worker[Item]) -> Result | Failure | None:
    """What the worker has to say, None while it works. One that is too late or dead is no longer alive afterwards."""
    if worker.connection.poll():
        try:
            ok, value = worker.connection.recv()
        except (EOFError, OSError):
            code = worker.process.wait()
            return Failure(reason=_told(f"its process died: {_cause(code)}", worker.log))
        return value if ok else Failure(reason=_told(value, worker.log))
    if time.monotonic() < worker.deadline:
        return None
    worker.process.kill()
    worker.process.wait()
    return Failure(reason=_told("it took too long", worker.log))


def _cause(exit_code: int) -> str:
    if exit_code < 0:
        return signal.Signals(-exit_code).name
    return f"exit code {exit_code}"


def _told(reason: str, log: Path) -> str:
    """The reason, and of what the process wrote to stderr the lines that speak of errors, or else the last ones."""
    lines = log.read_text(errors="replace").splitlines()
    errors = [line for line in lines if "error:" in line.lower() or "assertion" in line.lower()]
    return "\n".join([reason.strip(), *(errors[:_LINES_SHOWN] or lines[-_LINES_SHOWN:])])


def _end(worker: _Worker[Item]) -> None:
    worker.connection.close()
    worker.process.kill()  # it has nothing to lose, and may be in the middle of something long
    worker.process.wait()


def _serve(connection: Connection) -> None:
    """The worker's side: items in, (True, result) or (False, what was raised) out, until the connection ends."""
    sys.path[:] = connection.recv()
    work = connection.recv()
    while True:
        try:
            item = connection.recv()
        except EOFError:
            return
        os.truncate(2, 0)
        answer: tuple[bool, Any]
        gc.disable()  # all of an item's work is in use until it is done: looking for garbage in it is in vain
        try:
            answer = True, work(item)
        except Exception as error:
            answer = False, f"{type(error).__name__}: {error}"
        gc.enable()
        connection.send(answer)


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
