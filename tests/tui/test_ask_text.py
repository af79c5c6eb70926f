"""The question for one line of text: it is read whole in the smallest terminal, and answered."""

from __future__ import annotations

from typing import Any

from one_screen import OneScreen, running, seen
from textual.pilot import Pilot

from runner.tui.screens.ask_text import AskText


def test_a_long_question_is_whole_in_the_smallest_terminal() -> None:
    app = OneScreen(lambda: AskText("Write this run to a file (.md, .csv, .json, .jsonl, .svg)", "bench.md"))

    async def body(pilot: Pilot[Any]) -> None:
        words = " ".join(seen(app).replace("│", " ").split())
        assert "(.md, .csv, .json, .jsonl, .svg) bench.md enter accepts" in words
        await pilot.press("enter")
        assert app.result == "bench.md"

    running(app, body, (40, 12))
