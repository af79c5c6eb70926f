"""The engine: load a model, chat with it, unload it, and tell what happens as events.

The one data path of CLI, TUI, bench and tests: messages -> template -> ids -> backend -> text -> events. It knows no
screen and no database; engine_process.py offers the same surface with this one in a child process.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from runner.answering import Answer
from runner.backends import WITH_HEADS, backend_module, choose
from runner.backends.base import Backend, Began, Compiling, without_heads
from runner.config import ChatOptions, LoadOptions, SamplingParams
from runner.draft_choice import DraftChoice, cannot_draft, choose_drafter, unused
from runner.draft_files import quotable, read_draft_files
from runner.drafting import NO_DRAFTING, Drafting, draft_options, open_drafting
from runner.errors import RunnerError, UnsuitedOptions, UnsupportedModel, UsageError, loading_cancelled
from runner.events import (
    ChatEvent,
    Loaded,
    LoadEvent,
    Notice,
    Progress,
)
from runner.fit import Alternative, ModelFacts, Plan, alternatives, check_fit, plan, read_facts, record_of
from runner.fit_history import read_history, record_load
from runner.grammar import Grammars
from runner.machine import devices
from runner.own_bits import in_own_bits
from runner.paths import Paths
from runner.prepare import ready
from runner.prompt import build_prompt
from runner.quant.draft_tensors import open_heads
from runner.registry import ModelSpec, Registry
from runner.status_text import load_summary
from runner.telemetry import Stages
from runner.types import BackendName, CancelToken, Message, ModelInfo, ReadyModel

log = logging.getLogger(__name__)

DEFAULT_CHAT_OPTIONS = ChatOptions()
_ANY_MESSAGE = (Message(role="user", content="Hello."),)  # for which the template is compiled


class EngineSurface(Protocol):
    """What a front end may ask of an engine, in this process or in another."""

    loaded: Loaded | None

    def load(self, model: str, options: LoadOptions, *, offline: bool = False) -> Iterator[LoadEvent]:
        """Get `model` ready (fetching it if need be) and load it in place of the one before; Loaded comes last.

        Closing the iterator before that cancels. Raises RunnerErrors. The one before is let go once the other is
        ready: what is misspelt, cannot be fetched, or is run by no backend leaves it loaded.
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
        self._drafting = NO_DRAFTING
        self._grammars: Grammars | None = None
        self._has_tried = False
        self._cancel = CancelToken()
        self.weights: Path | None = None  # the first file of what was loaded last, where it has files
        self.loaded: Loaded | None = None

    def load(
        self, model: str, options: LoadOptions, *, offline: bool = False, cancel: CancelToken | None = None
    ) -> Iterator[LoadEvent]:
        self._cancel = cancel = cancel or CancelToken()
        started = self._clock()
        stages = Stages()

        def on_stage(name: str) -> None:
            stages.begin(name, self._clock())

        def work(emit: Callable[[LoadEvent], None]) -> None:
            on_stage("files")
            registry = Registry.load_for(self._paths)
            spec = registry.resolve(model)
            files = ready(spec, offline=offline, on_event=emit, cancel=cancel)
            facts = read_facts(files)
            # Of a model for which nothing drafts, no drafter is looked for, fetched or made room for.
            can_go_back, heads = _can_go_back(files, facts, options), self._paths.drafts
            choice = choose_drafter(options, spec, registry, files.directory, heads, can_go_back=can_go_back)
            # Once the model that is loaded there is gone, a GPU may have room for another backend.
            _check_head(choice, files, options, is_emptied=self._holds_gpu())
            texts = read_draft_files(choice.files, emit)
            context = FitContext(self._paths.fit_history, lambda: alternatives(spec, registry))
            if choice.is_model and not offline:
                room = None if self._has_tried else context  # what an earlier load holds is free by then
                _check_remote_draft(registry.resolve(choice.source), spec, files, facts, options, cancel, room)
            draft = _draft_model(choice, registry, options, emit, cancel, offline=offline)
            if self._backend is not None:
                choose(files, options)  # whether any runs it; which one is asked again once that one's memory is free
            self.unload()
            if self._has_tried:
                gc.collect()  # what failed to load may have left its memory in the cycles of a traceback
            self._has_tried = True
            _check_head(choice, files, options)
            beside = None if draft is None else draft.facts
            is_open = options.backend == "auto" and files.format == "gguf"
            faster = in_own_bits(spec, registry, facts.num_parameters) if is_open else ""
            backend, reason = load_backend(files, facts, options, emit, cancel, context, on_stage, draft=beside)
            on_stage("drafter")
            drafting = _open_drafting(choice, draft, texts, backend, options, emit, cancel)
            self._backend, self._drafting, self.weights = backend, drafting, next(iter(files.weights), None)
            self.loaded = Loaded(
                info=backend.info,
                memory=dataclasses.replace(backend.memory(), draft_bytes=drafting.nbytes),
                reason=f"{reason}; {faster}" if faster and backend.info.backend == "llamacpp" else reason,
                speculation=drafting.choice.words,
                draft_max=drafting.draft_max,
                load_s=self._clock() - started,
                sampling=dict(files.sampling),
                stages=stages.end(self._clock()),
            )
            if backend.info.n_ctx > backend.info.context_length:
                emit(_long_context_notice(backend.info))
            log.info("loaded %s on %s in %.2f s: %s", model, backend.info.device, self.loaded.load_s, reason)
            log.info("%s", load_summary(self.loaded))
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
        if self._grammars is None:
            self._grammars = Grammars(backend.tokenizer)
        answer = Answer(backend, self._drafting, self._grammars, params, options, cancel, self._clock)
        yield from answer.events(messages)

    def get_ready(self, cancel: CancelToken) -> Iterator[None]:
        """Go on with what first answers would wait for, a piece at a time, until somebody asks for anything."""
        backend = self._backend
        if backend is None:
            return
        try:
            with suppress(RunnerError):  # whoever asks is told
                build_prompt(_ANY_MESSAGE, DEFAULT_CHAT_OPTIONS, backend.info, backend.tokenizer, 1)
            yield
            yield from backend.get_ready(cancel)
        except Exception:  # no memory, most likely: answers do without
            log.warning("not ready for first answers", exc_info=True)

    @property
    def backend(self) -> Backend:
        """What is loaded, for those who measure it. Raises UsageError when nothing is."""
        if self._backend is None:
            raise UsageError("No model is loaded.", hint="Load one first.")
        return self._backend

    @property
    def drafting(self) -> Drafting:
        """What drafts for it, or why nothing does, for those who measure it."""
        return self._drafting

    def _holds_gpu(self) -> bool:
        """Whether a GPU will have more room without the model that is loaded."""
        return self._backend is not None and self._backend.info.n_gpu_layers > 0

    def cancel(self) -> None:
        self._cancel.cancel()

    def unload(self) -> None:
        backend, self._backend, self.loaded = self._backend, None, None
        self._drafting.close()
        self._drafting = NO_DRAFTING
        self._grammars = None
        if backend is not None:
            backend.close()

    def close(self) -> None:
        self.unload()


@dataclasses.dataclass(frozen=True)
class _DraftModel:
    """A model that is to draft: its files, ready to load, and what they say of it."""

    files: ReadyModel
    facts: ModelFacts


def _check_head(choice: DraftChoice, files: ReadyModel, options: LoadOptions, *, is_emptied: bool = False) -> None:
    """Refuse a head before anything is loaded, where the model's files or the backend that will run it have none.

    is_emptied: as if all of a GPU's memory were free.
    """
    if choice.drafter == "mtp":
        try:
            open_heads(files)
        except UnsupportedModel as error:  # the model runs without
            raise UnsuitedOptions(error.message, hint=error.hint) from error
    if choice.is_head and (backend := choose(files, options, is_emptied=is_emptied).name) not in WITH_HEADS:
        raise without_heads(backend, str(choice.drafter), choice.source)


def _draft_model(
    choice: DraftChoice,
    registry: Registry,
    options: LoadOptions,
    emit: Callable[[LoadEvent], None],
    cancel: CancelToken,
    *,
    offline: bool,
) -> _DraftModel | None:
    """The model of `choice`, where it has one. Raises UnsuitedOptions where it cannot go back, and what ready does."""
    if not choice.is_model:
        return None
    files = ready(registry.resolve(choice.source), offline=offline, on_event=emit, cancel=cancel)
    facts = read_facts(files)
    if not _can_go_back(files, facts, options):
        raise cannot_draft(files.name)
    return _DraftModel(files, facts)


def _check_remote_draft(
    draft: ModelSpec,
    target: ModelSpec,
    files: ReadyModel,
    facts: ModelFacts,
    options: LoadOptions,
    cancel: CancelToken,
    room: FitContext | None,
) -> None:
    """Refuse a draft model before it is fetched, for what its headers tell. room: None where it cannot be told now."""
    from runner.preview import remote_draft  # which most loads do without

    beside = remote_draft(draft, target, options, cancel)
    if beside is not None and room is not None:
        _planned(files, facts, options, choose(files, options).name, lambda _: None, room, beside)


def _open_drafting(
    choice: DraftChoice,
    draft: _DraftModel | None,
    texts: Sequence[str],
    backend: Backend,
    options: LoadOptions,
    emit: Callable[[LoadEvent], None],
    cancel: CancelToken,
) -> Drafting:
    """The speculation of a backend, which is closed when that fails.

    draft: the model that drafts. texts: what drafts may quote.
    """

    def load_draft() -> Backend:
        assert draft is not None, "the choice has no model"
        of_draft = draft_options(options, backend.info, draft.facts)
        return load_backend(draft.files, draft.facts, of_draft, emit_of_draft, cancel)[0]

    def emit_of_draft(event: LoadEvent) -> None:
        if not (isinstance(event, Notice) and event.level == "info"):  # which the target has said already
            emit(event)

    try:
        drafting = open_drafting(choice, backend, options, load_draft, lambda: quotable(texts, backend.tokenizer, emit))
        if cancel.is_cancelled:  # it came when the backends had looked for it the last time
            drafting.close()
            raise loading_cancelled()
    except BaseException:
        backend.close()
        raise
    if drafting.speculator is None and options.speculation not in ("auto", "off"):
        emit(Notice("warning", f"Nothing is drafted: {drafting.choice.reason}."))
        return drafting
    for notice in unused(options, drafting.choice):
        emit(notice)
    return drafting


@dataclasses.dataclass(frozen=True)
class FitContext:
    """What an estimate can lean on: the file of earlier loads, and what could be run instead of a model."""

    history: Path
    others: Callable[[], Sequence[Alternative]]


def _can_go_back(files: ReadyModel, facts: ModelFacts, options: LoadOptions) -> bool:
    """Whether tokens can be taken back. Of layers that keep a state the native backend keeps some earlier ones."""
    return facts.shape.can_go_back or choose(files, options).name == "native"


def load_backend(
    files: ReadyModel,
    facts: ModelFacts,
    options: LoadOptions,
    emit: Callable[[LoadEvent], None],
    cancel: CancelToken,
    context: FitContext | None = None,
    on_stage: Callable[[str], None] = lambda _: None,
    *,
    draft: ModelFacts | None = None,
) -> tuple[Backend, str]:
    """Choose, check that it fits, load. Returns the backend and the reason for it. on_stage hears what begins.

    facts: what read_facts gives of `files`. With a context the estimate is corrected by earlier loads, and this load is
    added to them. draft: of a model that will be loaded beside it, which there must be room for.
    """
    on_stage("choice")
    choice = choose(files, options)
    if choice.is_fallback:
        emit(Notice("warning", f"Using the {choice.name} backend: {choice.reason}"))
    on_stage("estimate")
    made = _planned(files, facts, options, choice.name, emit, context, draft)
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


def _planned(
    files: ReadyModel,
    facts: ModelFacts,
    options: LoadOptions,
    backend: BackendName,
    emit: Callable[[Notice], None],
    context: FitContext | None,
    draft: ModelFacts | None,
) -> Plan:
    """How it is to be loaded. Raises DoesNotFit, unless that is forced."""
    machine = devices()
    records = read_history(context.history) if context else ()
    made = plan(facts, options, machine, backend, records, emit, draft=draft)
    # native knows its types and its allocator and checks itself, but not what will be loaded beside it.
    if (backend == "llamacpp" or draft is not None) and not options.force:
        check_fit(files.name, facts, made, machine, context.others if context else tuple)
    return made


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
        raise failure.pop()  # or its own traceback would hold it in a cycle


def _long_context_notice(info: ModelInfo) -> Notice:
    return Notice(
        "warning",
        f"The context of {info.n_ctx} tokens is longer than the {info.context_length} that {info.name} was trained on.",
        f"Answers get worse beyond that: -c {info.context_length} keeps to it.",
    )
