"""A benchmark in a thread of its own, its events as messages, and its run kept in the history as `runner bench` does.

It knows no widget.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from textual.message import Message

from runner.bench.events import BenchEvent, BenchFinished
from runner.bench.record import BenchRun
from runner.bench.request import BenchRequest
from runner.bench.run import Bench
from runner.bench.store import History, append_run, read_history
from runner.errors import RunnerError
from runner.inventory import local_models
from runner.paths import Paths
from runner.tui.services import Services
from runner.types import CancelToken

_log = logging.getLogger(__name__)


@dataclass
class BenchSeen(Message):
    """Something happened in the benchmark that runs."""

    event: BenchEvent


@dataclass
class BenchKept(Message):
    """The benchmark is over. run None: nothing was measured, for `error`, or because it was stopped.

    history: as it is now, None where it cannot be read. error beside a run: it could not be kept.
    """

    run: BenchRun | None
    history: History | None
    error: RunnerError | None


@dataclass
class HistoryRead(Message):
    """models: names of what is on this machine. history: every run that is kept."""

    models: tuple[str, ...]
    history: History
    error: RunnerError | None


class BenchThread:
    """One benchmark. post: takes messages from any thread; BenchKept comes last."""

    def __init__(self, request: BenchRequest, paths: Paths, post: Callable[[Message], object]) -> None:
        self._request = request
        self._paths = paths
        self._post = post
        self._token = CancelToken()
        self._thread = threading.Thread(target=self._work, name="bench", daemon=True)
        self._bench: Bench | None = None
        self._is_kept = threading.Lock()  # locked once somebody keeps the run, for ever

    def start(self) -> None:
        self._thread.start()

    @staticmethod
    def pids() -> tuple[int, ...]:
        """The processes that measure: all that this one has begun. It looks at every process of the machine."""
        return tuple(child.pid for child in psutil.Process().children(recursive=True))

    def cancel(self) -> None:
        """Stop soon; what was measured until then is a partial run."""
        self._token.cancel()

    def wait(self, timeout_s: float) -> None:
        """Wait until it has stopped, and keep what was measured where it has not: a driver may hang. To be cancelled
        before."""
        if self._thread.ident is not None:  # a signal may come before it is started
            self._thread.join(timeout_s)
        run = self._bench.so_far() if self._thread.is_alive() and self._bench is not None else None
        if run is not None:
            _log.warning("the benchmark did not stop in time: what it had measured is kept")
            with suppress(RunnerError):  # nobody is there to be told
                self._keep(run)

    def _keep(self, run: BenchRun) -> None:
        """Add the run to the history, if it is not there. Raises RunnerError."""
        if self._is_kept.acquire(blocking=False):
            append_run(self._paths.bench_history, run)

    def _work(self) -> None:
        run: BenchRun | None = None
        error: RunnerError | None = None
        try:
            self._bench = Bench(self._request, self._paths, self._token)
            for event in self._bench.events():
                if isinstance(event, BenchFinished):
                    run = event.run
                else:
                    self._post(BenchSeen(event))
            if run is not None:
                self._keep(run)
        except RunnerError as raised:
            error = None if self._token.is_cancelled and run is None else raised
        except Exception as raised:  # our own mistakes are said too, and the screen goes on
            _log.exception("the benchmark failed")
            error = RunnerError(f"The benchmark failed: {type(raised).__name__}: {raised}", hint="See `runner logs`.")
        history: History | None = None
        with suppress(RunnerError):
            history = read_history(self._paths.bench_history)
        self._post(BenchKept(run, history, error))


def models_and_history(services: Services) -> HistoryRead:
    """What can be measured, and what was. Reads the disk."""
    models: tuple[str, ...] = ()
    history, error = History(), None
    try:
        models = tuple(one.name for one in local_models(services.registry()) if one.state == "complete")
        history = read_history(services.paths.bench_history)
    except RunnerError as raised:
        error = raised
    except OSError as raised:
        error = RunnerError(f"The models cannot be listed: {raised.strerror or raised}.")
    return HistoryRead(models, history, error)


def model_of(run: BenchRun, services: Services) -> str:
    """What to call the model of a run now: its name, or its files where it was named by a path. Reads the disk."""
    try:
        services.registry().resolve(run.model)
    except RunnerError:
        first = Path(run.files[0].path) if run.files else None
        if first is not None and first.exists():
            return str(first.parent if run.format in ("safetensors", "packed") else first)
    return run.model
