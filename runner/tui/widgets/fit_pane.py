"""The pane beside the table: what a model is, what it would take here by part, and a slider over its context.

It shows a row and, once its headers are read, an exact estimate, computed again at each move of the slider. It asks
nobody for anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Static

from runner.errors import RunnerError
from runner.fit import Fit
from runner.fit.words import kinds_text, verdict_text
from runner.measures import binary_size, decimal_size, short_count, wrap
from runner.model_files import weight_bytes
from runner.safe_text import safe_line
from runner.tui.catalog import CatalogRow, damage, row_fit
from runner.tui.catalog_columns import MARKS, fit_text
from runner.tui.content import line
from runner.tui.exact_fit import ExactFit
from runner.tui.memory_parts import MemoryView, Part
from runner.tui.widgets.context_slider import ContextSlider
from runner.tui.widgets.gauges import both_ends
from runner.tui.widgets.live_section import LiveSection, title
from runner.tui.widgets.memory_bar import bar, legend

_SPINNER: Final = "◐◓◑◒"
_TURN_S: Final = 0.2
_MOST_FILES: Final = 6
_STYLES: Final = {"fits": "$text-success", "partly": "$text-warning", "no": "$text-error", "unknown": "$text-muted"}

Rows = Callable[[int], Sequence[Content]]


class PaneSection(LiveSection):
    """Lines that a function makes for a width."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._make: Rows = lambda _: ()

    def show(self, make: Rows) -> None:
        self._make = make
        self.redraw()

    def rows(self, width: int) -> Sequence[Content]:
        return self._make(width)


class FitPane(VerticalScroll, can_focus=False):
    """Shows one row of the catalog; see the module."""

    SCOPED_CSS = False  # its rules ask for classes of the screen, which is outside of it
    DEFAULT_CSS = """
    FitPane { background: $surface; padding: 0 2; scrollbar-size-vertical: 1; }
    FitPane > PaneSection { margin-top: 1; }
    FitPane > #context-heading { height: 1; margin-top: 1; }
    FitPane > .-absent { display: none; }
    .-low FitPane > PaneSection, .-flat FitPane > PaneSection, .-low FitPane > #context-heading,
    .-flat FitPane > #context-heading { margin-top: 0; }
    """

    @dataclass
    class ContextChosen(Message):
        """The user moved the slider while that model was shown."""

        name: str
        n_ctx: int

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._row: CatalogRow | None = None
        self._exact: ExactFit | None = None
        self._error: RunnerError | None = None
        self._n_ctx = 0
        self._turn = 0
        self._spinner: Timer | None = None

    def compose(self) -> ComposeResult:
        yield PaneSection(id="about")
        yield PaneSection(id="memory")
        yield Static("", id="context-heading")
        yield ContextSlider(id="context")
        yield PaneSection(id="verdict")
        yield PaneSection(id="rest")

    def on_mount(self) -> None:
        self._spinner = self.set_interval(_TURN_S, self._spin, pause=True)
        self._draw()

    # --- what it shows ---------------------------------------------------------------------------------------------

    def show(self, row: CatalogRow | None, *, is_asking: bool = False) -> None:
        """A model as the catalog has it. is_asking: its headers are being read."""
        if row is None or self._row is None or row.name != self._row.name:
            self.scroll_home(animate=False)
        self._row, self._exact, self._error, self._n_ctx = row, None, None, 0
        self._set_asking(is_asking)
        self._draw()

    def show_exact(self, exact: ExactFit, n_ctx: int) -> None:
        """The model's headers have been read; the slider stands at `n_ctx`."""
        self._exact, self._error, self._n_ctx = exact, None, n_ctx
        self._set_asking(False)
        self._draw()

    def show_error(self, error: RunnerError) -> None:
        """Its headers cannot be read."""
        self._error = error
        self._set_asking(False)
        self._draw()

    @property
    def exact(self) -> ExactFit | None:
        return self._exact

    @property
    def n_ctx(self) -> int:
        """The context that the slider is at; 0 while there is none."""
        return self._n_ctx

    def move_slider(self, by: int) -> None:
        self.query_one(ContextSlider).action_step(by)

    def _set_asking(self, is_asking: bool) -> None:
        self._is_asking = is_asking
        if self._spinner is not None:
            (self._spinner.resume if is_asking else self._spinner.pause)()

    def _spin(self) -> None:
        self._turn += 1
        self.query_one("#verdict", PaneSection).redraw()

    @on(ContextSlider.Changed)
    def _context_changed(self, event: ContextSlider.Changed) -> None:
        event.stop()
        self._n_ctx = event.n_ctx
        self._draw()
        if self._row is not None:
            self.post_message(self.ContextChosen(self._row.name, event.n_ctx))

    # --- drawing ---------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        if not self.is_mounted:
            return
        row, exact = self._row, self._exact
        fit = exact.fit(self._n_ctx) if exact is not None else None
        self.query_one("#about", PaneSection).show(lambda width: _about(row, exact, width) if row else _nothing(width))
        memory = self.query_one("#memory", PaneSection)
        memory.show(lambda width: _memory(fit, width) if fit else ())
        self.query_one("#verdict", PaneSection).show(lambda width: self._verdict(fit, width))
        self.query_one("#rest", PaneSection).show(lambda width: _rest(row, exact, width) if row else ())
        memory.set_class(fit is None, "-absent")
        self._draw_slider()

    def _draw_slider(self) -> None:
        exact, slider = self._exact, self.query_one(ContextSlider)
        heading = self.query_one("#context-heading", Static)
        for widget in (slider, heading):
            widget.set_class(exact is None or exact.context_length < 2, "-absent")
        if exact is None:
            return
        if slider.value != self._n_ctx:
            slider.show(max(exact.context_length, self._n_ctx), self._n_ctx)
        of = f" of {exact.context_length:,}" if exact.context_length else ""
        heading.update(
            Content.assemble(title("CONTEXT"), "  ", (f"{self._n_ctx:,}", "bold"), (f"{of} tokens  ←/→", "$text-muted"))
        )

    def _verdict(self, fit: Fit | None, width: int) -> Sequence[Content]:
        row = self._row
        if row is None:
            return ()
        if fit is not None and self._exact is not None:
            return _exact_verdict(fit, self._exact, self._n_ctx, width)
        lines = [Content.assemble(title("MEMORY"), "  ", (fit_text(row.fit), _STYLES[row.fit.verdict]))]
        if row.fit.verdict != "unknown":
            lines += _wrapped("By the size of the weights alone.", width, "$text-muted")
        if self._is_asking:
            lines.append(Content.styled(f"{_SPINNER[self._turn % 4]} reading the headers…", "$text-accent"))
        elif self._error is not None:
            lines += _wrapped(f"✗ {self._error.message}", width, "$text-error")
            lines += _wrapped(self._error.hint, width, "$text-muted")
        return lines


def _wrapped(text: str, width: int, style: str = "") -> list[Content]:
    return [line(one, style) for one in wrap(safe_line(text), max(8, width)).split("\n")] if text else []


def _nothing(width: int) -> list[Content]:
    return _wrapped("Choose a model in the table to see what it would take here.", width, "$text-muted")


def _about(row: CatalogRow, exact: ExactFit | None, width: int) -> list[Content]:
    parameters = exact.facts.num_parameters if exact is not None else row.parameters
    size = weight_bytes(exact.files) if exact is not None else row.size_bytes
    about = "" if exact is not None or row.is_size_exact else "about "
    active = exact.facts.shape.num_active_parameters if exact is not None else row.active
    share = f" ({short_count(active)} a token)" if 0 < active < parameters else ""
    context = (exact.context_length if exact is not None else 0) or row.context
    facts = [
        f"{short_count(parameters)} parameters{share}" if parameters else "",
        exact.facts.quantization if exact is not None and exact.facts.quantization else row.quant,
        about + decimal_size(size) if size else "",
        f"{short_count(context)} context" if context else "",
        row.licence,
    ]
    state = {"complete": "on this machine", "partial": "partly fetched", "damaged": f"damaged: {damage(row)}"}
    return [
        line(row.name, "bold"),
        *_wrapped(row.description, width),
        *_wrapped(" · ".join(one for one in facts if one), width, "$text-muted"),
        *_wrapped(state.get(row.state, "not on this machine"), width, "$text-muted"),
    ]


def _memory(fit: Fit, width: int) -> list[Content]:
    view = fit_view(fit)
    free = Content(f"{binary_size(fit.available_bytes)} free")
    kinds = kinds_text(fit.kv_parts).strip(" ()")
    return [
        both_ends(title(view.title), free, width),
        line(fit.device.name, "$text-muted"),
        bar(view, width),
        *legend(view, width),
        *_wrapped(f"KV cache in {fit.kv_type}" + (f": {kinds}" if kinds else ""), width, "$text-muted"),
    ]


def fit_view(fit: Fit) -> MemoryView:
    """An estimate as the memory of its device: what others hold, what the model would take by part, what stays free."""
    need = fit.need
    parts = (
        Part(name="weights", size_bytes=need.weights_bytes),
        Part(name="KV cache", size_bytes=need.kv_cache_bytes),
        Part(name="workspace", size_bytes=need.workspace_bytes),
        Part(name="others", size_bytes=fit.others_bytes),
    )
    held = sum(part.size_bytes for part in parts)
    return MemoryView(
        title="RAM" if fit.device.kind == "cpu" else "VRAM",
        device=fit.device.name,
        note="",
        parts=tuple(part for part in parts if part.size_bytes),
        free_bytes=max(0, fit.device.total_bytes - held),
        total_bytes=fit.device.total_bytes,
        estimated_bytes=fit.total_bytes,
        actual_bytes=None,
        held_bytes=None,
    )


def _exact_verdict(fit: Fit, exact: ExactFit, n_ctx: int, width: int) -> list[Content]:
    verdict = row_fit(fit).verdict
    said = f"{MARKS[verdict]} {binary_size(fit.total_bytes)}: {verdict_text(fit)}"
    lines = _wrapped(said, width, f"bold {_STYLES[verdict]}")
    lines += _wrapped(exact.instead(n_ctx), width)
    if fit.n_loads:
        loads = "1 load" if fit.n_loads == 1 else f"{fit.n_loads} loads"
        lines += _wrapped(f"Corrected by what was used before ({loads}).", width, "$text-muted")
    return lines


def _rest(row: CatalogRow, exact: ExactFit | None, width: int) -> list[Content]:
    lines: list[Content] = []
    if exact is not None:
        lines.append(Content.assemble(title("BACKEND"), "  ", line(exact.backend or "none", "bold")))
        lines += _wrapped(exact.reason, width, "$text-muted" if exact.backend else "$text-error")
        lines += [Content(""), title("FILES"), *_files(exact.files, width)]
        if exact.download_bytes:
            lines += _wrapped(f"{decimal_size(exact.download_bytes)} to fetch from {exact.repo}", width, "$text-muted")
        for note in exact.notes:
            lines += [Content(""), *_wrapped(note, width, "$text-muted")]
    elif row.repo:
        lines += [title("FROM"), *_wrapped(row.repo, width)]
    if row.gated:
        lines += [Content(""), *_wrapped(_gated(row), width, "$text-warning")]
    if len(row.quants) > 1:
        lines += [Content(""), title("OFFERED"), *_wrapped(", ".join(row.quants), width, "$text-muted")]
    return lines


def _gated(row: CatalogRow) -> str:
    if row.gated == "yes":
        return "Gated: accept the licence on the hub's page of it, and log in."
    return "The original weights are gated; these GGUF files are not."


def _files(files: Sequence[tuple[str, int]], width: int) -> list[Content]:
    shown = [
        both_ends(line(name), line(decimal_size(size), "$text-muted"), width) for name, size in files[:_MOST_FILES]
    ]
    more = len(files) - len(shown)
    return [*shown, *([Content.styled(f"and {more} more", "$text-muted")] if more else [])]
