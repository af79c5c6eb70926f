"""A benchmark while it runs: where it is, how far that is, and its rows as bars that grow.

It is told the events of runner.bench. It knows no process and no file.
"""

from __future__ import annotations

import textwrap
from time import monotonic
from typing import Final

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static

from runner.bench.events import BackendRefused, BenchEvent, BenchStep, RowMeasured
from runner.bench.live_text import Place, progress_place, step_place
from runner.bench.record import BenchRow
from runner.bench.run_plot import plot_lines
from runner.bench.styled import Line, Segment, wrapped
from runner.events import Notice, Progress
from runner.measures import duration, text_width, wrap
from runner.safe_text import safe_line
from runner.tui.content import line
from runner.tui.widgets.gauges import both_ends, gauge
from runner.tui.widgets.styled_lines import StyledLines

_INDENT = 10
_MARK: Final = ("◐ ", "$warning")
_BEFORE = "The first figures come when the model is loaded and all repetitions of its first test are made."


class BenchLive(Vertical):
    """begin, then take every event, then end."""

    DEFAULT_CSS = """
    BenchLive { height: auto; display: none; }
    BenchLive.-running { display: block; }
    BenchLive #bench-place { height: auto; margin-bottom: 1; }
    """

    def __init__(self, *, is_ascii: bool = False) -> None:
        super().__init__()
        self._is_ascii = is_ascii
        self._rows: dict[tuple[str, str], BenchRow] = {}
        self._remarks: list[tuple[str, str]] = []
        self._place = Place("", 0, 0)
        self._is_stopping = False
        self._began = 0.0
        self._clock: Timer | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="bench-place")
        yield StyledLines(id="bench-live-rows")

    def begin(self, model: str) -> None:
        self._rows.clear()
        self._remarks.clear()
        self._began = monotonic()
        self._is_stopping = False
        self.add_class("-running")
        self._show_rows()
        if self._clock is None:
            self._clock = self.set_interval(1.0, self._show_place)
        self._move(Place(f"starting with {model}", 0, 0))

    def say(self, text: str) -> None:
        """What is being done, where no event tells it."""
        self._move(Place(text, 0, 0))

    def stopping(self) -> None:
        """It was asked to stop: where it still is meanwhile is of no interest."""
        self.say("stopping")
        self._is_stopping = True

    def end(self) -> None:
        self.remove_class("-running")
        if self._clock is not None:
            self._clock.stop()
            self._clock = None

    def take(self, event: BenchEvent) -> None:
        if isinstance(event, BenchStep):
            self._move(step_place(event))
        elif isinstance(event, Progress):
            self._move(progress_place(event))
        elif isinstance(event, RowMeasured):
            self._rows[event.row.backend, event.row.test] = event.row
            self._show_rows()
        elif isinstance(event, BackendRefused):
            self._remarks.append(("refused", f"{event.backend}: {event.reason}"))
            self._show_rows()
        elif isinstance(event, Notice):
            self._remarks.append(("note", f"{event.text} {event.hint}".strip()))
            self._show_rows()

    def on_resize(self) -> None:
        self._show_place()

    def _move(self, place: Place) -> None:
        if not self._is_stopping:
            self._place = place
            self._show_place()

    def _show_place(self) -> None:
        widget = self.query_one("#bench-place", Static)
        width = widget.scrollable_content_region.width
        if not width:
            return
        elapsed = Content.styled(duration(monotonic() - self._began), "$text-muted")
        room = width - elapsed.cell_length - 1
        share = self._place.done / self._place.total if self._place.total else 0.0
        text = self._place.text_for(room - 2)
        if text_width(text) <= room - 2:
            rows = [both_ends(Content.assemble(_MARK, line(text, "bold")), elapsed, width), gauge(share, width)]
        else:  # the text has the width for itself, and as many lines as it needs
            first, *others = (line(part, "bold") for part in wrap(safe_line(text), width - 2).split("\n"))
            rows = [Content.assemble(_MARK, first), *(Content.assemble("  ", other) for other in others)]
            rows.append(both_ends(gauge(share, room), elapsed, width))
        widget.update(Content("\n").join(rows))

    def _show_rows(self) -> None:
        self.query_one(StyledLines).show(self._lines)

    def _lines(self, width: int) -> list[Line]:
        """The rows of each test together, and what is to be known of them."""
        rows = list(self._rows.values())
        lines = plot_lines(rows, width, is_ascii=self._is_ascii)
        for row in rows:
            if row.invalid is not None:
                self_text = f"{row.backend} {row.test}: {row.invalid}"
                lines += wrapped("INVALID", "bad", self_text, _INDENT, width)
        for name, text in self._remarks:
            lines += wrapped(name, "bad" if name == "refused" else "accent", text, _INDENT, width)
        if not lines:
            lines += [(Segment(text, "dim"),) for text in textwrap.wrap(_BEFORE, max(1, width))]
        return lines
