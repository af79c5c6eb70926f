"""The models screen: what is here, what the registry knows and what the hub finds, with what each would take here.

It joins the table, the pane, the jobs and the dialogs; catalog.py makes the rows and jobs/ does the work. What takes
time happens on threads, whose answers come back as messages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Input, Static

from runner.measures import decimal_size
from runner.removal import Removal, drafter, plan_removal
from runner.safe_text import safe_line
from runner.tui import job_words
from runner.tui.actions import bindings_of
from runner.tui.catalog import CatalogRow, damage, deletable_name
from runner.tui.catalog_view import CatalogView
from runner.tui.content import line
from runner.tui.job_wishes import carry_out
from runner.tui.jobs import Job, JobQueue
from runner.tui.messages import BenchModel, GoTo, OpenModel
from runner.tui.model_offers import Offer, offers_of
from runner.tui.quantize_choices import objection, suggested_names
from runner.tui.screens.choose_quant import ChooseQuant
from runner.tui.screens.compare_models import CompareModels
from runner.tui.screens.delete_model import DeleteModel
from runner.tui.screens.models_reading import CatalogRead, Deleted, ExactRead, HubAnswered, ModelsReading
from runner.tui.screens.quantize_model import QuantizeModel, QuantizeWish
from runner.tui.services import Services
from runner.tui.widgets.fit_pane import FitPane
from runner.tui.widgets.job_list import JobList, JobMessage, JobRow
from runner.tui.widgets.model_table import ModelTable

_PATIENCE_S: Final = 0.25  # before a model's headers are read: the cursor may only pass over it


class ModelsScreen(ModelsReading):
    """services: paths, options, whether the network may be used. jobs: the queue that downloads go to.

    loaded: the name of the model that the chat has loaded, or "".
    """

    mode_name = "models"
    AUTO_FOCUS = "#table"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("models")]
    DEFAULT_CSS = """
    ModelsScreen { layers: base over; }
    ModelsScreen #filter-bar { height: 1; background: $surface; padding: 0 1; }
    ModelsScreen #slash { width: 2; color: $text-accent; }
    ModelsScreen #filter { width: 1fr; border: none; height: 1; padding: 0; background: $surface; }
    ModelsScreen #shown { width: auto; color: $text-muted; padding-left: 2; }
    ModelsScreen #news { height: auto; max-height: 4; padding: 0 1; color: $text-muted; background: $surface; }
    ModelsScreen #news.-empty { display: none; }
    ModelsScreen #browser { height: 1fr; }
    ModelsScreen #table { width: 1fr; }
    ModelsScreen #pane { width: 44; }
    ModelsScreen.-wide #pane { width: 56; }
    ModelsScreen.-no-details #pane { display: none; }
    ModelsScreen.-narrow #pane, ModelsScreen.-tiny #pane { display: none; dock: right; layer: over; width: 54; }
    ModelsScreen.-tiny #pane { width: 100%; }
    ModelsScreen.-narrow.-details #pane, ModelsScreen.-tiny.-details #pane { display: block; }
    ModelsScreen #jobs { max-height: 9; border-top: solid $border-blurred; background: $background; }
    ModelsScreen.-low #jobs { max-height: 5; }
    ModelsScreen.-flat #jobs { max-height: 3; }
    ModelsScreen.-flat #jobs:focus-within { max-height: 7; }
    """

    def __init__(self, services: Services, jobs: JobQueue, loaded: Callable[[], str]) -> None:
        super().__init__(services)
        self._jobs = jobs
        self._loaded = loaded
        self._view = CatalogView()
        self._first_marked: CatalogRow | None = None
        self._is_hub_meant = False  # `h` asked for the words that are being typed
        self._waiting: Timer | None = None  # while the cursor may only be passing over a row
        self._at_rest: frozenset[tuple[str, str]] = frozenset()

    def body(self) -> ComposeResult:
        with Horizontal(id="filter-bar"):
            yield Static("/", id="slash")
            yield Input(id="filter", placeholder="filter the models", compact=True, select_on_focus=False)
            yield Static("", id="shown")
        yield Static("", id="news", classes="-empty")
        with Horizontal(id="browser"):
            yield ModelTable(id="table")
            yield FitPane(id="pane")
        yield JobList(id="jobs")

    def on_mount(self) -> None:
        self._news("reading what is here…")
        self.on_jobs(self._jobs.jobs)
        self._jobs.find_unfinished()
        self._read()

    def on_coming_back(self) -> None:
        self._read()

    @property
    def table(self) -> ModelTable:
        return self.query_one("#table", ModelTable)

    @property
    def pane(self) -> FitPane:
        return self.query_one("#pane", FitPane)

    # --- the catalog -----------------------------------------------------------------------------------------------

    def _read(self) -> None:
        known = self._view.catalog
        self.read_catalog(gguf_on_gpu=known.rooms.gguf.on_gpu if known is not None else None)

    @on(CatalogRead)
    def _take_catalog(self, message: CatalogRead) -> None:
        self._view.take_catalog(message.catalog)
        problem = message.catalog.problem
        self._news(f"✗ {problem.message} {problem.hint}" if problem is not None else "", is_bad=problem is not None)
        self._show_rows()

    def _show_rows(self) -> None:
        if self._view.catalog is not None:
            rows = self._view.rows()
            self.table.show(rows, offer=self._view.offer, sort=self._view.sort)
            self.query_one("#shown", Static).update(Content(self._view.summary(len(rows))))

    def _news(self, text: str, *, is_bad: bool = False) -> None:
        """One line under the filter; "" takes it away."""
        news = self.query_one("#news", Static)
        news.update(line(text, "$text-error" if is_bad else "$text-muted"))
        news.set_class(not text, "-empty")

    # --- the row under the cursor ----------------------------------------------------------------------------------

    @on(ModelTable.Highlighted)
    def _highlighted(self, message: ModelTable.Highlighted) -> None:
        row = message.row
        if self._waiting is not None:
            self._waiting.stop()
            self._waiting = None
        self.ask_no_more()
        if row is None:
            self.pane.show(None)
            return
        exact = self._view.exact(row.name)
        can_ask = not row.is_drafter and (row.is_here or not self.services.is_offline)
        self.pane.show(row, is_asking=exact is None and can_ask)
        if exact is not None:
            self.pane.show_exact(exact, self._view.context(row.name, exact))
        elif can_ask:
            self._waiting = self.set_timer(_PATIENCE_S, lambda: self._ask(row.name))

    def _ask(self, name: str) -> None:
        self._waiting = None
        self.ask_exact(name)

    @on(ExactRead)
    def _take_exact(self, message: ExactRead) -> None:
        exact, row = message.exact, self.table.row
        if exact is not None:
            exact = self._view.take_exact(message.name, exact)
            self.table.replace(message.name, self._view.with_exact)
        if row is None or row.name != message.name:
            return
        if message.error is not None:
            self.pane.show_error(message.error)
        elif exact is not None:
            self.pane.show_exact(exact, self._view.context(row.name, exact))

    @on(FitPane.ContextChosen)
    def _context_chosen(self, message: FitPane.ContextChosen) -> None:
        self._view.choose_context(message.name, message.n_ctx)
        self.table.replace(message.name, self._view.with_exact)

    # --- jobs ------------------------------------------------------------------------------------------------------

    def on_jobs(self, jobs: tuple[Job, ...]) -> None:
        self.query_one("#jobs", JobList).show(jobs)
        self.table.show_states(
            {job.model: job_words.cell(job) for job in jobs if job.kind == "pull" and not job.can_forget}
        )
        at_rest = frozenset((job.id, job.state) for job in jobs if job.can_forget or job.can_resume)
        if at_rest - self._at_rest and self._view.catalog is not None:
            self._read()  # what a paused one left is on this machine, too
        self._at_rest = at_rest

    @on(JobMessage)
    def _job_wish(self, message: JobMessage) -> None:
        message.stop()
        carry_out(self.app, self._jobs, message)

    # --- what the user does ----------------------------------------------------------------------------------------

    @on(Input.Changed, "#filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        self._view.query = event.value
        self._news("")
        self._show_rows()

    @on(Input.Submitted, "#filter")
    def _filter_done(self) -> None:
        self.table.focus()
        is_meant, self._is_hub_meant = self._is_hub_meant, False
        if self.table.is_on_offer or (is_meant and self._view.query.strip()):
            self.action_search_hub()

    @on(ModelTable.SortWanted)
    def _sort_wanted(self, message: ModelTable.SortWanted) -> None:
        self._view.sort_by(message.key)
        self._show_rows()

    @on(ModelTable.Chosen)
    def _chosen(self, message: ModelTable.Chosen) -> None:
        row = message.row
        if row is None:
            self.action_search_hub()
        elif self._is_told_drafter(row):
            return
        elif row.is_here:
            self._open(row)
        else:
            self.action_download()

    def _open(self, row: CatalogRow) -> None:
        n_ctx = self._view.chosen_context(row.name)
        options = dataclasses.replace(self.services.load_options, ctx_size=n_ctx) if n_ctx else None
        self.post_message(OpenModel(row.name, options))

    def _is_told_drafter(self, row: CatalogRow) -> bool:
        """Whether the row is a drafter, with which nothing is done that is done with models: how it serves is said,
        or what keeps it from that."""
        if row.is_drafter and row.is_here:
            self._news(f"{row.name} is a drafter. In a chat of the native backend: /set draft {row.name}")
        elif row.is_drafter:
            self._news(f"{row.name} is a drafter, and damaged: {damage(row)}", is_bad=True)
        return row.is_drafter

    def action_filter(self) -> None:
        self._is_hub_meant = False
        self.query_one("#filter", Input).focus()

    def action_fits_only(self) -> None:
        self._view.fits_only = not self._view.fits_only
        self._show_rows()

    def action_sort(self) -> None:
        self._view.next_sort(self.table.seen_columns)
        self._show_rows()

    def action_search_hub(self) -> None:
        query, catalog = self._view.query.strip(), self._view.catalog
        if not query:
            self.action_filter()
            self._is_hub_meant = True
            self._news("Type what to look for, then Enter.")
        elif self.services.is_offline:
            self._news("The hub is not asked: runner is offline. Start it without --offline.", is_bad=True)
        elif catalog is not None:
            self._news(f"searching the hub for {query}…")
            self.search(query, catalog)

    @on(HubAnswered)
    def _take_found(self, message: HubAnswered) -> None:
        if message.error is not None:
            self._news(f"✗ {message.error.message} {message.error.hint}", is_bad=True)
            return
        self._view.take_found(message.query, message.rows)
        n_found = len(message.rows)
        more = f"{n_found} more on the hub" if n_found else "The hub has nothing more"
        self._news(f"{more} for “{message.query}”.")
        self._show_rows()
        if message.rows:
            self.table.select(message.rows[0].name)

    def action_download(self) -> None:
        row, catalog = self.table.row, self._view.catalog
        if row is None or catalog is None or self._is_told_drafter(row):
            return
        is_asked_for = row.is_here and row.has_unknown_quants and not self.services.is_offline
        is_choice = is_asked_for or row.place == "hub" or len(row.quants) > 1
        if row.is_here and not is_choice:
            self._news(f"{row.name} is on this machine.")
        elif row.state == "partial" or (not is_choice and row.fit.verdict != "no"):
            self._jobs.pull(row.name)
        else:
            question = f"Fetch {row.name.partition(':')[0]}: which of them?"
            dialog = ChooseQuant(question, row.description, lambda: offers_of(row, catalog))
            self.app.push_screen(dialog, self._fetch)

    def _fetch(self, offer: Offer | None) -> None:
        if offer is not None:
            self._jobs.pull(offer.name, force=offer.fit.verdict == "no")

    def action_quantize(self) -> None:
        row, catalog = self.table.row, self._view.catalog
        if row is None or catalog is None or self._is_told_drafter(row):
            return
        if problem := objection(row):
            self._news(f"{row.name}: {problem}", is_bad=True)
            return
        suggest = lambda: suggested_names(row, self.services.registry())  # noqa: E731
        self.app.push_screen(QuantizeModel(row, {one.name for one in catalog.rows}, suggest), self._quantize)

    def _quantize(self, wish: QuantizeWish | None) -> None:
        if wish is not None:
            output = self.services.paths.models / wish.output
            self._jobs.quantize(wish.source, wish.weight_format, output=output, calibrate=wish.calibrate)

    def action_bench(self) -> None:
        row = self.table.row
        if row is None or self._is_told_drafter(row):
            return
        if row.is_here:
            self.post_message(BenchModel(row.name))
        else:
            self._news(f"{row.name} is not on this machine: d fetches it.")

    def action_delete(self) -> None:
        row = self.table.row
        if row is None:
            return
        if self._is_fetched(row):
            self._news(f"{row.name} is being fetched: g goes to the downloads, where x gives it up.")
            return
        if row.state == "absent":
            self._news(f"{row.name} is not on this machine: there is nothing to delete.")
            return
        services, paths, name = self.services, self.services.paths, deletable_name(row)

        def plan() -> tuple[Removal, ...]:
            if row.is_drafter:
                spec = drafter(Path(row.name).name, paths.drafts)
            else:
                spec = services.registry().resolve(name)
            return plan_removal(spec, paths.models, paths.drafts)

        def agreed(removals: tuple[Removal, ...] | None) -> None:
            if removals is not None:
                self.delete(row.name, removals)

        is_loaded = self._loaded() in (row.name, name)
        self.app.push_screen(DeleteModel(row.name, plan, paths.engines, is_loaded=is_loaded), agreed)

    def _is_fetched(self, row: CatalogRow) -> bool:
        """Whether a download of it is under way, or waits for its turn."""
        fetched = {job.model for job in self._jobs.jobs if job.kind == "pull" and job.state in ("queued", "running")}
        return row.name in fetched or (row.place == "hub" and row.name in {name.partition(":")[0] for name in fetched})

    @on(Deleted)
    def _deleted(self, message: Deleted) -> None:
        self._view.forget_exact(message.name)
        self._read()
        if message.error is not None:
            self.notify(safe_line(f"{message.error.message} {message.error.hint}"), severity="error", markup=False)
        else:
            said = f"{message.name} is deleted: {decimal_size(message.freed_bytes)} freed."
            self.notify(safe_line(said), markup=False)

    def action_compare(self) -> None:
        row, first = self.table.row, self._first_marked
        if row is None or self._is_told_drafter(row):
            return
        if first is None:
            self._mark(row)
            self._news(f"{row.name} is marked: c on another model compares the two.")
        elif first.name == row.name:
            self._mark(None)
            self._news("")
        else:
            self._mark(None)
            self._news("")
            self.app.push_screen(CompareModels(self._view.with_exact(first), row))

    def _mark(self, row: CatalogRow | None) -> None:
        self._first_marked = row
        self.table.mark({row.name} if row is not None else ())

    def action_details(self) -> None:
        is_over = self.has_class("-narrow") or self.has_class("-tiny")
        self.toggle_class("-details" if is_over else "-no-details")

    def action_less_context(self) -> None:
        self.pane.move_slider(-1)

    def action_more_context(self) -> None:
        self.pane.move_slider(1)

    def action_jobs(self) -> None:
        rows = self.query(JobRow)
        if rows:
            rows.first().focus()
        else:
            self._news("There are no downloads: d fetches a model.")

    def action_reload(self) -> None:
        self._view.forget_exact()
        self._read()

    def action_back(self) -> None:
        self._is_hub_meant = False
        filter_input = self.query_one("#filter", Input)
        if self.focused is not self.table:
            filter_input.value = "" if self.focused is filter_input else filter_input.value
            self.table.focus()
        elif self.has_class("-details"):
            self.remove_class("-details")
        elif self._first_marked is not None:
            self._mark(None)
        elif filter_input.value:
            filter_input.value = ""
        else:
            self.post_message(GoTo("chat"))
