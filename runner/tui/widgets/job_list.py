"""Downloads and quantizations, two lines each: how far they are, and what can be done about them.

It shows the jobs that it is given and posts what the user wants of one; it knows no queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from runner.measures import wrap
from runner.safe_text import safe_line
from runner.tui.content import line
from runner.tui.job_words import mark, numbers, percent, status
from runner.tui.jobs import Job
from runner.tui.widgets.gauges import gauge
from runner.tui.widgets.live_section import LiveSection

_LEAST_BAR: Final = 8
_MOST_BAR: Final = 40
_MOST_LINES: Final = 3  # of a reason, where the job has not the focus
_WIDE: Final = 40  # columns from which a repository's owner is shown


@dataclass
class JobMessage(Message):
    """The user wants something of a job."""

    id: str


class JobButton(Static):
    """A sign that can be clicked. wish: the action of its row that it means."""

    def __init__(self, sign: str, wish: str, tooltip: str) -> None:
        super().__init__(Content(f" {sign}"))
        self.wish = wish
        self.tooltip = tooltip


class JobDetail(LiveSection):
    """The second line: a bar with numbers, or words; a failure, and what holds a download up, take more lines.

    is_whole: as many as it takes.
    """

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job
        self._is_whole = False

    def show(self, job: Job, *, is_whole: bool) -> None:
        self._job, self._is_whole = job, is_whole
        self.redraw()

    def rows(self, width: int) -> Sequence[Content]:
        job = self._job
        if job.state == "running" and job.share is not None and not job.is_stopping:
            trouble = wrap(safe_line(job.trouble), width).split("\n") if job.trouble else []
            return [_bar_line(job, width), *(line(one, "$text-warning") for one in trouble[:_MOST_LINES])]
        reason = " ".join(part for part in (job.message, job.hint) if part and job.state in ("failed", "done"))
        if job.state == "cancelled" and job.message:
            reason = job.message
        said = f"{status(job)}: {reason}" if reason else status(job)
        lines = wrap(safe_line(said), width).split("\n")
        if len(lines) > _MOST_LINES and not self._is_whole:
            lines = [*lines[: _MOST_LINES - 1], " ".join(lines[_MOST_LINES - 1 :])]
        style = "$text-error" if job.state == "failed" else "$text-muted"
        return [line(one, style) for one in lines]


def _bar_line(job: Job, width: int) -> Content:
    """A bar and as many numbers as there is room for."""
    kept = numbers(job)[1:]
    while kept and width - len("  ".join(kept)) - 2 < _LEAST_BAR:
        kept.pop()
    text = "  ".join(safe_line(one) for one in kept)
    bar = min(_MOST_BAR, width - len(text) - (2 if text else 0))
    return Content.assemble(
        gauge(job.share or 0.0, max(1, bar), "$accent"), "  " if text else "", (text, "$text-muted")
    )


class JobRow(Widget, can_focus=True):
    """One job."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,p", "pause", "Pause"),
        Binding("space,p", "resume", "Go on"),
        Binding("r", "retry", "Retry"),
        Binding("x,delete", "cancel", "Give up"),
        Binding("x,delete", "forget", "Take away"),
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
    ]

    def __init__(self, job: Job) -> None:
        super().__init__(id=f"job-{job.id}")
        self.job = job

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Static("", classes="title")
            yield Static("", classes="percent")
            yield JobButton("‖", "pause", "Pause")
            yield JobButton("▸", "resume", "Go on")
            yield JobButton("↻", "retry", "Try again")
            yield JobButton("✕", "cancel", "Give it up")
            yield JobButton("✕", "forget", "Take it out of the list")
        yield JobDetail(self.job)

    def on_mount(self) -> None:
        self.show(self.job)

    def on_resize(self) -> None:
        self.show(self.job)

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self.show(self.job)
        if has_focus:
            self.call_after_refresh(self.scroll_visible, animate=False)  # it may be higher now

    async def on_click(self, event: events.Click) -> None:
        event.stop()
        if isinstance(event.widget, JobButton):
            await self.run_action(event.widget.wish)

    def show(self, job: Job) -> None:
        """The job as it is now."""
        if self.has_focus and job.state != self.job.state:
            self.refresh_bindings()  # other keys do something now
        self.job = job
        if not self.query(".title"):
            return  # it is not composed yet, and shows this job once it is
        sign, style = mark(job)
        name = job.title if self.size.width >= _WIDE else job.title.rpartition("/")[2]
        title = Content.assemble((sign, style), " ", line(name))
        self.query_one(".title", Static).update(title)
        shown = percent(job) if job.state in ("running", "paused") else ""
        self.query_one(".percent", Static).update(Content(f" {shown}" if shown else ""))
        can = (job.can_pause, job.can_resume, job.can_retry, not job.can_forget, job.can_forget)
        for button, is_shown in zip(self.query(JobButton), can, strict=True):
            button.display = is_shown
        self.query_one(JobDetail).show(job, is_whole=self.has_focus)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        job = self.job
        wanted = {
            "pause": job.can_pause,
            "resume": job.can_resume,
            "retry": job.can_retry,
            "cancel": not job.can_forget,
            "forget": job.can_forget,
        }
        return wanted.get(action, True)

    def action_move(self, by: int) -> None:
        """To the next job, or the one before; above the first is what stands over the list, below the last nothing."""
        rows = list(self.screen.query(JobRow))
        index = rows.index(self) + by
        if index < 0:
            self.screen.focus_previous()
        elif index < len(rows):
            rows[index].focus()

    def action_pause(self) -> None:
        self.post_message(JobList.Pause(self.job.id))

    def action_resume(self) -> None:
        self.post_message(JobList.Resume(self.job.id))

    def action_retry(self) -> None:
        self.post_message(JobList.Retry(self.job.id))

    def action_cancel(self) -> None:
        self.post_message(JobList.Cancel(self.job.id))

    def action_forget(self) -> None:
        self.post_message(JobList.Forget(self.job.id))


class JobList(VerticalScroll, can_focus=False):
    """All jobs, the first at the top. It takes no room while there are none."""

    DEFAULT_CSS = """
    JobList { height: auto; max-height: 12; scrollbar-size-vertical: 1; }
    JobList.-empty { display: none; }
    JobList JobRow { height: auto; padding: 0 1; }
    JobList JobRow:focus { background: $block-cursor-blurred-background; }
    JobList JobRow:hover { background: $block-hover-background; }
    JobList JobRow Horizontal { height: 1; }
    JobList .title { width: 1fr; height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    JobList .percent { width: auto; height: 1; color: $text-muted; }
    JobList JobButton { width: 2; height: 1; color: $text-muted; pointer: pointer; }
    JobList JobButton:hover { color: $text; text-style: bold; }
    """

    @dataclass
    class Pause(JobMessage):
        pass

    @dataclass
    class Resume(JobMessage):
        pass

    @dataclass
    class Cancel(JobMessage):
        """Give it up: what is unfinished of it goes."""

    @dataclass
    class Retry(JobMessage):
        pass

    @dataclass
    class Forget(JobMessage):
        """Take it out of the list; it has ended."""

    def on_mount(self) -> None:
        self.set_class(not self.query(JobRow), "-empty")

    def show(self, jobs: Sequence[Job]) -> None:
        """The jobs as they are now; rows that are still there change in place."""
        rows = {row.job.id: row for row in self.query(JobRow)}
        wanted = [job.id for job in jobs]
        for gone in [row for job_id, row in rows.items() if job_id not in wanted]:
            gone.remove()
        for job in jobs:
            if job.id in rows:
                rows[job.id].show(job)
            else:
                row = JobRow(job)
                self.mount(row)
                if rows:  # low lists show one or two: what was asked for last is what one looks for
                    row.call_after_refresh(row.scroll_visible, animate=False)
        self.set_class(not jobs, "-empty")
