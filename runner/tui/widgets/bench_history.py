"""Earlier runs as a list, the last one first: when, which model, how fast it decoded. One can be marked.

It shows the runs that it is given. It knows no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from runner.bench.figures import INVALID, figure, local_start
from runner.bench.record import NOT_REACHED, BenchBackend, BenchRun
from runner.tui.content import line
from runner.tui.widgets.gauges import flow

_MOST: Final = 200
_INDENT: Final = "    "


class BenchHistory(Vertical):
    """show: every kept run, the last one last. mark: the one to compare with."""

    class Chosen(Message):
        """The user looks at another run."""

        def __init__(self, run: BenchRun) -> None:
            super().__init__()
            self.run = run

    DEFAULT_CSS = """
    BenchHistory { height: 1fr; }
    BenchHistory OptionList { height: 1fr; border: none; padding: 0; background: transparent; }
    BenchHistory OptionList:focus { border: none; background-tint: transparent 0%; }
    BenchHistory OptionList { scrollbar-size-vertical: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    BenchHistory #no-history { height: auto; color: $text-muted; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._runs: tuple[BenchRun, ...] = ()
        self._marked = ""

    def compose(self) -> ComposeResult:
        yield Static(Content("Runs are kept here, and can be compared."), id="no-history")
        yield OptionList(id="bench-runs")

    def show(self, runs: Sequence[BenchRun]) -> None:
        """The runs, of which the last one is highlighted unless another one was."""
        chosen = self._highlighted_id
        self._runs = tuple(reversed(runs))[:_MOST]
        self._redraw(chosen)

    def on_resize(self) -> None:
        self._redraw(self._highlighted_id)

    def look_at(self, run: BenchRun) -> None:
        """Highlight a run."""
        self._redraw(run.id)

    def mark(self, run: BenchRun | None) -> None:
        self._marked = "" if run is None else run.id
        self._redraw(self._highlighted_id)

    def focus_list(self) -> None:
        """Let the arrow keys choose a run."""
        self.query_one(OptionList).focus()

    @property
    def marked(self) -> BenchRun | None:
        return next((run for run in self._runs if run.id == self._marked), None)

    @property
    def highlighted(self) -> BenchRun | None:
        index = self.query_one(OptionList).highlighted
        return self._runs[index] if index is not None and index < len(self._runs) else None

    @property
    def _highlighted_id(self) -> str:
        return "" if self.highlighted is None else self.highlighted.id

    def _redraw(self, chosen: str) -> None:
        """Show the runs as the width has room for them, and highlight the one of that id, or else the first."""
        self.query_one("#no-history").display = not self._runs
        options = self.query_one(OptionList)
        options.display = bool(self._runs)
        width = self.size.width - options.styles.scrollbar_size_vertical
        with self.prevent(OptionList.OptionHighlighted):
            options.set_options([Option(_option(run, width, is_marked=run.id == self._marked)) for run in self._runs])
            index = next((number for number, run in enumerate(self._runs) if run.id == chosen), 0)
            options.highlighted = index if self._runs else None

    @on(OptionList.OptionHighlighted)
    @on(OptionList.OptionSelected)
    def _looked(self, event: OptionList.OptionHighlighted | OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_index < len(self._runs):
            self.post_message(self.Chosen(self._runs[event.option_index]))


def _option(run: BenchRun, width: int, *, is_marked: bool) -> Content:
    """A line of when and what, and under it how fast each backend decoded, on as many lines as that needs."""
    mark = Content.styled("◆ ", "$accent") if is_marked else Content("  ")
    when = line(f"{local_start(run)[5:]}  ", "$option-muted")
    name = line(f"{run.model} {run.quantization}", "bold")
    figures = flow([line(one) for one in _figures(run)], width - len(_INDENT))
    return Content.assemble(mark, when, name, *(part for one in figures for part in (f"\n{_INDENT}", one)))


def _figures(run: BenchRun) -> Iterator[str]:
    for backend in run.backends:
        yield f"{backend.name} {_gain(backend) or _decode(backend)}"
    if run.is_partial:
        yield "partial"


def _gain(backend: BenchBackend) -> str:
    """What speculation gained, from the genre with the least to the one with the most; "" where it was not measured."""
    gains = [row.gain for row in backend.rows if row.gain is not None]
    return f"gain {'–'.join(dict.fromkeys(f'{gain:.2f}' for gain in (min(gains), max(gains))))}x" if gains else ""


def _decode(backend: BenchBackend) -> str:
    """How fast it decoded at the least depth, in tok/s."""
    if backend.refused is not None:
        return "not reached" if backend.refused == NOT_REACHED else "refused"
    row = next((row for row in backend.rows if row.test.startswith("tg")), None)
    if row is None:
        return "–"
    return INVALID if row.invalid is not None else "–" if row.mean is None else figure(row.mean)
