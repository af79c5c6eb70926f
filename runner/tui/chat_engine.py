"""The engine of the chat and its conversation, behind a thread: methods return at once, messages tell what happened.

One thread does one thing at a time: loads, answers, unloads. What it does arrives in the UI's thread as the messages
of messages.py. It knows no widget.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue
from time import monotonic, time
from typing import Any

from textual.message import Message

from runner.chat_pages import error_in_chat, said_in_chat
from runner.config import ChatOptions, LoadOptions
from runner.conversation import Conversation
from runner.engine_process import EngineProcess
from runner.errors import BusyError, EngineDied, RunnerError, UsageError
from runner.events import ChatEvent, Finished, Loaded
from runner.transcript import Turn
from runner.tui.messages import (
    AnswerBegan,
    AnswerEnded,
    AnswerStep,
    AnswerStopping,
    EngineState,
    Lent,
    LoadBegan,
    LoadEnded,
    LoadStep,
    TakenBack,
    Unloaded,
)
from runner.tui.services import Services

_log = logging.getLogger(__name__)
_PATIENCE_S = 2.0  # an engine that computes on for so long, though it was asked to stop, may be ended by asking again


class ChatEngine:
    """The chat's engine. post: takes messages from any thread.

    model and options: what is loaded, or is loaded by the next question. own_params: sampling that the user set; the
    rest is the model's own. conversation: while an answer is written, only its read-only properties may be used.
    """

    def __init__(self, services: Services, post: Callable[[Message], object]) -> None:
        settings = services.settings
        self._services = services
        self._post = post
        self._engine = EngineProcess(services.paths)
        self._requests: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._n_questions = 0  # asked and not ended: in the queue, or being answered
        self._last_request = 0
        self._stopped_up_to = 0  # requests of this number and below are not wanted any more
        self._is_lent = False
        self._thread = threading.Thread(target=self._work, name="chat-engine", daemon=True)
        self.model = services.model
        self.options = services.load_options
        self.own_params: dict[str, Any] = {}
        self.state: EngineState = "empty"
        self._stopping_since = 0.0
        self.conversation = Conversation(
            self._engine,
            model=self.model,
            store=services.store,
            params=settings.sampling_params({}, {}),
            options=settings.chat_options(),
            system=settings.system,
        )

    # --- what there is ---------------------------------------------------------------------------------------------

    @property
    def loaded(self) -> Loaded | None:
        return self._engine.loaded

    @property
    def is_busy(self) -> bool:
        """Whether a question waits or is being answered."""
        return self._n_questions > 0

    @property
    def is_lent(self) -> bool:
        """Whether a benchmark has the machine."""
        return self._is_lent

    def pids(self) -> tuple[int, ...]:
        """The engine's process, when there is one."""
        pid = self._engine.pid
        return () if pid is None else (pid,)

    # --- what can be asked -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread and the engine's process, which imports what it needs meanwhile."""
        self._thread.start()
        self._request(lambda _: self._start())

    def open(self, model: str, options: LoadOptions | None = None) -> None:
        """Load `model` in place of the one before; what runs is stopped first."""
        self.stop()
        if self.state != "stopping":
            self.state = "loading"
        self._request(lambda number: self._load(number, model, options or self.options))

    def send(self, text: str) -> None:
        """Ask `text`, once what goes on is over; a model is loaded first when there is none. Raises UsageError."""
        if not text.strip():
            raise UsageError("The message is empty.", hint="Write something.")
        self._ask(text, lambda: self.conversation.send(text))

    def edit_last(self, text: str) -> None:
        """Ask `text` in place of the last question. Raises UsageError."""
        if not text.strip():
            raise UsageError("The message is empty.", hint="Write something.")
        self._ask(text, lambda: self.conversation.edit_last(text))

    def regenerate(self) -> None:
        """Answer the last question again. Raises UsageError when there is none."""
        question = next((turn for turn in reversed(self.conversation.turns) if turn.role == "user"), None)
        if question is None:
            raise UsageError("There is no message to answer again.", hint="Write one first.")
        self._ask(question, self.conversation.regenerate)

    def stop(self) -> None:
        """Stop what runs, and take back the questions that wait."""
        if self._stopped_up_to < self._last_request:
            self._stopping_since = monotonic()
        self._stopped_up_to = self._last_request
        if self.state == "answering":
            self.state = "stopping"
            self._post(AnswerStopping(self.state))
        self._engine.cancel()

    def insist(self) -> None:
        """Stop what runs; what was asked to stop seconds ago ends with the engine."""
        if self._stopped_up_to == self._last_request and monotonic() - self._stopping_since > _PATIENCE_S:
            self._engine.kill()
        self.stop()

    def unload(self, why: str) -> None:
        """Unload the model, to make room; what runs is stopped first. Unloaded tells when it is done."""
        self.stop()
        self._request(lambda _: self._unload(why))

    def lend(self, model: str) -> None:
        """From now on nothing is loaded, and so nothing is answered: a benchmark of `model` has the machine.

        See `take_back`.
        """
        self._is_lent = True
        self._post(Lent(self.state, model))

    def take_back(self) -> None:
        """The machine is free again: the next question loads the model."""
        self._is_lent = False
        self._post(TakenBack(self.state))

    def configure(self, *, own_params: Mapping[str, Any] | None = None, options: ChatOptions | None = None) -> None:
        """Change how the next answers are made. Raises UsageError for a bad value, and BusyError during an answer."""
        wanted = self.own_params if own_params is None else dict(own_params)
        params = self._services.settings.sampling_params(self._model_sampling(), wanted)
        self.conversation.configure(params=params, options=options)
        self.own_params = wanted

    def notice_death(self) -> None:
        """Tell when the engine's process has ended while nobody asked it anything. To be called now and then."""
        if self.state == "ready" and self._engine.pid is None:
            self.state = "empty"
            self._post(Unloaded("empty", "The engine's process ended. The next message loads the model again."))

    def close(self) -> None:
        """Stop everything and end the engine's process, soon: see `wait`. What came of an answer is kept."""
        self.stop()
        self._requests.put(None)

    def wait(self, timeout_s: float) -> None:
        """Wait until all has ended; what has not by then is ended at once."""
        if self._thread.ident is not None:  # a signal may come before it is started
            self._thread.join(timeout_s)
        self._engine.kill()

    # --- in the thread ---------------------------------------------------------------------------------------------

    def _request(self, work: Callable[[int], object]) -> None:
        """Have the thread do `work`, which is given the number of the request."""
        self._last_request = number = self._last_request + 1
        self._requests.put(lambda: work(number))

    def _is_stopped(self, number: int) -> bool:
        return number <= self._stopped_up_to

    def _work(self) -> None:
        while (request := self._requests.get()) is not None:
            request()
        self.conversation.catch_up()
        self._engine.close()

    def _start(self) -> None:
        try:
            self._engine.start()
        except RunnerError as error:  # loading says it where it is seen
            _log.warning("the engine did not start: %s", error.message)

    def _load(self, number: int, model: str, options: LoadOptions) -> bool:
        """Load a model in place of the one before; whether it is there now."""
        if self._is_stopped(number):
            return False
        self.state = "loading"
        self._post(LoadBegan("loading", model))
        is_there, error = False, None
        try:
            if self._is_lent:
                raise BusyError(
                    "A benchmark is running, and a model beside it would change what it measures.",
                    hint="F3 shows it; x stops it there. Your message can be sent after that.",
                )
            for event in self._engine.load(model, options, offline=self._services.is_offline):
                is_there = isinstance(event, Loaded)
                if not is_there:
                    self._post(LoadStep("loading", said_in_chat(event)))
                if self._is_stopped(number):
                    self._engine.cancel()
        except Exception as raised:
            error = None if self._is_stopped(number) else _as_runner_error(raised)
        loaded = self._engine.loaded
        if loaded is not None and is_there:
            self.model, self.options = model, options
            self.conversation.use(self._engine, model)
            self.conversation.params = self._services.settings.sampling_params(loaded.sampling, self.own_params)
        self.state = "empty" if loaded is None else "ready"
        next_model = self.model if self.model != model else ""
        self._post(LoadEnded(self.state, model, loaded, error, options if loaded is None else self.options, next_model))
        return is_there

    def _unload(self, why: str) -> None:
        try:
            self._engine.unload()
        except EngineDied:
            _log.info("the engine died while it was unloading")
        self._engine.close()  # with its process goes what libraries hold beside the model
        self.state = "empty"
        self._post(Unloaded("empty", why))

    def _ask(self, question: str | Turn, begin: Callable[[], Iterator[ChatEvent]]) -> None:
        is_new = isinstance(question, str)
        turn = Turn(role="user", content=question, created_at=time()) if isinstance(question, str) else question
        self._n_questions += 1
        if self.state == "ready":
            self.state = "answering"
        self._post(AnswerBegan(self.state, turn, is_new))
        self._request(lambda number: self._answer(number, turn.content if is_new else "", begin))

    def _answer(self, number: int, text: str, begin: Callable[[], Iterator[ChatEvent]]) -> None:
        """Answer one question. text: what the prompt gets back when it is not accepted."""
        error: RunnerError | None = None
        is_begun = False
        finished: Finished | None = None
        try:
            if self._can_answer(number):
                self.state = "answering"
                events = begin()
                is_begun = True
                for event in events:
                    finished = event if isinstance(event, Finished) else None
                    self._post(AnswerStep(self.state, said_in_chat(event)))
                    if self._is_stopped(number):
                        self._engine.cancel()
        except Exception as raised:
            error = _as_runner_error(raised)
        self._n_questions -= 1
        self.state = "empty" if self._engine.loaded is None else "answering" if self._n_questions else "ready"
        last = self.conversation.turns[-1] if self.conversation.turns else None
        has_answer = is_begun and last is not None and last.role == "assistant" and (finished or last.state == "error")
        unsent = self.conversation.unsent if is_begun else text
        self._post(AnswerEnded(self.state, last if has_answer else None, error, unsent))

    def _can_answer(self, number: int) -> bool:
        """Whether a model is there, which is loaded if need be, and nobody has asked to stop."""
        if self._is_stopped(number):
            return False
        is_there = self._engine.loaded is not None and self._engine.pid is not None
        return is_there or self._load(number, self.model, self.options)

    def _model_sampling(self) -> Mapping[str, float | int]:
        return {} if self.loaded is None else self.loaded.sampling


def _as_runner_error(error: Exception) -> RunnerError:
    """What to say of it. Our own mistakes too are said, and do not end the thread."""
    if isinstance(error, RunnerError):
        return error_in_chat(error)
    _log.error("the chat's thread failed", exc_info=error)
    return RunnerError(f"runner failed: {type(error).__name__}: {error}", hint="The details are in `runner logs`.")
