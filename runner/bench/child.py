"""The process that holds a model for a bench: an engine process that also times tasks, checks itself and its memory.

Started by process.py as `python -m runner.bench.child PATHS`. It knows nothing of who asks or what for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runner.bench.bandwidth import read_bandwidth
from runner.bench.measure import Meter
from runner.bench.tasks import Task
from runner.engine_child import Child, Outbox, main
from runner.paths import Paths
from runner.types import CancelToken
from runner.wire import from_plain


class BenchChild(Child):
    """Answers four more requests, each with one event."""

    def __init__(self, paths: Paths, outbox: Outbox) -> None:
        super().__init__(paths, outbox)
        self._meter: Meter | None = None

    def perform(self, message: dict[str, Any], cancel: CancelToken) -> Any:
        if message["op"] in ("measure", "check", "vitals", "bandwidth"):
            return self._measured(message, cancel)
        self._meter = None
        return super().perform(message, cancel)

    def _measured(self, message: dict[str, Any], cancel: CancelToken) -> Iterator[object]:
        if message["op"] == "bandwidth":
            yield read_bandwidth(message["kind"], message["index"])
            return
        if self._meter is None:
            self._meter = Meter(self.engine.backend)
        if message["op"] == "measure":
            yield self._meter.measure(from_plain(Task, message["task"]), cancel)
        elif message["op"] == "check":
            yield self._meter.check(cancel)
        else:
            yield self._meter.vitals()


if __name__ == "__main__":
    main(BenchChild)
