"""The engine: load a model, chat with it, unload it, and tell what happens as events.

The one data path of CLI, TUI, bench and tests: messages -> template -> ids -> backend -> text -> events. It knows no
screen and no database; engine_process.py offers the same surface with this one in a child process.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from runner.backends import backend_module, choose
from runner.backends.base import Backend, Began, Compiling, Prefill, Step
from runner.config import ChatOptions, LoadOptions, SamplingParams
from runner.detokenize import AnswerStream
from runner.errors import RunnerError, UsageError
from runner.events import (
    ChatEvent,
    Finished,
    FinishReason,
    Loaded,
    LoadEvent,
    Notice,
    Progress,
    ReasoningDelta,
    Stats,
    TextDelta,
)
from runner.fit import Alternative, alternatives, check_fit, plan, read_facts, record_of
from runner.fit_history import read_history, record_load
from runner.machine import default_threads, devices
from runner.paths import Paths
from runner.prepare import ready
from runner.prompt import build_prompt
from runner.registry import Registry
from runner.telemetry import Stages, Stopwatch
from runner.types import CancelToken, Message, ModelInfo, ReadyModel

log = logging.getLogger(__name__)

_STATS_EVERY_S = 0.1
DEFAULT_CHAT_OPTIONS = ChatOptions()


class EngineSurface(Protocol):
    """What a front end may ask of an engine, in this process or in another."""

    loaded: Loaded | None

    def load(self, model: str, options: LoadOptions, *, offline: bool = False) -> Iterator[LoadEvent]:
        """Get `model` ready (fetching it if need be) and load it in place of the one before; Loaded comes last.

        Closing the iterator before that cancels. Raises RunnerErrors.
        """
        ...

    def chat(
        self, messages: Sequence[Message], params: SamplingParams, options: ChatOptions = DEFAULT_CHAT_OPTIONS
    ) -> Iterator[ChatEvent]:
        """Answer the last of `messages`; Finished comes last. Closing the iterator cancels."""
        ...

    def cancel(self) -> None:
        """Stop what runs within 200 ms; its iterator then ends as cancelled. From any thread or signal handler."""
        ...

    def unload(self) -> None: ...

    def close(self) -> None: ...


class Engine(EngineSurface):
    """The engine in this process. One request at a time; only `cancel` may come from another thread."""

    def __init__(self, paths: Paths, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._paths = paths
        self._clock = clock
        self._backend: Backend | None = None
        self._cancel = CancelToken()
        self.loaded: Loaded | None = None

    def load(
        self, model: str, options: LoadOptions, *, offline: bool = False, cancel: CancelToken | None = None
    ) -> Iterator[LoadEvent]:
        self._cancel = cancel = cancel or CancelToken()
        self.unload()
        started = self._clock()
        stages = Stages()

        def on_stage(name: str) -> None:
            stages.begin(name, self._clock())

        def work(emit: Callable[[LoadEvent], None]) -> None:
            on_stage("files")
            registry = Registry.load_for(self._paths)
            spec = registry.resolve(model)
            files = ready(spec, offline=offline, on_event=emit, cancel=cancel)
            context = FitContext(self._paths.fit_history, lambda: alternatives(spec, registry))
            backend, reason = load_backend(files, options, emit, cancel, context, on_stage)
            if cancel.is_cancelled:  # it came when the backend had looked for it the last time
                backend.close()
                raise RunnerError("Loading was cancelled.")
            self._backend = backend
            self.loaded = Loaded(
                info=backend.info,
                memory=backend.memory(),
                reason=reason,
                load_s=self._clock() - started,
                sampling=dict(files.sampling),
                stages=stages.end(self._clock()),
            )
            if backend.info.n_ctx > backend.info.context_length:
                emit(_long_context_notice(backend.info))
            log.info("loaded %s on %s in %.2f s: %s", model, backend.info.device, self.loaded.load_s, reason)
            log.info("stages of it in s: %s", self.loaded.stages)
            emit(self.loaded)

        yield from _events_of(work, cancel)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams,
        options: ChatOptions = DEFAULT_CHAT_OPTIONS,
        *,
        cancel: CancelToken | None = None,
    ) -> Iterator[ChatEvent]:
        backend = self.backend
        self._cancel = cancel = cancel or CancelToken()
        if params.seed is None:
            params = dataclasses.replace(params, seed=secrets.randbits(32))
        answer = _Answer(backend, params, options, cancel, self._clock)
        yield from answer.events(messages)

    @property
    def backend(self) -> Backend:
        """What is loaded, for those who measure it. Raises UsageError when nothing is."""
        if self._backend is None:
            raise UsageError("No model is loaded.", hint="Load one first.")
        return self._backend

    def cancel(self) -> None:
        self._cancel.cancel()

    def unload(self) -> None:
        backend, self._backend, self.loaded = self._backend, None, None
        if backend is not None:
            backend.close()

    def close(self) -> None:
        self.unload()


@dataclasses.dataclass(frozen=True)
class FitContext:
    """What an estimate can lean on: the file of earlier loads, and what could be run instead of a model."""

    history: Path
    others: Callable[[], Sequence[Alternative]]


def load_backend(
    files: ReadyModel,
    options: LoadOptions,
    emit: Callable[[LoadEvent], None],
    cancel: CancelToken,
    context: FitContext | None = None,
    on_stage: Callable[[str], None] = lambda _: None,
) -> tuple[Backend, str]:
    """Choose, check that it fits, load. Returns the backend and the reason for it. on_stage hears what begins.

    With a context the estimate is corrected by earlier loads, and this load is added to them.
    """
    on_stage("choice")
    choice = choose(files, options)
    if choice.is_fallback:
        emit(Notice("warning", f"Using the {choice.name} backend: {choice.reason}"))
    on_stage("estimate")
    machine, facts = devices(), read_facts(files)
    options = dataclasses.replace(options, n_threads=options.n_threads or default_threads())
    made = plan(facts, options, machine, choice.name, read_history(context.history) if context else (), emit)
    if choice.name == "llamacpp" and not options.force:  # native knows its types and its allocator: it checks itself
        check_fit(files.name, facts, made, machine, context.others if context else tuple)
    on_stage("backend")
    percent = -1

    def report(progress: float | Compiling | Began) -> None:
        nonlocal percent
        if isinstance(progress, Began):
            on_stage(progress.stage)
        elif isinstance(progress, Compiling):
            emit(Progress("compile", progress.done, progress.total, "kernels"))
        elif int(progress * 100) > percent:
            percent = int(progress * 100)
            emit(Progress("load", percent, 100, "%"))

    backend = backend_module(choice.name).load(files, made.options, report, cancel)
    if backend.info.note:
        emit(Notice("info", backend.info.note))
    if context:
        record_load(context.history, record_of(made, backend.memory()))
    return backend, choice.reason


def _events_of(work: Callable[[Callable[[LoadEvent], None]], None], cancel: CancelToken) -> Iterator[LoadEvent]:
    """Run `work(emit)` in a thread and yield what it emits; its exception is raised here. Closing cancels it."""
    events: queue.SimpleQueue[LoadEvent | None] = queue.SimpleQueue()
    failure: list[BaseException] = []

    def run() -> None:
        try:
            work(events.put)
        except BaseException as error:
            failure.append(error)
        finally:
            events.put(None)

    thread = threading.Thread(target=run, name="load", daemon=True)
    thread.start()
    try:
        while (event := events.get()) is not None:
            yield event
    except BaseException:
        cancel.cancel()
        raise
    finally:
        thread.join()
    if failure:
        raise failure[0]


class _Answer:
    """One request: turns a backend's steps into events until the answer ends."""

    def __init__(
        self,
        backend: Backend,
        params: SamplingParams,
        options: ChatOptions,
        cancel: CancelToken,
        clock: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._params = params
        self._options = options
        self._cancel = cancel
        self._clock = clock
        self._token_ids: list[int] = []
        self._n_reasoning = 0
        self._has_answered = False

    def events(self, messages: Sequence[Message]) -> Iterator[ChatEvent]:
        started = self._clock()
        info, tokenizer = self._backend.info, self._backend.tokenizer
        quarter = info.n_ctx // 4
        room = min(self._params.max_tokens or quarter, quarter)
        prompt = build_prompt(messages, self._options, info, tokenizer, room)
        if prompt.dropped:
            yield _dropped_notice(prompt.dropped)
        self._watch = Stopwatch(started, len(prompt.ids))
        self._stream = AnswerStream(
            tokenizer, stops=self._params.stop, markers=prompt.markers, is_in_reasoning=prompt.is_in_reasoning
        )
        reason = None if self._is_thought_over_budget() else (yield from self._run(prompt.ids))
        while reason is None:
            yield from self._close_thought()
            reason = self._reached_limit(len(prompt.ids))
            if reason is None:
                reason = yield from self._run((*prompt.ids, *self._token_ids))
        yield from self._deltas(self._stream.finish())
        timings = self._watch.timings(self._clock())
        log.info("answered (%s): %s", reason, timings)
        yield Finished(
            reason=reason,
            timings=timings,
            token_ids=tuple(self._token_ids),
            seed=self._params.seed or 0,
            n_ctx=info.n_ctx,
        )

    def _run(self, ids: Sequence[int]) -> Generator[ChatEvent, None, FinishReason | None]:
        """Generate from `ids` until the answer ends, or None when the thought has used up its budget."""
        steps = self._backend.generate(ids, self._params, self._cancel)
        next_stats = self._clock() + _STATS_EVERY_S
        try:
            for step in steps:
                if isinstance(step, Prefill):
                    if not self._has_answered:  # else it goes on after a closed thought, and the prompt is long done
                        self._watch.prefill(step.cached)
                        yield Progress("prefill", step.done, step.total, "tokens")
                    continue
                now = self._clock()
                self._has_answered = True
                if step.token in self._backend.tokenizer.stop_ids:
                    return "stop"
                yield from self._take(step, now)
                if self._stream.is_finished:
                    return "stop"
                if self._params.max_tokens and len(self._token_ids) >= self._params.max_tokens:
                    return "length"
                if self._is_thought_over_budget():
                    return None
                if now >= next_stats:
                    next_stats = now + _STATS_EVERY_S
                    yield Stats(self._watch.timings(now), self._backend.info.n_ctx)
        finally:
            steps.close()
        return "cancelled" if self._cancel.is_cancelled else "context"

    def _take(self, step: Step, now: float) -> Iterator[ChatEvent]:
        self._watch.token(now, step.n_drafted, step.n_accepted)
        self._token_ids.append(step.token)
        self._n_reasoning += self._stream.is_in_reasoning
        return self._deltas(self._stream.push(step.token))

    def _is_thought_over_budget(self) -> bool:
        budget = self._options.think_budget
        return budget is not None and self._stream.is_in_reasoning and self._n_reasoning >= budget

    def _close_thought(self) -> Iterator[ChatEvent]:
        """Write the end of the thought for the model, as part of its completion."""
        for token in self._backend.tokenizer.encode(self._stream.closing_text):
            self._watch.written()
            self._token_ids.append(token)
            yield from self._deltas(self._stream.push(token))

    def _reached_limit(self, n_prompt: int) -> FinishReason | None:
        """Why nothing can follow what was written for the model, if so."""
        if self._params.max_tokens and len(self._token_ids) >= self._params.max_tokens:
            return "length"
        return "context" if n_prompt + len(self._token_ids) >= self._backend.info.n_ctx else None

    @staticmethod
    def _deltas(pieces: Sequence[tuple[str, str]]) -> Iterator[ChatEvent]:
        for kind, text in pieces:
            yield TextDelta(text) if kind == "text" else ReasoningDelta(text)


def _long_context_notice(info: ModelInfo) -> Notice:
    return Notice(
        "warning",
        f"The context of {info.n_ctx} tokens is longer than the {info.context_length} that {info.name} was trained on.",
        "Answers get worse beyond that: choose a smaller -c.",
    )


def _dropped_notice(dropped: Sequence[Message]) -> Notice:
    first = " ".join(dropped[0].content.split())[:60]
    return Notice(
        "warning",
        f"The context is full: the oldest {len(dropped)} messages are left out, from “{first}” on.",
        "Use a larger context (-c), or /clear to start afresh.",
    )
