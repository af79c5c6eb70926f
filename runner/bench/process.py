"""The parent's half of a bench: a fresh process with one model, which is loaded, talked with and measured.

Everything about the child, its death and its silence is EngineProcess's; this file knows what more may be asked of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeVar, cast

from runner.bench import tasks
from runner.bench.tasks import Bandwidth, Chosen, GenreSample, GenreTask, Sample, SelfCheck, Task, Vitals
from runner.config import LoadOptions
from runner.engine_process import EngineProcess
from runner.errors import EngineDied
from runner.events import Event
from runner.paths import Paths
from runner.types import CancelToken
from runner.wire import to_plain

T = TypeVar("T")


class BenchProcess(EngineProcess):
    """An EngineProcess that measures. A set `cancel` stops what it does within 200 ms; it then raises RunnerError."""

    child_module = "runner.bench.child"

    def __init__(self, paths: Paths, cancel: CancelToken) -> None:
        super().__init__(paths)
        self._token = cancel
        self._is_expendable = False  # what the child does looks for no token, and leaves nothing behind

    def measure(self, task: Task) -> Sample:
        return self._answer(Sample, {"op": "measure", "task": to_plain(task)})

    def measure_genre(self, task: GenreTask) -> GenreSample:
        return self._answer(GenreSample, {"op": "measure_genre", "task": to_plain(task)})

    def check(self) -> SelfCheck:
        return self._answer(SelfCheck, {"op": "check"})

    def vitals(self) -> Vitals:
        return self._answer(Vitals, {"op": "vitals"})

    def bandwidth(self, kind: Literal["cpu", "cuda", "rocm", "metal"], index: int) -> Bandwidth:
        """How fast the memory of that device is read. No model should be loaded. Raises RunnerError."""
        if self.pid is None:
            self._start()
        self._is_expendable = True
        try:
            return self._answer(Bandwidth, {"op": "bandwidth", "kind": kind, "index": index})
        finally:
            self._is_expendable = False

    def choose(self, model: str, options: LoadOptions, *, offline: bool) -> Iterator[Event | Chosen]:
        """Which backend chats would use, fetching the model if need be; Chosen comes last. Raises RunnerErrors."""
        if self.pid is None:
            self._start()
        request = {"op": "choose", "model": model, "options": to_plain(options), "offline": offline}
        yield from cast("Iterator[Event | Chosen]", self._events(request))

    def event_type(self, name: str) -> type[Event]:
        own = getattr(tasks, name, None)
        return super().event_type(name) if own is None else cast(type[Event], own)

    def _answer(self, kind: type[T], request: dict[str, Any]) -> T:
        """The one event that answers a request."""
        answers = [event for event in self._events(request) if isinstance(event, kind)]
        if len(answers) != 1:
            raise EngineDied("The process that measures gave no answer.", hint="`runner logs` may have more.")
        return answers[0]

    def _check_patience(self, heard_at: float) -> None:
        """Looks for the token as often as for a dead child: it may be set in another thread, or by a signal."""
        if self._token.is_cancelled and self._is_expendable:
            self.kill()
            raise self._died("The benchmark was cancelled.")
        if self._token.is_cancelled:
            self.cancel()
        super()._check_patience(heard_at)
