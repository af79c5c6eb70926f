"""An evaluation in a process of its own: native code that aborts is an error here, and Ctrl+C ends it at once.

The parent sends the request as a line of JSON and reads events, then the report or an error, as lines of JSON. It
knows nothing of how a model is measured.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

from runner.engine_process import temporary_file
from runner.errors import EngineDied, RunnerError, error_class
from runner.evaluation.report import Measuring, Report, Request
from runner.events import LoadEvent, Notice, Progress
from runner.log import start_logging
from runner.paths import Paths
from runner.wire import from_plain, to_plain

log = logging.getLogger(__name__)

EvaluationEvent = LoadEvent | Measuring
_EVENTS: dict[str, type[Progress | Notice | Measuring]] = {
    "Progress": Progress,
    "Notice": Notice,
    "Measuring": Measuring,
}
_PATIENCE_S = 2.0  # for the child to clean up after an interrupt


def evaluate_apart(request: Request, paths: Paths, on_event: Callable[[EvaluationEvent], None]) -> Report:
    """`evaluate` in a child process, which ends with this call however that ends.

    Raises the RunnerErrors of the child, EngineDied when it died without one.
    """
    with temporary_file() as stderr, _child(stderr) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(BrokenPipeError):  # it is dead already: its output, which has ended, says so
            child.stdin.write(json.dumps({"request": to_plain(request), "paths": to_plain(paths)}).encode() + b"\n")
            child.stdin.flush()
        for line in child.stdout:
            message = json.loads(line)
            if (error := message.get("error")) is not None:
                raise error_class(error["class"])(error["message"], hint=error["hint"])
            if (report := message.get("report")) is not None:
                return from_plain(Report, report)
            on_event(from_plain(_EVENTS[message["event"]], message["value"]))
        raise _death(child.wait(), stderr)


@contextmanager
def _child(stderr: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-P", "-m", "runner.evaluation.process"]
    # A session of its own: the terminal's Ctrl+C is for this process, which hands it on.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
    ) as child:
        try:
            yield child
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                child.wait(_PATIENCE_S)
            raise
        finally:
            child.kill()
            with suppress(BrokenPipeError):
                assert child.stdin is not None
                child.stdin.close()


def _death(status: int, stderr: IO[bytes]) -> EngineDied:
    stderr.seek(0)
    said = stderr.read().decode("utf-8", "replace").strip()
    log.error("the evaluation ended with status %d: %s", status, said[-4000:])
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return EngineDied(
        f"The process that measured {how}.",
        hint="Memory may be short: try --two-pass or a smaller --window. `runner logs` has what it said.",
    )


# --- the child -------------------------------------------------------------------------------------------------------


def main() -> None:
    """Read one request, answer it, and leave; leave too when the parent does."""
    faulthandler.enable()
    os.environ["GGML_NO_BACKTRACE"] = "1"  # a failing library must not start a debugger on us
    descriptor = os.dup(1)  # what anything else prints to stdout goes to stderr instead
    os.dup2(2, 1)
    asked = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    paths = from_plain(Paths, asked["paths"])
    os.environ.setdefault("TRITON_CACHE_DIR", str(paths.kernels))  # unless the user keeps them elsewhere
    start_logging(paths)

    def send(message: dict[str, Any]) -> None:
        try:
            os.write(descriptor, json.dumps(message).encode() + b"\n")
        except OSError:
            os._exit(1)

    try:
        send(_answer(from_plain(Request, asked["request"]), paths, send))
    except KeyboardInterrupt:
        os._exit(130)


def _answer(request: Request, paths: Paths, send: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    from runner.evaluation.evaluate import evaluate

    def emit(event: EvaluationEvent) -> None:
        send({"event": type(event).__name__, "value": to_plain(event)})

    try:
        return {"report": to_plain(evaluate(request, paths, emit))}
    except RunnerError as error:
        return _plain_error(error)
    except MemoryError:
        return _plain_error(
            RunnerError("Memory ran out.", hint="Try --two-pass, a smaller --window, or a smaller model.")
        )
    except Exception as error:
        log.exception("the evaluation failed")
        return _plain_error(
            RunnerError(f"The evaluation failed: {type(error).__name__}: {error}", hint="`runner logs` has more.")
        )


def _plain_error(error: RunnerError) -> dict[str, Any]:
    return {"error": {"class": type(error).__name__, "message": error.message, "hint": error.hint}}


def _leave_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main()
