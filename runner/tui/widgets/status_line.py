"""One line for narrow screens, the most wanted numbers first: state, speed, TTFT, context, memory, job.

What has no room is left out whole, the least wanted first. It is told what happens and never asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from runner.measures import binary_size, duration, time_left
from runner.status_text import context_used, gain, rate
from runner.tui.content import line
from runner.tui.job_words import percent
from runner.tui.live_numbers import LiveNumbers
from runner.tui.machine_watch import MachineSample
from runner.tui.memory_parts import memory_view
from runner.tui.messages import EngineMessage
from runner.tui.widgets.gauges import SEPARATOR
from runner.tui.widgets.speed_section import amount, phase_mark

if TYPE_CHECKING:
    from runner.tui.jobs import Job


def status_items(numbers: LiveNumbers, sample: MachineSample | None, jobs: Sequence[Job]) -> list[Content]:
    """What there is to say, the most wanted first."""
    items = [phase_mark(numbers)]
    if numbers.stage is not None:
        share = numbers.stage.share
        items.append(Content(amount(numbers.stage) if share is None else f"{100 * share:.0f} %"))
        if numbers.stage.left_s is not None:
            items.append(Content(f"{time_left(numbers.stage.left_s)} left"))
    if numbers.speed is not None:
        timings, tok_s = numbers.speed.timings, numbers.speed.shown_tok_s
        if tok_s is not None:
            items.append(Content.styled(rate(tok_s), "bold $accent"))
        if timings.ttft_s is not None:
            items.append(Content(f"TTFT {duration(timings.ttft_s)}"))
        record = numbers.speculation
        if record is not None and record.rounds and record.gain is not None:
            items.append(Content(gain(record.gain)))
        if numbers.phase == "decoding":  # after it another chat may be looked at, whose own meter is over this line
            items.append(Content(f"ctx {context_used(timings.context_tokens, numbers.speed.n_ctx)}"))
    view = None if sample is None else memory_view(sample, numbers.loaded, None)
    if view is not None:
        items.append(Content(f"{view.title} {binary_size(view.used_bytes)} of {binary_size(view.total_bytes)}"))
    return items + _job_items(jobs)


def _job_items(jobs: Sequence[Job]) -> list[Content]:
    """The job that runs, and how many wait behind it."""
    running = next((job for job in jobs if job.state == "running"), None)
    if running is None:
        return []
    mark = "↓" if running.kind == "pull" else "⚙"
    share = f" {percent(running)}".rstrip()
    waiting = sum(job.state == "queued" for job in jobs)
    more = f" +{waiting}" if waiting else ""
    return [Content.assemble(f"{mark} ", line(running.model), share + more)]


def joined(items: Sequence[Content], width: int) -> Content:
    """As many of the first items as have room, whole; the very first is cut if it must be."""
    shown = Content("")
    for item in items:
        longer = item if not shown.plain else Content.assemble(shown, SEPARATOR, item)
        if longer.cell_length > width:
            return shown if shown.plain else item.truncate(width, ellipsis=True)
        shown = longer
    return shown


class StatusLine(Static):
    """Methods are called in the UI's thread."""

    DEFAULT_CSS = """
    StatusLine { height: 1; width: 1fr; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(
        self,
        *,
        id: str | None = "status-line",
        classes: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("", id=id, classes=classes)
        self._clock = clock
        self._numbers = LiveNumbers()
        self._sample: MachineSample | None = None
        self._jobs: Sequence[Job] = ()
        self._drawn = Content("")

    def on_engine(self, message: EngineMessage) -> None:
        """The engine of the chat did something."""
        if self._numbers.take(message, self._clock()):
            self._redraw()

    def on_machine(self, sample: MachineSample) -> None:
        """What the machine is doing, once a second."""
        self._sample = sample
        self._numbers.pass_time(self._clock())
        self._redraw()

    def on_jobs(self, jobs: Sequence[Job]) -> None:
        """A download or quantization moved."""
        self._jobs = jobs
        self._redraw()

    def on_resize(self, _event: Resize) -> None:
        self._redraw()

    def _redraw(self) -> None:
        shown = joined(status_items(self._numbers, self._sample, self._jobs), self.content_size.width)
        if not shown.is_same(self._drawn):
            self._drawn = shown
            self.update(shown, layout=False)
