"""A run that is over: plots first, then what changed since the last one like it, then the whole table and its notes.

It shows the run, the comparison and the history that it is given. It knows no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from runner.bench.comparison import RunComparison
from runner.bench.comparison_table import comparison_lines
from runner.bench.figures import local_start
from runner.bench.record import BenchRun
from runner.bench.run_plot import bandwidth_lines, plot_lines, trend_lines, verdict_lines
from runner.bench.run_table import run_lines
from runner.bench.styled import Line, Segment
from runner.measures import short_count
from runner.tui.content import line
from runner.tui.widgets.styled_lines import StyledLines

_NOTHING: Final = (
    "Choose a model and press s: prefill, decode and the time to the first text, each five times, by every backend "
    "that can run it. Small models take under a minute."
)


@dataclass(frozen=True)
class Shown:
    """run: what is shown. beside: with another run, or None. history: every kept run, for the plots over time."""

    run: BenchRun
    beside: RunComparison | None
    history: tuple[BenchRun, ...]
    is_comparing: bool = False  # the user asked for the two runs, and not for the one


class BenchReport(Vertical):
    """show: what to show; None: nothing was measured yet."""

    DEFAULT_CSS = """
    BenchReport { height: auto; }
    BenchReport #bench-title { height: auto; text-style: bold; }
    BenchReport #bench-about { height: auto; color: $text-muted; margin-bottom: 1; }
    """

    def __init__(self, *, is_ascii: bool = False) -> None:
        super().__init__()
        self._is_ascii = is_ascii
        self._shown: Shown | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="bench-title")
        yield Static(id="bench-about")
        yield StyledLines(id="bench-lines")

    @property
    def shown(self) -> Shown | None:
        return self._shown

    def show(self, shown: Shown | None) -> None:
        self._shown = shown
        title, about = self.query_one("#bench-title", Static), self.query_one("#bench-about", Static)
        if shown is None:
            title.update(line("Nothing was measured yet."))
            about.update(line(_NOTHING))
        elif shown.is_comparing and shown.beside is not None:
            title.update(line(f"{shown.beside.before.id} → {shown.beside.after.id}"))
            about.update(line("The second run beside the first. Press c on a run to choose other ones."))
        else:
            title.update(line(f"{shown.run.model}  {shown.run.quantization}"))
            about.update(line(_about(shown.run)))
        self.query_one(StyledLines).show(None if shown is None else self._lines)

    def _lines(self, width: int) -> Sequence[Line]:
        shown = self._shown
        if shown is None:
            return []
        return self._comparison(shown, width) if shown.is_comparing else self._run(shown, width)

    def _comparison(self, shown: Shown, width: int) -> list[Line]:
        if shown.beside is None:
            return []
        return [*verdict_lines(shown.beside, width), (), *comparison_lines(shown.beside, width)]

    def _run(self, shown: Shown, width: int) -> list[Line]:
        run = shown.run
        parts: list[tuple[str, Sequence[Line]]] = [
            ("", plot_lines(run.rows, width, is_ascii=self._is_ascii)),
            ("", bandwidth_lines(run, width, is_ascii=self._is_ascii)),
        ]
        if shown.beside is not None:
            parts.append((f"Since {shown.beside.before.id}", verdict_lines(shown.beside, width)))
        parts.append(("Over time", trend_lines(shown.history, run, width, is_ascii=self._is_ascii)))
        parts.append(("All figures", run_lines(run, width)))
        lines: list[Line] = []
        for heading, section in parts:
            if section:
                lines += [()] if lines else []
                lines += [_heading(heading, width), *section] if heading else section
        return lines


def _heading(text: str, width: int) -> Line:
    return (Segment(f"{text} ", "accent"), Segment("─" * max(0, width - len(text) - 1), "dim"))


def _about(run: BenchRun) -> str:
    """Where and when, in a line."""
    partial = ["interrupted: this is what was measured until then"] if run.is_partial else []
    parts = [local_start(run), run.machine.device, f"{short_count(run.num_parameters)} parameters", *partial]
    return " · ".join(parts)
