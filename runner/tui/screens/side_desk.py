"""What the chat's screen does with its rails: folds them, and fills them with models, downloads and readings.

Where there is no room for a rail beside the transcript, it opens over it. It knows nothing of chats and answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from runner.inventory import LocalModel, local_models
from runner.tui.jobs import Job, JobQueue
from runner.tui.machine_watch import MachineSample
from runner.tui.messages import AnswerEnded, EngineMessage, LoadEnded, Preferred, Unloaded
from runner.tui.widgets.left_rail import LeftRail
from runner.tui.widgets.live_rail import LiveRail
from runner.tui.widgets.models_here import ModelsHere
from runner.tui.widgets.sessions_rail import SessionsRail
from runner.tui.widgets.status_line import StatusLine
from runner.tui.yardstick import LoadFacts, Yardstick, load_facts, measured_since

if TYPE_CHECKING:
    from runner.tui.screens.chat_surface import ChatSurface

Side = Literal["left", "right"]
_OTHER: dict[Side, Side] = {"left": "right", "right": "left"}


class SideDesk:
    """One chat screen's rails. is_open: which are shown where there is room for them."""

    def __init__(self, chat: ChatSurface, jobs: JobQueue, *, left: bool, right: bool) -> None:
        self._chat = chat
        self._jobs = jobs
        self._n_done = 0
        self._yardstick: Yardstick | None = None
        self._benchmarks: tuple[int, int] | None = None  # MachineSample.benchmarks, as it was last
        self._benchmarks_read: tuple[int, int] | None = None  # the same when the yardstick was read, or earlier
        self.is_open: dict[Side, bool] = {"left": left, "right": right}

    # --- folding ---------------------------------------------------------------------------------------------------

    def show(self) -> None:
        """Fold what is folded."""
        self._chat.update_classes({f"-no-{side}": not is_open for side, is_open in self.is_open.items()})

    @property
    def _is_cramped(self) -> bool:
        return self._chat.has_class("-narrow") or self._chat.has_class("-tiny")

    @property
    def has_overlay(self) -> bool:
        """Whether a rail lies over the transcript."""
        return self._is_cramped and (self._chat.has_class("-over-left") or self._chat.has_class("-over-right"))

    def toggle(self, side: Side) -> bool:
        """Show or fold a rail; the left one gets the focus when it comes. Gives whether it is shown now."""
        if self._is_cramped:
            is_shown = not self._chat.has_class(f"-over-{side}")
            self._chat.update_classes({f"-over-{side}": is_shown, f"-over-{_OTHER[side]}": False})
        else:
            is_shown = self.is_open[side] = not self.is_open[side]
            self.show()
            self._chat.post_message(Preferred())
        if not is_shown:
            self._chat.focus_prompt()
        elif self._is_cramped or side == "left":
            self._focus(side)
        return is_shown

    def close_overlay(self) -> None:
        """Fold the rail that lies over the transcript."""
        self._chat.remove_class("-over-left", "-over-right")

    def reveal(self, side: Side) -> None:
        """Show a rail that is folded."""
        is_shown = self._chat.has_class(f"-over-{side}") if self._is_cramped else self.is_open[side]
        if not is_shown:
            self.toggle(side)

    def _focus(self, side: Side) -> None:
        if side == "left":
            self._chat.query_one(SessionsRail).focus_list()
        else:
            self._chat.query_one(LiveRail).focus()

    # --- what they show --------------------------------------------------------------------------------------------

    def on_engine(self, message: EngineMessage) -> None:
        self._chat.query_one(LiveRail).on_engine(message)
        self._chat.query_one(StatusLine).on_engine(message)
        has_died = isinstance(message, AnswerEnded) and message.state == "empty"
        if has_died or isinstance(message, (LoadEnded, Unloaded)):
            self.read_models()
        if isinstance(message, LoadEnded):
            self._read_facts()

    def on_machine(self, sample: MachineSample) -> None:
        self._chat.query_one(LiveRail).on_machine(sample)
        self._chat.query_one(StatusLine).on_machine(sample)
        self._benchmarks = sample.benchmarks
        self._look_for_benchmarks()

    def on_jobs(self, jobs: tuple[Job, ...]) -> None:
        self._chat.query_one(LeftRail).show_jobs(jobs)
        self._chat.query_one(StatusLine).on_jobs(jobs)
        n_done = sum(job.state == "done" for job in jobs)
        if n_done != self._n_done:
            self._n_done = n_done
            self.read_models()

    def read_models(self) -> None:
        """Look anew which models are here."""
        self._chat.in_thread(self._models, self._show_models, group="models")

    def _models(self) -> tuple[tuple[LocalModel, ...], tuple[str, ...]]:
        """Those that can be run, and every name that /model could be given."""
        registry = self._chat.services.registry()
        here = tuple(model for model in local_models(registry) if model.state == "complete")
        named = [spec.name for spec in (*registry.specs, *registry.made())]
        return here, tuple(dict.fromkeys([*(model.name for model in here), *named]))

    def _show_models(self, found: tuple[tuple[LocalModel, ...], tuple[str, ...]]) -> None:
        here, names = found
        engine = self._chat.engine
        self._chat.query_one(ModelsHere).show(here, engine.model if engine.loaded is not None else None)
        self._chat.box.set_models(names)

    def _read_facts(self) -> None:
        """What the loaded model was expected to take, and what its speed is held against."""
        engine, paths = self._chat.engine, self._chat.services.paths
        model, loaded, options = engine.model, engine.loaded, engine.options
        if loaded is not None:
            self._yardstick = None  # until its own is known: what is measured meanwhile is looked at then
            self._benchmarks_read = self._benchmarks
            self._chat.in_thread(lambda: load_facts(paths, model, loaded, options), self._show_facts, group="facts")

    def _show_facts(self, facts: LoadFacts) -> None:
        self._chat.query_one(LiveRail).show_fit(facts.fit)
        self._show_yardstick(facts.yardstick)

    def _show_yardstick(self, yardstick: Yardstick) -> None:
        self._yardstick = yardstick
        self._chat.query_one(LiveRail).show_yardstick(yardstick)

    def _look_for_benchmarks(self) -> None:
        """Another program may have measured this machine since the model was loaded."""
        paths, loaded, stick = self._chat.services.paths, self._chat.engine.loaded, self._yardstick
        if loaded is None or stick is None:
            return
        if self._benchmarks == self._benchmarks_read:
            return
        self._benchmarks_read = self._benchmarks

        def show(measured: Yardstick) -> None:
            if self._yardstick is stick:  # else another model was loaded meanwhile, and is known better
                self._show_yardstick(measured)

        self._chat.in_thread(lambda: measured_since(stick, paths, loaded), show, group="benchmarks")
