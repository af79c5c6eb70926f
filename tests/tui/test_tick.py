"""A box to tick says without a colour whether it is ticked, and whether it can be."""

from __future__ import annotations

from one_screen import OneScreen, running
from textual.app import ComposeResult
from textual.pilot import Pilot
from textual.screen import Screen

from runner.tui.widgets.tick import Tick


class Boxes(Screen[None]):
    def compose(self) -> ComposeResult:
        yield Tick("calibrate", compact=True)


def test_ticked_not_ticked_and_not_to_be_ticked_are_three_texts() -> None:
    app = OneScreen(Boxes)

    async def body(pilot: Pilot[None]) -> None:
        box = app.screen.query_one(Tick)
        shown = []
        for value, disabled in ((False, False), (True, False), (True, True), (False, True)):
            box.value, box.disabled = value, disabled
            await pilot.pause()
            shown.append(box.render_line(0).text.strip())
        assert shown == ["[ ] calibrate", "[X] calibrate", "[-] calibrate", "[-] calibrate"]

    running(app, body)
