"""The engine process itself: reads requests as lines of JSON, runs them on an Engine, writes events as lines of JSON.

Started by engine_process.py as `python -m runner.engine_child PATHS`. It leaves at once when its input ends, which is
how it learns that its parent has died. While nobody asks for anything it gets ready for what may be asked. It knows
nothing of who reads its events.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from runner.config import ChatOptions, LoadOptions, SamplingParams
from runner.engine import Engine
from runner.engine_process import HEARTBEAT_S
from runner.errors import RunnerError
from runner.events import Loaded
from runner.log import start_logging
from runner.paths import Paths
from runner.running import announce
from runner.types import CancelToken, Message
from runner.wire import from_plain, to_plain

log = logging.getLogger(__name__)

_QUIET_S: Final = 0.3  # after a request: who has another one asks for it at once, and would wait for what was begun


class Outbox:
    """Writes messages to the parent, a line each. on_gone: called when nobody reads them any more."""

    def __init__(self, descriptor: int, on_gone: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._on_gone = on_gone
        self._lock = threading.Lock()

    def event(self, request: int, event: object) -> None:
        self.write({"id": request, "event": type(event).__name__, "value": to_plain(event)})

    def done(self, request: int, error: RunnerError | None, *, is_loaded: bool) -> None:
        """A request is over. is_loaded: whether there is a model that answers the next one."""
        plain = error and {"class": type(error).__name__, "message": error.message, "hint": error.hint}
        self.write({"id": request, "error": plain, "is_loaded": is_loaded})

    def write(self, message: dict[str, Any]) -> None:
        data = memoryview(json.dumps(message).encode() + b"\n")
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:  # the parent is gone
                self._on_gone()


class _Inbox:
    """Reads the parent's messages in a thread: requests are queued, a cancel takes effect at once."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[dict[str, Any], CancelToken]] = queue.SimpleQueue()
        self._tokens: dict[int, CancelToken] = {}
        self._meanwhile = CancelToken()

    def next(self, meanwhile: Callable[[CancelToken], Iterator[None]]) -> tuple[dict[str, Any], CancelToken]:
        """The next request. What is done `meanwhile`, a piece at a time, is cancelled once there is one."""
        self._meanwhile = cancel = CancelToken()
        with suppress(queue.Empty):
            return self._requests.get(timeout=_QUIET_S)
        for _ in meanwhile(cancel):
            with suppress(queue.Empty):
                return self._requests.get_nowait()
        return self._requests.get()

    def read(self, stream: Any, on_end: Callable[[], None]) -> None:
        """Read to the end of the input. A line that cannot be read ends it as well: nobody knows what was asked."""
        try:
            for line in stream:
                self._take(json.loads(line))
        except Exception:
            log.exception("a request cannot be read")
        on_end()

    def _take(self, message: dict[str, Any]) -> None:
        if message["op"] == "cancel":
            if token := self._tokens.get(message["id"]):
                token.cancel()
            return
        self._tokens = {message["id"]: CancelToken()}
        self._requests.put((message, self._tokens[message["id"]]))
        self._meanwhile.cancel()


class Child:
    """Runs requests one after another."""

    def __init__(self, paths: Paths, outbox: Outbox) -> None:
        self.engine = Engine(paths)
        self._outbox = outbox
        self._paths = paths
        self._announced: Path | None = None

    def run(self, message: dict[str, Any], cancel: CancelToken) -> None:
        request = message["id"]
        failure: RunnerError | None = None
        try:
            for event in self.perform(message, cancel):
                self._outbox.event(request, event)
                if isinstance(event, Loaded):
                    self._announce(event)
                elif self.engine.loaded is None:
                    self.withdraw()
        except RunnerError as error:
            failure = error
        except Exception as error:
            log.exception("request %s failed", message["op"])
            failure = RunnerError(
                f"The engine failed: {type(error).__name__}: {error}",
                hint=f"Please report it; the details are in {self._paths.log_file}.",
            )
        if self.engine.loaded is None:
            self.withdraw()
        self._outbox.done(request, failure, is_loaded=self.engine.loaded is not None)

    def perform(self, message: dict[str, Any], cancel: CancelToken) -> Any:
        """The events that answer a request."""
        if message["op"] == "load":
            options = from_plain(LoadOptions, message["options"])
            return self.engine.load(message["model"], options, offline=message["offline"], cancel=cancel)
        if message["op"] == "chat":
            return self.engine.chat(
                [from_plain(Message, item) for item in message["messages"]],
                from_plain(SamplingParams, message["params"]),
                from_plain(ChatOptions, message["options"]),
                cancel=cancel,
            )
        if message["op"] == "unload":
            self.engine.unload()
            return ()
        raise RunnerError(f"The engine does not know the request {message['op']!r}.")

    def get_ready(self, cancel: CancelToken) -> Iterator[None]:
        """What is done while nobody asks for anything, a piece at a time."""
        return self.engine.get_ready(cancel)

    def _announce(self, event: Loaded) -> None:
        """Appear in `runner ps`; where no file can be written, the model runs without."""
        self.withdraw()
        info = event.info
        try:
            self._announced = announce(
                self._paths.engines,
                model=info.name,
                backend=info.backend,
                quantization=info.quantization,
                device=info.device,
                n_ctx=info.n_ctx,
                memory_bytes=event.memory.total_bytes,
                path=str(self.engine.weights or ""),
            )
        except OSError as error:
            log.warning("not in the list of running engines: %s", error)

    def withdraw(self) -> None:
        announced, self._announced = self._announced, None
        if announced is not None:
            with suppress(OSError):  # `running` removes what is left of a dead engine
                announced.unlink(missing_ok=True)


def _private_stdout() -> int:
    """A descriptor that reaches the parent; what anything else prints to stdout goes to stderr instead."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    return descriptor


def main(make_child: Callable[[Paths, Outbox], Child] = Child) -> None:
    faulthandler.enable()
    os.environ["GGML_NO_BACKTRACE"] = "1"  # a failing library must not start a debugger on us
    for number in (signal.SIGINT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    paths = from_plain(Paths, json.loads(sys.argv[1]))
    os.environ.setdefault("TRITON_CACHE_DIR", str(paths.kernels))  # unless the user keeps them elsewhere
    start_logging(paths, verbose=False)

    def leave() -> None:
        child.withdraw()
        os._exit(0)

    outbox = Outbox(_private_stdout(), leave)
    child = make_child(paths, outbox)
    inbox = _Inbox()

    def beat() -> None:
        while True:
            outbox.write({})
            time.sleep(HEARTBEAT_S)

    threading.Thread(target=inbox.read, args=(sys.stdin.buffer, leave), name="inbox", daemon=True).start()
    threading.Thread(target=beat, name="heartbeat", daemon=True).start()
    while True:
        child.run(*inbox.next(child.get_ready))


if __name__ == "__main__":
    main()
