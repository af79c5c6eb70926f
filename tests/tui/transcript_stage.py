"""A transcript alone in an app: what tests of it ask for, and what it shows as text."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from textual.app import App, ComposeResult
from textual.message import Message
from textual.pilot import Pilot
from textual.widgets import Input
from waiting import PATIENCE_S

from runner.events import TextDelta
from runner.telemetry import Timings
from runner.transcript import Turn
from runner.tui import themes
from runner.tui.widgets.transcript import Transcript
from runner.wire import to_plain

HOSTILE = "a[/]b [@click=app.quit]x[/] \x1b]52;c;eA==\x07 \x9b31m"
SAFE = "a[/]b [@click=app.quit]x[/] ]52;c;eA== 31m"
NOON = 1_700_000_000.0
TIMINGS = to_plain(Timings(prompt_tokens=50, completion_tokens=412, ttft_s=0.084, decode_s=2.88, total_s=3.0))


def question(text: str = "Why?") -> Turn:
    return Turn(role="user", content=text, created_at=NOON)


def answer(text: str = "Because.", **values: Any) -> Turn:
    return Turn(role="assistant", content=text, **{"model": "demo", "timings": TIMINGS, "created_at": NOON, **values})


def chat(n: int, lines: int = 12) -> list[Turn]:
    """n turns, long ones, which say which they are."""
    turns = []
    for number in range(n // 2):
        text = "".join(f"Line {line} of answer {number} with **bold** words.\n\n" for line in range(lines))
        turns += [question(f"Question {number}"), answer(text + "```py\nx = 1\n```\n")]
    return turns


class Stage(App[None]):
    """posted: the transcript's own messages, as they came. clock: monotonic seconds, which stand still."""

    def __init__(self) -> None:
        super().__init__()
        self.posted: list[Message] = []
        self.clock = [100.0]

    def compose(self) -> ComposeResult:
        yield Transcript(now=lambda: NOON, clock=lambda: self.clock[0])
        yield Input()

    def on_mount(self) -> None:
        themes.register(self)
        self.theme = themes.DARK
        self.transcript.focus()

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    def on_transcript_copy_requested(self, message: Transcript.CopyRequested) -> None:
        self.posted.append(message)

    def on_transcript_edit_requested(self, message: Transcript.EditRequested) -> None:
        self.posted.append(message)

    def on_transcript_regenerate_requested(self, message: Transcript.RegenerateRequested) -> None:
        self.posted.append(message)

    def on_transcript_link_clicked(self, message: Transcript.LinkClicked) -> None:
        self.posted.append(message)


def staged(body: Callable[[Stage, Pilot[None]], Awaitable[None]], size: tuple[int, int] = (80, 24)) -> None:
    """Run a test with a transcript on a screen."""

    async def run() -> None:
        stage = Stage()
        async with stage.run_test(size=size) as pilot:
            await pilot.pause()
            await body(stage, pilot)

    asyncio.run(run())


def screen(stage: Stage) -> list[str]:
    """The rows that are on the screen, without trailing blanks."""
    transcript = stage.transcript
    return [transcript.render_line(y).text.rstrip() for y in range(transcript.size.height)]


def row_of(stage: Stage, text: str) -> int:
    """The row of the screen that has this text."""
    return next(y for y, row in enumerate(screen(stage)) if text in row)


async def stream(pilot: Pilot[None], stage: Stage, *texts: str) -> None:
    """Stream pieces of an answer, and wait until they are shown."""
    for text in texts:
        stage.transcript.take(TextDelta(text))
    await shown(pilot)


async def shown(pilot: Pilot[None]) -> None:
    """Wait until what came is shown, which takes longer where showing does."""
    transcript = pilot.app.query_one(Transcript)
    async with asyncio.timeout(PATIENCE_S):
        while transcript._timer is not None:
            await pilot.pause(0.01)
    await pilot.pause()
