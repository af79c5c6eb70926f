"""Loading a model for a command: progress and notices are narrated, Ctrl+C stops it.

It knows which model was asked for, and loads it again when the engine has died. It knows nothing of conversations.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

from runner.cli import render
from runner.cli.interrupt import Interruptible, cancelling, say_fetch_stopped
from runner.config import LoadOptions
from runner.errors import EngineDied, RunnerError

if TYPE_CHECKING:
    from runner.engine_process import EngineProcess
    from runner.events import Loaded, LoadEvent, Notice
    from runner.registry import ModelSpec
    from runner.types import ReadyModel

_PATIENCE_S = 0.4  # what is done sooner needs no bar


def show_notice(notice: Notice) -> None:
    """A notice of the engine on stderr."""
    if notice.level == "warning":
        render.warn(notice.text, notice.hint)
    else:
        render.narrate(notice.text)


class Narrator:
    """Shows events of getting a model ready: one bar a stage, begun only when the stage takes its time.

    draws: without it, the bar is only there for whoever draws it (`bar`), until the narrator is entered as a context.
    """

    def __init__(self, *, as_json: bool = False, draws: bool = True) -> None:
        self._as_json = as_json
        self._draws = draws
        self._stage = ""
        self._stage_began = 0.0
        self._bar: render.Progress | None = None

    def __enter__(self) -> Narrator:
        self._draws = True
        if self._bar is not None:
            self._bar.show()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_bar()

    def __call__(self, event: LoadEvent) -> None:
        from runner.events import Notice, Progress

        if isinstance(event, Progress):
            self._progress(event.stage, event.done, event.total, event.unit)
            return
        self._end_bar()
        if isinstance(event, Notice):
            show_notice(event)

    def bar(self, columns: int) -> str:
        """The bar as one line of at most so many columns; "" when there is none, and with --quiet."""
        return self._bar.bar(columns) if self._bar is not None and render.is_loud() else ""

    def _progress(self, stage: str, done: int, total: int, unit: str) -> None:
        from runner.status_text import STAGES

        if stage != self._stage:
            self._end_bar()
            self._stage, self._stage_began = stage, time.monotonic()
        if self._bar is None and time.monotonic() - self._stage_began >= _PATIENCE_S and done < total:
            self._bar = render.Progress(STAGES.get(stage, stage), total, unit=unit, as_json=self._as_json)
        if self._bar is not None:
            tell = self._bar.update if self._draws else self._bar.note
            tell(done, total)

    def _end_bar(self) -> None:
        if self._bar is not None and self._draws:
            self._bar.close()
        self._bar, self._stage = None, ""


def narrated(events: Iterable[LoadEvent], *, as_json: bool = False) -> LoadEvent | None:
    """Show events as they come; returns the last one."""
    last = None
    with Narrator(as_json=as_json) as narrator:
        for last in events:
            narrator(last)
    return last


def ready_here(spec: ModelSpec, *, offline: bool, as_json: bool) -> ReadyModel:
    """`spec` ready to load, with what is fetched of it shown. Ctrl+C says what is kept and exits."""
    from runner.prepare import ready

    with cancelling(say_fetch_stopped) as cancel, Narrator(as_json=as_json) as narrator:
        return ready(spec, offline=offline, on_event=narrator, cancel=cancel)


class Loader:
    """The model that a command uses, and how to load it. `model` and `options` are the ones loaded last, or asked for.

    is_in_chat: remedies of notices are the chat's commands. Loading raises KeyboardInterrupt when the user stopped it,
    and RunnerErrors.
    """

    def __init__(
        self,
        engine: EngineProcess,
        model: str,
        options: LoadOptions,
        *,
        offline: bool = False,
        as_json: bool = False,
        is_in_chat: bool = False,
    ) -> None:
        self.engine = engine
        self.model = model
        self.options = options
        self._offline = offline
        self._as_json = as_json
        self._is_in_chat = is_in_chat

    def load(self, model: str | None = None, options: LoadOptions | None = None) -> Loaded:
        """Load `model` (the same as before when None). They are remembered once they are loaded."""
        from runner.events import Loaded

        with Interruptible(self.engine) as interrupted:
            try:
                loaded = narrated(self.events(model, options), as_json=self._as_json)
            except RunnerError as error:
                if interrupted.presses:
                    raise KeyboardInterrupt from error
                raise
        assert isinstance(loaded, Loaded)  # else `events` would have raised
        return loaded

    def events(self, model: str | None = None, options: LoadOptions | None = None) -> Generator[LoadEvent, None, None]:
        """The events of `load`, Loaded the last. What Ctrl+C does is the caller's business: this runs in any thread."""
        model, options = model or self.model, options or self.options
        event: LoadEvent | None = None
        for event in self.engine.load(model, options, offline=self._offline):
            yield self._told(event)
        from runner.events import Loaded

        if not isinstance(event, Loaded):
            raise EngineDied("The engine did not finish loading.")
        self.model, self.options = model, options

    def _told(self, event: LoadEvent) -> LoadEvent:
        """The event as it is said here. What that takes is imported when one has come: behind a chat's prompt."""
        if not self._is_in_chat:
            return event
        from runner.chat_pages import said_in_chat

        return said_in_chat(event)

    def ensure(self) -> Loaded:
        """The loaded model; loads it again, and says so, when the engine is gone or a load failed in its place."""
        if self.engine.loaded is not None and self.engine.pid is not None:
            return self.engine.loaded
        why = "The engine is gone" if self.engine.pid is None else f"{self.model} made room for a load that failed"
        render.narrate(f"{why}: loading {self.model} again…")
        return self.load()

    def reload_with(self, **changes: Any) -> Loaded:
        """Load the same model with some LoadOptions changed. Raises UsageError for a bad value."""
        return self.load(options=dataclasses.replace(self.options, **changes))
