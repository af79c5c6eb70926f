"""The process that holds a model for a bench: an engine process that also times tasks and checks itself.

Started by process.py as `python -m runner.bench.child PATHS`. It knows nothing of who asks or what for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runner.backends import choose
from runner.bench.bandwidth import read_bandwidth
from runner.bench.genre_meter import GenreMeter
from runner.bench.measure import Meter
from runner.bench.tasks import Chosen, GenreTask, Task
from runner.config import LoadOptions
from runner.engine_child import Child, Outbox, main
from runner.errors import UnsupportedModel
from runner.paths import Paths
from runner.prepare import ready
from runner.registry import Registry
from runner.types import CancelToken
from runner.wire import from_plain


class BenchChild(Child):
    """Answers more requests, each with one event; choosing a backend may tell of files that are fetched before."""

    def __init__(self, paths: Paths, outbox: Outbox) -> None:
        super().__init__(paths, outbox)
        self._send = outbox.event
        self._meter: Meter | None = None
        self._genres: GenreMeter | None = None

    def perform(self, message: dict[str, Any], cancel: CancelToken) -> Any:
        if message["op"] == "choose":
            return self._chosen(message, cancel)
        if message["op"] in ("measure", "measure_genre", "check", "vitals", "bandwidth"):
            return self._measured(message, cancel)
        self._meter = self._genres = None
        return super().perform(message, cancel)

    def get_ready(self, _cancel: CancelToken) -> Iterator[None]:
        """Nothing: while one process is asked for nothing another one is measured."""
        return iter(())

    def _chosen(self, message: dict[str, Any], cancel: CancelToken) -> Iterator[Chosen]:
        files = ready(
            Registry.load_for(self._paths).resolve(message["model"]),
            offline=message["offline"],
            on_event=lambda event: self._send(message["id"], event),
            cancel=cancel,
        )
        yield Chosen(backend=choose(files, from_plain(LoadOptions, message["options"])).name)

    def _measured(self, message: dict[str, Any], cancel: CancelToken) -> Iterator[object]:
        if message["op"] == "bandwidth":
            yield read_bandwidth(message["kind"], message["index"])
            return
        if self._meter is None:
            self._meter = Meter(self.engine.backend)
        if message["op"] == "measure":
            yield self._meter.measure(from_plain(Task, message["task"]), cancel)
        elif message["op"] == "measure_genre":
            yield self._genre_meter().measure(from_plain(GenreTask, message["task"]), cancel)
        elif message["op"] == "check":
            yield self._meter.check(cancel)
        else:
            yield self._meter.vitals()

    def _genre_meter(self) -> GenreMeter:
        if self._genres is None:
            drafting = self.engine.drafting
            if drafting.speculator is None:
                raise UnsupportedModel(f"nothing drafts: {drafting.choice.reason}", hint="`runner explain` has more.")
            self._genres = GenreMeter(self.engine.backend, drafting)
        return self._genres


if __name__ == "__main__":
    main(BenchChild)
