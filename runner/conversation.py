"""A conversation with an engine, without a screen: the turns so far, the operations on them, and their keeping.

CLI chat and TUI both drive it. It turns the engine's events into turns and mirrors each change to the store in the
same step; it knows nothing of terminals, and text is raw throughout.

What happens to an answer that does not end by itself:
- Stopped by the user, or the iterator closed: what arrived stays in the history as the assistant's message, so that
  the next turn goes on from it. Nothing arrived: the user's message stays without an answer, `regenerate` asks again.
- The engine failed in the middle: what arrived stays as well, marked "error", and the error is raised.
- The engine refused before anything arrived (the context is full, it died): the turns are as they were before, and
  `unsent` has the message, so that the prompt can be filled with it again.
- runner was killed: the store has what had arrived half a second before.
A store that cannot be written stops no chat: that is said once, and the first write that works makes up for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.attachments import own_words
from runner.chat_file import read_chat, write_chat
from runner.config import ChatOptions, SamplingParams
from runner.errors import BusyError, EngineDied, RunnerError, StoreError, UsageError
from runner.events import ChatEvent, Finished, Notice, ReasoningDelta, Stats, TextDelta
from runner.kept_chat import KeptChat
from runner.store import Store
from runner.transcript import Session, Turn, TurnState, code_blocks, title_from, to_messages
from runner.types import Message
from runner.wire import to_plain

if TYPE_CHECKING:
    from runner.engine import EngineSurface

SAVE_EVERY_S = 0.5
_log = logging.getLogger(__name__)


class Conversation:
    """One conversation. Its iterators run in one thread at a time; only `cancel` may come from another.

    model: what the user called it. store: None keeps nothing. now: seconds since the epoch; clock: monotonic seconds.
    """

    def __init__(
        self,
        engine: EngineSurface,
        *,
        model: str,
        store: Store | None = None,
        params: SamplingParams | None = None,
        options: ChatOptions | None = None,
        system: str | None = None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._store = store
        self._kept = KeptChat(store)
        self._now = now
        self._clock = clock
        self._turns: list[Turn] = []
        self._running: Generator[ChatEvent, None, None] | None = None
        self._own_title = ""
        self._trouble = ""  # with the store, which was said
        self._untold: Notice | None = None  # what came of a save that nobody could be told of
        self._started_at = now()
        self.model = model
        self.params = params or SamplingParams()
        self.options = options or ChatOptions()
        self.system = system or None
        self.unsent = ""

    # --- what there is ---------------------------------------------------------------------------------------------

    @property
    def turns(self) -> tuple[Turn, ...]:
        return tuple(self._turns)

    @property
    def messages(self) -> tuple[Message, ...]:
        """What the engine is asked with next, system prompt included."""
        return to_messages(self.system, self._turns)

    @property
    def session_id(self) -> str | None:
        """The chat's id in the store, once it has a turn there."""
        return self._kept.session.id if self._kept.session else None

    @property
    def is_kept(self) -> bool:
        return self._kept.is_on

    @property
    def title(self) -> str:
        """The title that was given, else one made from the words of the first message."""
        first = next((turn.content for turn in self._turns if turn.role == "user"), "")
        return self._own_title or title_from(own_words(first).strip() or first)

    @property
    def last_answer(self) -> str:
        """The text of the last answer, or ""."""
        return next((turn.content for turn in reversed(self._turns) if turn.role == "assistant"), "")

    @property
    def code_blocks(self) -> list[str]:
        """The fenced code blocks of the last answer."""
        return code_blocks(self.last_answer)

    def copy(self, n: int | None = None) -> str:
        """The last answer, or its n-th code block (from 1). Raises UsageError when there is none."""
        answer = self.last_answer
        if not answer:
            raise UsageError("There is no answer to copy.", hint="Ask something first.")
        if n is None:
            return answer
        blocks = code_blocks(answer)
        if not 1 <= n <= len(blocks):
            if not blocks:
                raise UsageError("The last answer has no code block.", hint="The whole answer can be copied.")
            raise UsageError(f"The last answer has no code block {n}.", hint=f"It has {len(blocks)}.")
        return blocks[n - 1]

    def about(self) -> Session:
        """The conversation without its turns, as the store and exported files have it."""
        loaded = self._engine.loaded
        return Session(
            id=self.session_id or "",
            title=self.title,
            model=self.model,
            backend=loaded.info.backend if loaded else "",
            system=self.system,
            settings={"params": to_plain(self.params), "options": to_plain(self.options)},
            created_at=self._started_at,
            updated_at=self._turns[-1].created_at if self._turns else self._started_at,
        )

    # --- asking ----------------------------------------------------------------------------------------------------

    def send(self, text: str) -> Iterator[ChatEvent]:
        """Say `text`, which is kept at once, and iterate over the answer's events. Closing the iterator stops it."""
        self._settle()
        return self._ask([*self._turns, self._user(text)])

    def edit_last(self, text: str) -> Iterator[ChatEvent]:
        """Replace the last message of the user, and what came after it, by `text`, and answer that."""
        self._settle()
        return self._ask([*self._turns[: self._last_question("edit")], self._user(text)])

    def regenerate(self) -> Iterator[ChatEvent]:
        """Answer the last message of the user again. The answer it had stays until the new one begins."""
        self._settle()
        question = self._turns[: self._last_question("answer again") + 1]
        self.unsent = ""
        self._running = self._answer(question, before=self._turns, unsent="")
        return self._running

    def cancel(self) -> None:
        """Stop the answer within 200 ms; its iterator then ends by itself. From any thread or signal handler."""
        self._engine.cancel()

    def _ask(self, question: list[Turn]) -> Iterator[ChatEvent]:
        """Put a question in place of the turns, keep it, and answer it."""
        before, self._turns = self._turns, question
        text, self.unsent = question[-1].content, ""
        notice = self._save_or_say(len(question) - 1) or self._untold
        self._untold = None
        self._running = self._answer(question, before=before, unsent=text, notice=notice)
        return self._running

    def _answer(
        self, question: list[Turn], *, before: list[Turn], unsent: str, notice: Notice | None = None
    ) -> Generator[ChatEvent, None, None]:
        answer = _AnswerSoFar(self.model, self._now())
        stream: Iterator[ChatEvent] = iter(())
        next_save = self._clock()
        try:
            if notice:
                yield notice
            stream = self._engine.chat(to_messages(self.system, question), self.params, self.options)
            for event in stream:
                answer.take(event)
                if answer.finished or (answer.has_text and self._clock() >= next_save):
                    next_save = self._clock() + SAVE_EVERY_S
                    if trouble := self._keep(question, answer, answer.state):
                        yield trouble
                yield event
            if not answer.finished:
                raise EngineDied("The engine ended the answer without saying why.", hint="Ask again with /regen.")
        except (GeneratorExit, KeyboardInterrupt, SystemExit):
            if not answer.finished:
                self._keep(question, answer, "cancelled")
                self._trouble = ""  # nobody heard of it
            raise
        except Exception:
            if answer.has_text and not answer.finished:
                self._keep(question, answer, "error")
            elif self._turns is question:
                self._turns, self.unsent = before, unsent
                self._save_or_say(len(question) - 1)
            self._trouble = ""  # nobody heard of it
            raise
        finally:
            self._running = None
            if close := getattr(stream, "close", None):
                close()

    def _keep(self, question: list[Turn], answer: _AnswerSoFar, state: TurnState) -> Notice | None:
        """Put what arrived behind the question; nothing arrived and it was stopped: leave the turns as they are."""
        if not answer.has_text and state == "cancelled":
            return None
        self._turns = [*question, answer.turn(state)]
        return self._save_or_say(len(question), durable=state != "partial")

    # --- changing --------------------------------------------------------------------------------------------------

    def undo(self) -> str:
        """Take back the last message of the user and what came after it; returns the message."""
        self._settle()
        position = self._last_question("take back")
        text, before, is_there = self._turns[position].content, self._turns, position < self._kept.n_there
        self._turns = self._turns[:position]
        try:
            self._save(position)
        except RunnerError:
            if is_there:  # where the message would stay
                self._turns = before
                raise
        return text

    def catch_up(self) -> bool:
        """Keep what could not be kept so far, before this chat is left. Whether it is in the store, if anything is."""
        if self._kept.is_on and not self._kept.is_whole(len(self._turns)):
            with suppress(StoreError, BusyError):
                self._untold = self._save(len(self._turns)) or self._untold
        return self._kept.is_on and self._kept.is_whole(len(self._turns))

    def clear(self) -> bool:
        """Start a new conversation with the same system prompt. Whether the one before is in the store, and stays."""
        self._settle()
        return self._replace(Session(id="", system=self.system, created_at=self._now()), [])

    def set_system(self, system: str | None) -> None:
        """Set or remove the system prompt, from the next answer on."""
        self._settle()
        self.system = system or None
        self._describe()

    def rename(self, title: str) -> None:
        """Give the conversation a title; an empty one goes back to the first message."""
        self._settle()
        self._own_title = title_from(title)
        self._kept.describe(self.about())

    def configure(self, *, params: SamplingParams | None = None, options: ChatOptions | None = None) -> None:
        """Change how the next answers are made."""
        self._settle()
        self.params = params or self.params
        self.options = options or self.options
        self._describe()

    def use(self, engine: EngineSurface, model: str) -> None:
        """Go on with another model or engine."""
        self._settle()
        self._engine = engine
        self.model = model
        self._describe()

    def resume(self, id_or_prefix: str) -> Session:
        """Go on with a kept chat. Its settings are in what is returned; they are not applied.

        Raises UsageError when there is no such chat, and when nothing is kept.
        """
        self._settle()
        self.catch_up()  # it may be this one
        if self._store is None:
            raise UsageError(
                "Chats are not kept, so none can be resumed.",
                hint="The setting save_chats keeps them; --no-log does not.",
            )
        session = self._store.get(id_or_prefix)
        turns = self._store.turns(session.id)
        self._replace(session, turns)
        self._kept.open(session, len(turns))
        return session

    def load(self, path: Path) -> bool:
        """Go on with a chat that was saved as JSON; it becomes a new chat in the store. Returns what `clear` does."""
        self._settle()
        session, turns = read_chat(path)
        is_kept = self._replace(session, turns)
        with suppress(StoreError, BusyError):  # the next answer tells
            self._save(0)
        return is_kept

    def save(self, path: Path, *, overwrite: bool = False) -> Path:
        """Write the conversation to a .json or .md file; returns its path."""
        return write_chat(path, self.about(), self._turns, overwrite=overwrite)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _user(self, text: str) -> Turn:
        if not text.strip():
            raise UsageError("The message is empty.", hint="Write something.")
        return Turn(role="user", content=text, created_at=round(self._now(), 3))

    def _last_question(self, verb: str) -> int:
        for position in range(len(self._turns) - 1, -1, -1):
            if self._turns[position].role == "user":
                return position
        raise UsageError(f"There is no message to {verb}.", hint="Write one first.")

    def _settle(self) -> None:
        """End an answer whose iterator was left open, as cancelled. Raises BusyError when a thread is still in it."""
        try:
            if self._running is not None:
                self._running.close()
        except ValueError as error:
            raise BusyError("An answer is still being written.", hint="Stop it first.") from error
        self._running = None

    def _replace(self, session: Session, turns: list[Turn]) -> bool:
        is_kept = self.catch_up()
        self._kept.forget()
        self._trouble, self._untold = "", None
        self._turns = turns
        self._own_title = ""
        if session.title != self.title:
            self._own_title = session.title
        self._started_at = session.created_at
        self.system = session.system
        self.unsent = ""
        return is_kept

    def _save(self, position: int, *, durable: bool = True) -> Notice | None:
        return self._kept.save(self.about(), self._turns, position, durable=durable)

    def _save_or_say(self, position: int, *, durable: bool = True) -> Notice | None:
        """Save in the middle of a chat, which goes on when that fails: the next save makes up for it."""
        try:
            notice = self._save(position, durable=durable)
        except (StoreError, BusyError) as error:
            _log.warning("a chat is not kept yet: %s", error.message)
            said, self._trouble = self._trouble, error.message
            return (
                None
                if said == error.message
                else Notice("warning", f"The chat goes on and is not kept yet. {error.message}", error.hint)
            )
        self._trouble = ""
        return notice

    def _describe(self) -> None:
        """Keep what changed about the chat; where that fails, the next save makes up for it, or tells."""
        with suppress(StoreError, BusyError):
            self.catch_up()
            self._kept.describe(self.about())


class _AnswerSoFar:
    """An answer as it arrives."""

    def __init__(self, model: str, created_at: float) -> None:
        self._model = model
        self._created_at = round(created_at, 3)
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._timings: dict[str, Any] = {}
        self.finished: Finished | None = None

    def take(self, event: ChatEvent) -> None:
        if isinstance(event, TextDelta):
            self._content.append(event.text)
        elif isinstance(event, ReasoningDelta):
            self._reasoning.append(event.text)
        elif isinstance(event, (Stats, Finished)):
            self._timings = to_plain(event.timings)
            self.finished = event if isinstance(event, Finished) else None

    @property
    def has_text(self) -> bool:
        return bool(self._content or self._reasoning)

    @property
    def state(self) -> TurnState:
        if self.finished is None:
            return "partial"
        return "cancelled" if self.finished.reason == "cancelled" else "complete"

    def turn(self, state: TurnState) -> Turn:
        return Turn(
            role="assistant",
            content="".join(self._content),
            reasoning="".join(self._reasoning),
            state=state,
            model=self._model,
            seed=self.finished.seed if self.finished else None,
            timings=self._timings,
            created_at=self._created_at,
        )
