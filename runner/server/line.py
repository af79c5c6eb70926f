"""The line of requests in front of the one engine: in order of arrival, of bounded length, each of which may leave.

A thread loads the model, answers one request after another, and loads the model again when the engine's process has
died. What it tells reaches the event loop through tickets. It knows no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final, Literal

from runner.config import ChatOptions, SamplingParams
from runner.errors import EngineDied, RunnerError
from runner.events import ChatEvent, Finished, Loaded, Progress, Stats
from runner.server.refusal import Refusal
from runner.types import Message

if TYPE_CHECKING:
    from runner.engine_process import EngineProcess

log = logging.getLogger(__name__)

State = Literal["loading", "ready", "failed", "stopped"]

_LOOK_S: Final = 1.0  # how long a dead engine may go unnoticed while nobody asks
_INSIST_S: Final = 0.05  # a cancel that comes in the moment when a request begins is lost, and is said again
_ROOM: Final = 256  # events that wait for a slow reader, before the engine does
_GOODBYE_S: Final = 3.0


class Ticket:
    """A place in the line. `next` belongs to the event loop that made it, `tell` and `end` to the engine's thread."""

    def __init__(self, messages: Sequence[Message], params: SamplingParams, options: ChatOptions) -> None:
        self.messages = messages
        self.params = params
        self.options = options
        self.is_cancelled = False
        self.is_over = False
        self.has_begun = False
        self.is_whole = False
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[ChatEvent | Exception | None] = asyncio.Queue()
        self._room = threading.Semaphore(_ROOM)

    async def next(self) -> ChatEvent | None:
        """The next event; None at the end. Raises what ended the answer."""
        event = await self._events.get()
        self._room.release()
        if isinstance(event, Exception):
            raise event
        return event

    def tell(self, event: ChatEvent) -> None:
        """Pass on an event, once there is room for it."""
        self.has_begun = True
        self.is_whole = isinstance(event, Finished)
        self._room.acquire()
        if not self.is_cancelled:
            self._put(event)

    def end(self, error: Exception | None = None) -> None:
        self.is_over = True
        self._put(error)

    def cancel(self) -> None:
        """Nobody reads it any more."""
        self.is_cancelled = True
        self._room.release(_ROOM)  # the engine's thread may be waiting for it

    def _put(self, event: ChatEvent | Exception | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:
            log.debug("the event loop is closed: nobody reads the answer")


class AnswerLine:
    """load: loads the model, or loads it again; it is called in the line's thread. room: how many may wait.

    on_first_load: called in that thread after the first attempt, with what came of it. loaded: the model that was
    loaded last.
    """

    def __init__(
        self,
        engine: EngineProcess,
        load: Callable[[], Loaded],
        *,
        room: int,
        on_first_load: Callable[[Loaded | Exception], None] = lambda _: None,
    ) -> None:
        self._engine = engine
        self._load = load
        self._room = room
        self._on_first_load = on_first_load
        self._changed = threading.Condition()
        self._waiting: deque[Ticket] = deque()
        self._answered: Ticket | None = None
        self._is_asked = False  # the engine is answering, and not loading
        self._last_s = 1.0
        self._state: State = "loading"
        self.loaded: Loaded | None = None
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def state(self) -> State:
        """An engine that has died is as good as one that is being loaded."""
        return "loading" if self._state == "ready" and self._engine.pid is None else self._state

    def enter(self, ticket: Ticket) -> None:
        """Join the line. Raises Refusal when it is full, or closed."""
        with self._changed:
            if self._state == "stopped":
                raise _stopped()
            is_busy = self._answered is not None
            if len(self._waiting) >= self._room + (not is_busy):
                n_waiting = len(self._waiting)
                wait_s = max(1, math.ceil(self._last_s * n_waiting))
                many = "1 request is" if n_waiting == 1 else f"{n_waiting} requests are"
                raise Refusal(
                    429,
                    f"{many} waiting already. Try again later; --queue lets more wait.",
                    code="queue_full",
                    headers={"Retry-After": str(min(wait_s, 60))},
                )
            self._waiting.append(ticket)
            self._changed.notify()

    def leave(self, ticket: Ticket) -> None:
        """Nobody wants the answer any more: it is stopped, or never begun. To be called on the event loop."""
        with self._changed:
            if not ticket.is_cancelled:
                ticket.cancel()
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                ticket.end()
            elif ticket is self._answered and self._is_asked:
                self._engine.cancel()
        if not ticket.is_over:
            asyncio.get_running_loop().call_later(_INSIST_S, self.leave, ticket)

    def stop(self) -> None:
        """Take no more requests, refuse those that wait, and stop the one that is answered."""
        with self._changed:
            self._state = "stopped"
            while self._waiting:
                self._waiting.popleft().end(_stopped())
            self._engine.cancel()
            self._changed.notify()

    def close(self) -> None:
        """Stop, and wait for the thread; an engine that does not stop is ended. Takes up to some seconds."""
        self.stop()
        if self._thread.ident is None:
            return
        deadline = time.monotonic() + _GOODBYE_S
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._engine.cancel()
            self._thread.join(_INSIST_S)
        if self._thread.is_alive():
            self._engine.kill()
            self._thread.join(_GOODBYE_S)

    # --- in the thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._make_ready()
        except BaseException as error:
            self._on_first_load(error if isinstance(error, Exception) else _failed(error))
            return
        assert self.loaded is not None, "the model is ready"
        self._on_first_load(self.loaded)
        while self._state != "stopped":
            if self._state == "ready" and self._engine.pid is None:
                self._reload()
            elif (ticket := self._take()) is not None:
                self._answer(ticket)

    def _take(self) -> Ticket | None:
        """The first in the line; None when nobody came for a moment."""
        with self._changed:
            if not self._waiting:
                self._changed.wait(_LOOK_S)
            self._answered = self._waiting.popleft() if self._waiting and self._state != "stopped" else None
            return self._answered

    def _answer(self, ticket: Ticket) -> None:
        began = time.monotonic()
        error: Exception | None = None
        try:
            self._make_ready()
            try:
                self._run(ticket)
            except EngineDied:
                if ticket.has_begun or ticket.is_cancelled:
                    raise
                self._make_ready()  # it died before it had read the request, most likely of something else
                self._run(ticket)
        except RunnerError as raised:
            error = raised
        except BaseException as raised:  # even one that would end this thread: nobody would be answered any more
            log.exception("a request failed")
            error = _failed(raised)
        with self._changed:
            self._answered = None
            self._last_s = time.monotonic() - began
            ticket.end(_stopped() if self._state == "stopped" and not ticket.is_whole else error)

    def _run(self, ticket: Ticket) -> None:
        self._is_asked = True
        try:
            with closing(self._engine.chat(ticket.messages, ticket.params, ticket.options)) as events:  # type: ignore[type-var]
                for event in events:
                    if ticket.is_cancelled or self._state == "stopped":
                        self._engine.cancel()
                    # One sign that the answer is on its way; numbers are told with its end.
                    elif not isinstance(event, (Progress, Stats)) or not ticket.has_begun:
                        ticket.tell(event)
        finally:
            self._is_asked = False

    def _reload(self) -> None:
        log.warning("the engine's process is gone: loading the model again")
        try:
            self._make_ready()
        except BaseException:  # the next request tries again, and is told
            log.exception("the model could not be loaded again")

    def _make_ready(self) -> None:
        """Load the model where it is not there. Raises RunnerError; of a model that was there before, EngineDied."""
        if self.state == "ready":
            return
        if self._state == "stopped":
            raise RunnerError("The server is shutting down.")
        is_first = self.loaded is None
        self._set_state("loading")
        try:
            self.loaded = self._load()
        except BaseException as error:
            self._set_state("failed")
            if is_first or not isinstance(error, RunnerError):
                raise
            raise EngineDied(f"The model could not be loaded again. {error.message}", hint=error.hint) from error
        self._set_state("ready")

    def _set_state(self, state: State) -> None:
        with self._changed:
            if self._state != "stopped":
                self._state = state


def _failed(error: BaseException) -> RunnerError:
    return RunnerError(f"The server failed: {type(error).__name__}.", hint="`runner logs` has the details.")


def _stopped() -> Refusal:
    return Refusal(503, "The server is shutting down.", code="stopped")
