"""A download that has come far is given up only when the user says so again."""

from __future__ import annotations

import asyncio

import pytest
from textual.app import App

from runner.paths import user_paths
from runner.tui.job_wishes import carry_out, lost_with
from runner.tui.jobs import Job, JobQueue
from runner.tui.screens.confirm import Confirm
from runner.tui.widgets.job_list import JobList

FAR = Job(id="pull-1", kind="pull", model="a[/]b:Q8_0", state="running", done=36_000_000_000, total=40_000_000_000)
NEAR = Job(id="pull-2", kind="pull", model="small", state="running", done=9_000_000, total=40_000_000_000)


class Queue(JobQueue):
    """A queue of jobs that run nowhere. wishes: what reached it."""

    def __init__(self, *jobs: Job) -> None:
        super().__init__(user_paths(), lambda _: None)
        self._given = jobs
        self.wishes: list[tuple[str, str]] = []

    @property
    def jobs(self) -> tuple[Job, ...]:
        return self._given

    def cancel(self, job_id: str) -> None:
        self.wishes.append(("cancel", job_id))

    def pause(self, job_id: str) -> None:
        self.wishes.append(("pause", job_id))


@pytest.mark.parametrize(
    ("job", "keys", "wishes"),
    [
        (FAR, ("y",), [("cancel", FAR.id)]),
        (FAR, ("left", "enter"), [("cancel", FAR.id)]),
        (FAR, ("enter",), []),
        (FAR, ("escape",), []),
        (NEAR, (), [("cancel", NEAR.id)]),
    ],
)
def test_giving_up_asks_first_when_much_would_be_lost(
    job: Job, keys: tuple[str, ...], wishes: list[tuple[str, str]]
) -> None:
    async def play() -> None:
        queue, app = Queue(FAR, NEAR), App[None]()
        async with app.run_test() as pilot:
            carry_out(app, queue, JobList.Cancel(job.id))
            await pilot.pause()
            assert isinstance(app.screen, Confirm) == bool(keys)
            await pilot.press(*keys)
            assert queue.wishes == wishes

    asyncio.run(play())


def test_a_pause_asks_nothing() -> None:
    async def play() -> None:
        queue, app = Queue(FAR), App[None]()
        async with app.run_test():
            carry_out(app, queue, JobList.Pause(FAR.id))
            assert queue.wishes == [("pause", FAR.id)]

    asyncio.run(play())


def test_the_question_says_what_would_be_lost() -> None:
    assert lost_with(FAR) == "The 36.0 GB that were fetched (90 %) are deleted. A pause would keep them."
    assert lost_with(NEAR) == ""
    quantization = Job(id="q-1", kind="quantize", model="m", state="running", done=3, total=10, unit="tensors")
    assert lost_with(quantization) == "It is at 30 %, and begins anew next time."
