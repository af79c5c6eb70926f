"""What the user wants of a download or a quantization, for every screen that lists them: done, or asked about first.

It knows no row and no process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from textual.app import App

from runner.measures import decimal_size
from runner.tui.job_words import percent
from runner.tui.jobs import Job, JobQueue
from runner.tui.screens.confirm import Confirm
from runner.tui.widgets.job_list import JobList, JobMessage

_SMALL_BYTES: Final = 100_000_000  # what is fetched again while one would read the question


def carry_out(app: App[Any], jobs: JobQueue, message: JobMessage) -> None:
    """Do what is wanted of a job; one that has come far is given up only when the user says so again."""
    wishes: dict[type[JobMessage], Callable[[str], None]] = {
        JobList.Pause: jobs.pause,
        JobList.Resume: jobs.resume,
        JobList.Cancel: jobs.cancel,
        JobList.Retry: jobs.retry,
        JobList.Forget: jobs.forget,
    }
    wish = wishes[type(message)]
    job = next((job for job in jobs.jobs if job.id == message.id), None)
    loss = lost_with(job) if job is not None and isinstance(message, JobList.Cancel) else ""
    if job is None or not loss:
        wish(message.id)
        return
    question = Confirm(f"Give up {job.title}?", loss, yes="Give up", is_grave=True)
    app.push_screen(question, lambda is_meant: wish(message.id) if is_meant else None)


def lost_with(job: Job) -> str:
    """What giving up a job would destroy, in a sentence; "" where that is little."""
    if job.kind == "quantize":
        at = f"It is at {percent(job)}, and begins" if percent(job) else "It begins"
        return f"{at} anew next time." if job.done else ""
    if job.done < _SMALL_BYTES:
        return ""
    at = f" ({percent(job)})" if percent(job) else ""
    keep = " A pause would keep them." if job.can_pause else ""
    return f"The {decimal_size(job.done)} that were fetched{at} are deleted.{keep}"
