"""What a job looks like in words and marks, for its row and for a line of its own. Pure; it knows no widget."""

from __future__ import annotations

from typing import Final

from runner.measures import decimal_size, time_left
from runner.tui.catalog_columns import Cell
from runner.tui.jobs import Job, JobState

MARKS: Final[dict[JobState, tuple[str, str]]] = {
    "queued": ("○", "$text-muted"),
    "running": ("↓", "$accent"),
    "paused": ("‖", "$warning"),
    "done": ("✓", "$success"),
    "failed": ("✗", "$error"),
    "cancelled": ("–", "$text-muted"),
}


def mark(job: Job) -> tuple[str, str]:
    """A sign and its colour."""
    sign, style = MARKS[job.state]
    return ("≈", style) if job.state == "running" and job.kind == "quantize" else (sign, style)


def percent(job: Job) -> str:
    """ "61 %", or "" where that is not known."""
    return f"{100 * job.share:.0f} %" if job.share is not None else ""


def numbers(job: Job) -> list[str]:
    """What is known of a running job, the most important first: percent, rate, time left, stage."""
    found = [percent(job)]
    if job.rate_bytes_s:
        found.append(f"{decimal_size(job.rate_bytes_s)}/s")
    elif job.kind == "pull" and job.stage == "download" and job.done:
        found.append("waiting for data")
    if job.eta_s is not None and job.share is not None and job.share < 1:
        found.append(f"{time_left(job.eta_s)} left")
    if job.stage and job.stage != "download":
        found.append(job.stage)
    return [one for one in found if one]


def status(job: Job) -> str:
    """What a job that has no bar to show is at, in a few words."""
    if job.stage in ("starting", "stopping"):
        return f"{job.stage}…"
    if job.stage == "restarting":
        return "begins again when it has stopped"
    at = percent(job)
    words: dict[JobState, str] = {
        "queued": "waits for its turn",
        "running": job.stage or "working…",
        "paused": f"paused at {at}" if at else "paused",
        "done": "complete" if job.kind == "pull" else "made",
        "failed": "failed",
        "cancelled": "given up",
    }
    return words[job.state]


def news(job: Job) -> str:
    """One line for those who look elsewhere: how a job ended."""
    reason = " ".join(part for part in (job.message, job.hint) if part)
    return f"{job.title}: {status(job)}" + (f". {reason}" if reason else "")


def cell(job: Job) -> Cell:
    """What the table's state column says of a model that is being fetched."""
    return Cell(f"{mark(job)[0]} {percent(job) or job.state}", "fair" if job.state == "paused" else "accent")
