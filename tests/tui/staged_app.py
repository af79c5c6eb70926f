"""The real app on a stage where nothing is left to chance: news come from the test, not from an engine or this machine.

Every screen and widget is the real one. What stands in is what would differ from run to run: the engine's process, the
watch over the machine, the checks of this machine, and the day.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, date, datetime
from typing import Any

from live_samples import gpu_sample, loaded, machine
from textual.pilot import Pilot
from textual.timer import Timer

from runner.config import LoadOptions
from runner.doctor import Check
from runner.errors import RunnerError
from runner.paths import Paths
from runner.transcript import Turn
from runner.tui import app as app_module
from runner.tui.app import RunnerApp
from runner.tui.chat_engine import ChatEngine
from runner.tui.exact_fit import explain
from runner.tui.messages import LoadEnded
from runner.tui.widgets.transcript import Transcript

SIZES = ((200, 60), (120, 40), (80, 24), (40, 12))
NOON = datetime(2026, 3, 14, 12, 3, tzinfo=UTC).timestamp()
CHECKS = (
    Check(name="Python", status="ok", detail="3.12.3"),
    Check(name="GPU", status="ok", detail="NVIDIA H200: 139 of 141 GiB free"),
    Check(
        name="llama.cpp",
        status="warning",
        detail="compiled for the processor alone",
        remedy="make install CMAKE_ARGS=-DGGML_CUDA=on",
    ),
    Check(name="disk", status="error", detail="1.2 GB free for models", remedy="Delete what is not needed: runner du"),
)
ANSWER = """The epilogue adds the bias, applies **SiLU** and multiplies by the gate while the sums are in registers.

1. Nothing is written between the product and the next kernel.
2. A norm costs no kernel of its own.

```python
def gate(lo, hi):
    return lo * sigmoid(lo) * hi  # one pass
```

| kernel | us |
|---|---:|
| product | 17.8 |
| gate | 0.0 |
"""
TIMINGS = {
    "prompt_tokens": 412,
    "completion_tokens": 96,
    "ttft_s": 0.084,
    "prefill_s": 0.08,
    "decode_s": 0.67,
    "total_s": 0.75,
}
TURNS = (
    Turn(role="user", content="Explain the fused epilogue of a GEMM.", created_at=NOON),
    Turn(
        role="assistant",
        content=ANSWER,
        reasoning="They ask about CODA.\nI should say what is saved.",
        model="Qwen3-8B",
        timings=TIMINGS,
        created_at=NOON + 1,
    ),
)


class OneDay(date):
    """The calendar of the stage."""

    @classmethod
    def today(cls) -> OneDay:
        return cls(2026, 11, 21)


class StillEngine(ChatEngine):
    """The chat's engine without a thread and without a process: what it does is what the test posts."""

    def start(self) -> None:
        pass

    def open(self, model: str, _options: LoadOptions | None = None) -> None:
        self.model = model

    def close(self) -> None:
        pass

    def wait(self, timeout_s: float) -> None:
        pass


class StillWatch:
    """No thread: the test posts samples."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


_explained: dict[str, Mapping[str, Any] | RunnerError | None] = {}


def explained_once(name: str, paths: Paths, *, offline: bool, is_cancelled: Callable[[], bool]) -> Any:
    """What `runner explain` says of a model, asked once by all tests: its process takes seconds."""
    if name not in _explained:
        try:
            _explained[name] = explain(name, paths, offline=offline, is_cancelled=is_cancelled)
        except RunnerError as error:
            _explained[name] = error
    found = _explained[name]
    if isinstance(found, RunnerError):
        raise found
    if found is None:  # it was cancelled
        del _explained[name]
    return found


def on_stage(app: RunnerApp, size: tuple[int, int], play: Callable[[Pilot[int]], Awaitable[None]]) -> None:
    """Run the app at this size, and `play` on it."""

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await settle(pilot)
            for transcript in app.screen.query(Transcript):
                transcript._now = lambda: NOON + 60
            await play(pilot)

    asyncio.run(run())


async def settle(pilot: Pilot[int]) -> None:
    """Wait until threads are done, no screen waits for a clock before it begins one, and nothing moves."""
    while True:
        await pilot.app.workers.wait_for_complete()
        for _ in range(3):
            await pilot.pause()
        is_waiting = isinstance(getattr(pilot.app.screen, "_waiting", None), Timer)
        if not is_waiting and all(worker.is_finished for worker in pilot.app.workers):
            return
        await pilot.pause(0.02)


async def with_model(pilot: Pilot[int]) -> None:
    """A model is loaded on a GPU, and the machine was looked at once."""
    pilot.app.chat_engine.model = "Qwen3-8B"
    pilot.app.post_message(LoadEnded("ready", "Qwen3-8B", loaded()))
    pilot.app.post_message(app_module._MachineSeen(machine(gpu_sample())))
    await settle(pilot)
