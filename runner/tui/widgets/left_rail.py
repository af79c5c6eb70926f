"""The chat's left rail: kept chats, the models that are here, downloads.

It holds them together and knows nothing of what they show.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from runner.tui.jobs import Job
from runner.tui.widgets.job_list import JobList
from runner.tui.widgets.models_here import ModelsHere
from runner.tui.widgets.sessions_rail import SessionsRail


class LeftRail(Vertical):
    """Chats take what the others leave; downloads are there while there are any."""

    SCOPED_CSS = False  # its rules ask for classes of the screen, which is outside of it
    DEFAULT_CSS = """
    LeftRail { width: 28; height: 100%; padding: 0 1; border-right: vkey $panel; }
    .-wide LeftRail { width: 38; }
    LeftRail #downloads { height: auto; max-height: 12; margin-top: 1; display: none; }
    LeftRail #downloads.-some { display: block; }
    LeftRail #downloads > Static { height: 1; text-style: bold; color: $text-muted; }
    .-flat LeftRail #downloads { margin-top: 0; max-height: 2; }
    .-flat LeftRail #downloads > Static, .-flat LeftRail SessionsRail #about { display: none; }
    """

    def __init__(self) -> None:
        super().__init__(id="left-rail")

    def compose(self) -> ComposeResult:
        yield SessionsRail()
        yield ModelsHere()
        with Vertical(id="downloads"):
            yield Static("DOWNLOADS")
            yield JobList()

    def show_jobs(self, jobs: Sequence[Job]) -> None:
        """Show what is fetched and made, and what has ended until it is taken out of the list."""
        self.query_one("#downloads").set_class(bool(jobs), "-some")
        self.query_one(JobList).show(tuple(jobs))
