"""Shows an answer as it arrives: text on stdout, thoughts dim on stderr, numbers on the live status line.

It reads the engine's events and knows nothing of where they come from. Newlines around an answer are
the model's habit, not its content: it begins without them and ends with exactly one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from runner.chat_pages import said_in_chat
from runner.cli import render
from runner.cli.live import Live
from runner.cli.loading import show_notice
from runner.events import ChatEvent, Finished, Notice, Progress, ReasoningDelta, Stats, TextDelta
from runner.safe_text import safe_text
from runner.status_text import answer_status, prefill_status

STOPPING: Final = "stopping · Ctrl+C again ends the engine"


class AnswerView:
    """One answer on the terminal or in a pipe.

    has_thoughts: show thoughts (never into a pipe). is_in_chat: remedies are the chat's commands. finished: the event
    of that name, once it has come.
    """

    def __init__(
        self,
        live: Live,
        *,
        has_thoughts: bool,
        is_in_chat: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._live = live
        self._has_thoughts = has_thoughts
        self._is_in_chat = is_in_chat
        self._clock = clock
        self._started = clock()
        self._first_done: int | None = None
        self._held_newlines = 0
        self._status = "waiting for the model"
        self._is_thinking = False
        self._is_stopping = False
        self.has_text = False
        self.finished: Finished | None = None

    def show_all(self, events: Iterable[ChatEvent]) -> None:
        """Show events until they end; in any case, stop what sends them, and end the last line."""
        try:
            self._live.show(self._status)
            for event in events:
                self.show(event)
        finally:
            if close := getattr(events, "close", None):
                close()
            self.end_line()

    def show(self, event: ChatEvent) -> None:
        if isinstance(event, TextDelta):
            self._text(event.text)
        elif isinstance(event, ReasoningDelta):
            self._thought(event.text)
        elif isinstance(event, Progress):
            self._progress(event)
        elif isinstance(event, Stats) and not self._is_stopping:
            self._status = answer_status(event.timings, event.n_ctx, event.speculation)
        elif isinstance(event, Notice):
            self.end_line()
            self._live.clear()
            show_notice(said_in_chat(event) if self._is_in_chat else event)
        elif isinstance(event, Finished):
            self.finished = event
        self._live.show(self._status)

    def stopping(self) -> None:
        """The user asked for an end: say how to insist. May be called from a signal handler."""
        self._is_stopping, self._status = True, STOPPING
        self._live.show_now(self._status)

    def end_line(self) -> None:
        """End the line that text or thoughts left open."""
        self._end_thought()
        if self.has_text and self._held_newlines >= 0:
            self._write(render.stream, "\n")
            self._held_newlines = -1  # ended: what comes now begins a new line

    def _text(self, text: str) -> None:
        if self._is_thinking:
            self._end_thought()
        if not self.has_text:
            text = text.lstrip("\n")
        body = text.rstrip("\n")
        newlines = len(text) - len(body)
        if body:
            self._write(render.stream, "\n" * max(0, self._held_newlines) + body)
            self.has_text = True
            self._held_newlines = newlines
        elif self.has_text:
            self._held_newlines = max(0, self._held_newlines) + newlines

    def _thought(self, text: str) -> None:
        if self._has_thoughts:
            if not self._is_thinking:
                text = text.lstrip("\n")
                self._is_thinking = bool(text)
            self._write(render.murmur, text)

    def _end_thought(self) -> None:
        if self._is_thinking:
            self._is_thinking = False
            self._write(render.murmur, "\n\n")

    def _write(self, write: Callable[[str], None], text: str) -> None:
        text = safe_text(text)
        self._live.before_writing(text)
        write(text)
        self._live.wrote(text)

    def _progress(self, event: Progress) -> None:
        if self._first_done is None:
            self._first_done, self._started = event.done, self._clock()
        if not self._is_stopping:
            self._status = prefill_status(event, self._clock() - self._started, self._first_done)
