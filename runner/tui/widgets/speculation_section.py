"""Speculation in the live rail: how many drafted tokens were accepted, or the honest line that nothing drafts.

It shows LiveNumbers; what drafts is not its business.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from runner.measures import short_count
from runner.telemetry import Timings
from runner.tui.live_numbers import LiveNumbers
from runner.tui.widgets.gauges import both_ends, gauge
from runner.tui.widgets.live_section import LiveSection, title

OFF = "off: no drafter"


def speculation_rows(timings: Timings | None, width: int) -> list[Content]:
    """Acceptance and counts of the newest answer, or why there is nothing to say."""
    rate = None if timings is None else timings.acceptance_rate
    if timings is None or rate is None:
        return [both_ends(title("SPECULATION"), Content.styled(OFF, "$text-muted"), width)]
    counts = f"{short_count(timings.n_accepted)} of {short_count(timings.n_drafted)} drafted"
    return [
        both_ends(title("SPECULATION"), Content(f"accept {100 * rate:.0f} %"), width),
        gauge(rate, width),
        Content(counts),
    ]


class SpeculationSection(LiveSection):
    DEFAULT_CSS = """
    SpeculationSection { margin-top: 1; }
    """

    def __init__(self, numbers: LiveNumbers) -> None:
        super().__init__(id="speculation")
        self._numbers = numbers

    def rows(self, width: int) -> Sequence[Content]:
        speed = self._numbers.speed
        return speculation_rows(None if speed is None else speed.timings, width)
