"""Bench mode: choose what to measure, watch it, look at it, and hold it against earlier runs.

It brings the form, the live rows, the report and the history together. The measuring is bench_run.py's and, below
that, runner.bench's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from runner.bench.comparison import compare_runs
from runner.bench.export_file import SUFFIXES, export_run
from runner.bench.record import BenchRun
from runner.bench.request import BenchRequest, request_like
from runner.bench.store import History, last_like
from runner.bench.text_plot import can_show
from runner.errors import RunnerError
from runner.safe_text import safe_line, safe_text
from runner.tui.actions import bindings_of
from runner.tui.bench_run import (
    BenchKept,
    BenchSeen,
    BenchThread,
    HistoryRead,
    model_of,
    models_and_history,
)
from runner.tui.chat_engine import ChatEngine
from runner.tui.messages import EngineMessage, GoTo, Unloaded
from runner.tui.screens.ask_text import AskText
from runner.tui.screens.confirm import Confirm
from runner.tui.screens.mode import ModeScreen
from runner.tui.services import Services
from runner.tui.widgets.bench_form import BenchForm
from runner.tui.widgets.bench_history import BenchHistory
from runner.tui.widgets.bench_live import BenchLive
from runner.tui.widgets.bench_report import BenchReport, Shown


class BenchScreen(ModeScreen):
    """chat_engine: gives the machine up before anything is measured."""

    mode_name = "bench"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("bench")]
    DEFAULT_CSS = """
    BenchScreen #bench-body { height: 1fr; layout: horizontal; overflow: hidden; }
    BenchScreen #bench-left { width: 38; height: 100%; border: round $border-blurred; padding: 0 1;
        border-title-color: $text-muted; }
    BenchScreen.-narrow #bench-left { width: 32; }
    BenchScreen.-wide #bench-left { width: 46; }
    BenchScreen #bench-right { width: 1fr; height: 100%; border: round $border-blurred; padding: 0 1;
        scrollbar-size-vertical: 1; border-title-color: $text-muted; }
    BenchScreen #bench-right:focus { border: round $border; }
    BenchScreen #bench-earlier { height: 1; margin-top: 1; color: $primary; text-style: bold; }
    BenchScreen.-low #bench-earlier { margin-top: 0; }
    BenchScreen.-tiny #bench-body { layout: vertical; overflow: hidden auto; scrollbar-size-vertical: 1; }
    BenchScreen.-tiny #bench-left { width: 100%; height: auto; border: none; }
    BenchScreen.-tiny #bench-right { width: 100%; height: auto; border: none; overflow-y: hidden; }
    BenchScreen.-tiny BenchHistory { height: auto; }
    BenchScreen.-tiny BenchHistory OptionList { height: auto; max-height: 6; }
    """

    def __init__(self, services: Services, chat_engine: ChatEngine) -> None:
        super().__init__()
        self._services = services
        self._chat_engine = chat_engine
        self._is_ascii = not can_show(getattr(sys.__stdout__, "encoding", None))
        self._thread: BenchThread | None = None
        self._waiting: BenchRequest | None = None  # until the chat's model is unloaded
        self._against: BenchRun | None = None  # what the run that is being measured is compared with
        self._runs: tuple[BenchRun, ...] = ()
        self._wanted = ""  # a model that was asked for before the form was there

    def body(self) -> ComposeResult:
        with VerticalScroll(id="bench-body", can_focus=False):
            with Vertical(id="bench-left") as left:
                left.border_title = "Measure"
                yield BenchForm()
                yield Static("Earlier runs", id="bench-earlier")
                yield BenchHistory()
            with VerticalScroll(id="bench-right") as right:
                right.border_title = "Result"
                yield BenchLive(is_ascii=self._is_ascii)
                yield BenchReport(is_ascii=self._is_ascii)

    def on_mount(self) -> None:
        self.query_one(BenchReport).show(None)
        self.query_one(BenchForm).choose(self._wanted or self._chat_engine.model)
        self.query_one("#bench-model").focus()

    def on_screen_resume(self) -> None:
        """Models may have come, and other programs may have measured, since the mode was last looked at."""
        self._read()

    def choose(self, model: str) -> None:
        """Choose the model to measure; the user begins."""
        self._wanted = model
        if self.is_mounted:
            self.query_one(BenchForm).choose(model)

    # --- what is here ------------------------------------------------------------------------------------------------

    @work(thread=True, exclusive=True, group="bench-read", exit_on_error=False)
    def _read(self) -> None:
        self.post_message(models_and_history(self._services))

    @on(HistoryRead)
    def _have_read(self, message: HistoryRead) -> None:
        self.query_one(BenchForm).offer(message.models)
        self._show_history(message.history)
        if self._runs and self.query_one(BenchReport).shown is None:
            self._show(self._runs[-1])
        if message.error is not None:
            self._say(message.error)

    def _show_history(self, history: History) -> None:
        self._runs = history.runs
        self.query_one(BenchHistory).show(self._runs)
        n_unread = history.n_damaged + history.n_newer  # `runner bench history` says which
        unread = f" · {n_unread} unreadable" if n_unread else ""
        self.query_one("#bench-earlier", Static).update(f"Earlier runs{unread}")

    @on(BenchHistory.Chosen)
    def _look(self, message: BenchHistory.Chosen) -> None:
        self._show(message.run)

    def _show(self, run: BenchRun, against: BenchRun | None = None) -> None:
        """The run, and beside it `against`, or else the last one before it that measured the same."""
        ids = [one.id for one in self._runs]
        earlier = self._runs[: ids.index(run.id)] if run.id in ids else self._runs
        before = against or last_like(earlier, run)
        beside = None if before is None else compare_runs(before, run)
        self._put(Shown(run, beside, self._runs))

    def _put(self, shown: Shown) -> None:
        """It stands below what is being measured, if something is."""
        report = self.query_one(BenchReport)
        report.show(shown)
        report.display = True
        self.query_one("#bench-right").scroll_home(animate=False)

    # --- measuring ---------------------------------------------------------------------------------------------------

    @property
    def is_measuring(self) -> bool:
        return self._thread is not None or self._waiting is not None

    def pids(self) -> tuple[int, ...]:
        """The processes that measure now. May be called from any thread."""
        thread = self._thread
        return () if thread is None else thread.pids()

    @on(BenchForm.Begin)
    def action_start(self) -> None:
        try:
            request = self.wanted()
        except RunnerError as error:
            self._say(error)
            return
        self._begin(request, None)

    def wanted(self) -> BenchRequest:
        """What `runner bench` would be asked for with what the form says. Raises UsageError."""
        services = self._services
        return self.query_one(BenchForm).request(
            services.load_options, is_kv_chosen="kv_type" in services.settings.given, offline=services.is_offline
        )

    def action_again(self) -> None:
        """Measure what the shown run measured, and compare the two."""
        shown = self.query_one(BenchReport).shown
        if shown is None:
            self.notify("Nothing was measured yet: s begins.", severity="warning", markup=False)
            return
        load, offline = self._services.load_options, self._services.is_offline
        model = model_of(shown.run, self._services)
        self._begin(request_like(shown.run.options, model, load, offline=offline), shown.run)

    def _begin(self, request: BenchRequest, against: BenchRun | None) -> None:
        if self.is_measuring:
            self.notify("It is measuring already: esc stops it.", severity="warning", markup=False)
            return

        def begin(is_agreed: bool | None) -> None:
            if is_agreed:
                self._against = against
                self._make_room(request)

        if self._chat_engine.is_busy:
            detail = "Measuring stops it and unloads the chat's model; what came of the answer is kept."
            self.app.push_screen(Confirm("An answer is being written.", detail, yes="Measure"), begin)
        else:
            begin(True)

    def _make_room(self, request: BenchRequest) -> None:
        """Unload the chat's model first: it would take memory and cores from what is measured."""
        self.query_one(BenchForm).show_running(True)
        live = self.query_one(BenchLive)
        live.begin(request.model)
        self.query_one(BenchReport).display = False
        self.query_one("#bench-right").border_title = "Measuring"
        self._chat_engine.lend(request.model)
        self.call_after_refresh(live.scroll_visible, animate=False, top=True, immediate=True)  # once it has a height
        if self._chat_engine.state == "empty":
            self._measure(request)
            return
        live.say("unloading the chat's model")
        self._waiting = request
        self._chat_engine.unload("A benchmark needs the machine. The next message loads the model again.")

    def on_engine(self, message: EngineMessage) -> None:
        if self._waiting is not None and isinstance(message, Unloaded):
            request, self._waiting = self._waiting, None
            self._measure(request)

    def _measure(self, request: BenchRequest) -> None:
        self._thread = BenchThread(request, self._services.paths, self.post_message)
        self._thread.start()

    @on(BenchSeen)
    def _seen(self, message: BenchSeen) -> None:
        self.query_one(BenchLive).take(message.event)

    @on(BenchKept)
    def _kept(self, message: BenchKept) -> None:
        """It is over: the run is shown, or why there is none."""
        self._over()
        if message.history is not None:
            self._show_history(message.history)
        if message.run is not None:
            self.query_one(BenchHistory).look_at(message.run)
            self._show(message.run, self._against)
        if message.error is not None:
            self._say(message.error)

    def _over(self) -> None:
        self._thread = self._waiting = None
        self._chat_engine.take_back()
        self.query_one(BenchForm).show_running(False)
        self.query_one(BenchLive).end()
        self.query_one(BenchReport).display = True
        self.query_one("#bench-right").border_title = "Result"

    @on(BenchForm.End)
    def action_stop(self) -> None:
        if self._thread is not None:
            self._thread.cancel()
            self.query_one(BenchLive).stopping()
        elif self._waiting is not None:
            self._over()
        else:
            self.notify("Nothing is being measured: s begins.", severity="warning", markup=False)

    def action_back(self) -> None:
        if self.is_measuring:
            self.action_stop()
        else:
            self.post_message(GoTo("chat"))

    def close(self) -> None:
        """End what measures, soon: see `wait`."""
        if self._thread is not None:
            self._thread.cancel()

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended; what was measured is kept, also where it has not by then."""
        if self._thread is not None:
            self._thread.wait(timeout_s)

    def on_unmount(self) -> None:
        if self._thread is not None:
            self._thread.cancel()

    # --- comparing, writing ------------------------------------------------------------------------------------------

    def action_compare(self) -> None:
        """Mark the run that is highlighted; with another one marked, set it beside that."""
        history = self.query_one(BenchHistory)
        run, marked = history.highlighted, history.marked
        if run is None:
            return
        if marked is None or marked.id == run.id:
            history.mark(None if marked is not None else run)
            if marked is None:
                history.focus_list()
                self.notify("Marked: press c on another run (↑ ↓) to compare the two.", markup=False)
            return
        before, after = sorted((marked, run), key=lambda one: one.id)
        self._put(Shown(after, compare_runs(before, after), self._runs, is_comparing=True))
        history.mark(None)

    def action_export(self) -> None:
        report = self.query_one(BenchReport)
        shown = report.shown if report.display else None
        if shown is None:
            self.notify("There is no run to write yet.", severity="warning", markup=False)
            return

        def write(name: str | None) -> None:
            if name is not None and name.strip():
                self._write(shown.run, Path(name.strip()))

        title = f"Write this run to a file ({', '.join(SUFFIXES)})"
        self.app.push_screen(AskText(title, f"bench-{shown.run.id}.md"), write)

    def _write(self, run: BenchRun, path: Path) -> None:
        try:
            written = export_run(run, path)
        except RunnerError as error:
            self._say(error)
        else:
            self.notify(f"Written to {safe_line(str(written))}", markup=False)

    def _say(self, error: RunnerError) -> None:
        self.notify(safe_text(f"{error.message}\n{error.hint}".strip()), severity="error", markup=False, timeout=10)
