"""The transcript of the chat: turns as they were said, and the answer while it streams.

It draws the rows of a Document, whatever their number: only those in the window are parsed, wrapped and drawn. Its keys
and clicks become messages; it knows no engine and no clipboard.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from textual.actions import SkipAction
from textual.binding import BindingType
from textual.content import Content
from textual.message import Message
from textual.timer import Timer

from runner.errors import RunnerError
from runner.events import ChatEvent, Notice, Progress, ReasoningDelta, Stats, TextDelta
from runner.transcript import Turn
from runner.tui.actions import bindings_of
from runner.tui.markdown.styles import MUTED
from runner.tui.turns.entries import Answer, Entry, Look, NoteEntry, Question, entry_of
from runner.tui.turns.live import LiveAnswer, joined
from runner.tui.turns.pieces import Code, Level, Note
from runner.tui.widgets.row_view import RowView

PERIOD_S = 1 / 12
_SHARE = 4  # of the time at most a quarter goes into showing text
_Turn = TypeVar("_Turn", Answer, Question)
_EMPTY = (("Ask something.", "bold"), ("@file adds a file · / shows the commands · F1 help", MUTED))


class Transcript(RowView, can_focus=True):
    """See the module. now: seconds since the epoch; clock: monotonic seconds."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("transcript")]

    @dataclass
    class CopyRequested(Message):
        """The user wants `text` on the clipboard; `what` says what it is."""

        text: str
        what: str

    @dataclass
    class EditRequested(Message):
        """The user wants to change the message at this position of the chat, and ask again."""

        position: int

    @dataclass
    class RegenerateRequested(Message):
        """The user wants the last message answered again."""

    @dataclass
    class LinkClicked(Message):
        """The user clicked a link of an answer. Nothing was opened."""

        url: str

    def __init__(
        self,
        *,
        id: str | None = "transcript",
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(id=id, empty=[Content.styled(text, style) for text, style in _EMPTY])
        self._now = now
        self._clock = clock
        self._number = 0
        self._position = 0
        self._live: Answer | None = None
        self._pending: list[ChatEvent] = []
        self._timer: Timer | None = None
        self._took_s = 0.0
        self._are_thoughts_open = False
        self._chosen: Entry | None = None
        self._code: tuple[Answer, int] | None = None

    # --- what the chat says ----------------------------------------------------------------------------------------

    def show(self, turns: Sequence[Turn]) -> None:
        """Replace everything by the turns of a chat, and go to the end."""
        self._stop_taking()
        self._live = self._chosen = self._code = None
        self._position = 0
        self.replace([entry_of(self._next_number(), self._next_position(), turn) for turn in turns])

    def ask(self, question: Turn) -> None:
        """A message of the user, at the end, where the view goes."""
        self._chosen = self._code = None
        self.document.entries.append(Question(self._next_number(), self._next_position(), question))
        self.focus_end()

    def begin_answer(self, model: str) -> None:
        """An answer of `model` comes from now on."""
        self._stop_taking()
        live = LiveAnswer(self._clock())
        self._live = Answer(self._next_number(), self._next_position(), model, self._now(), live)
        self._live.is_open = self._are_thoughts_open
        self._chosen = self._code = None
        self.document.entries.append(self._live)
        self.changed()

    def name_answer(self, model: str) -> None:
        """An answer that is awaited comes from `model`: it was asked for before that was loaded."""
        if self._live is not None and self._live.model != model:
            self._live.model = model
            self.changed()

    def take(self, event: ChatEvent) -> None:
        """Show an event of the answer, soon."""
        if self._live is None or not isinstance(event, (TextDelta, ReasoningDelta, Notice, Progress, Stats)):
            return
        self._pending.append(event)
        if self._timer is None and self.is_attached:
            self._timer = self.set_timer(max(PERIOD_S, _SHARE * self._took_s), self._show_pending)

    def end_answer(self, turn: Turn | None, error: RunnerError | None) -> None:
        """The answer is over. turn: as it is kept, None when nothing of it came. error: what ended it."""
        self._take_pending()
        live, self._live = self._live, None
        if live is not None and turn is not None:
            live.end(turn, error, self._clock())
        elif live is not None:
            self.drop_from(live.position)
        if error is not None and (live is None or turn is None):
            self.note(error.message, error.hint, "error")
        self.changed()

    def drop_last_answer(self) -> None:
        """Take the last answer away, and what stands after it."""
        if (answer := self._last(Answer)) is not None:
            self.drop_from(answer.position)

    def drop_from(self, position: int) -> None:
        """Take away the turn at a position of the chat, and everything after it."""
        entries = self.document.entries
        place = next((place for place, entry in enumerate(entries) if entry.position >= position), None)
        if place is None:
            return
        if self._live in entries[place:]:
            self._stop_taking()
            self._live = None
        del entries[place:]
        self._position = position
        self._chosen = self._code = None
        self.focus_end()

    def note(self, text: str, hint: str = "", level: Level = "info") -> None:
        """Say something between the turns, or below the answer that streams."""
        note = Note(text, hint, level, has_gap=bool(self.document.entries))
        self.document.entries.append(NoteEntry(self._next_number(), note))
        self.changed()

    # --- what the user does ----------------------------------------------------------------------------------------

    def toggle_thoughts(self) -> None:
        """Show the thoughts of all answers, or fold them."""
        self._are_thoughts_open = not self._are_thoughts_open
        for entry in self.document.entries:
            if isinstance(entry, Answer):
                entry.is_open = self._are_thoughts_open
        self.changed()

    def copy_answer(self) -> str:
        """The text that `y` copies: of the chosen turn, else of the last answer. "" when there is none."""
        target = self._target()
        return target.text if target is not None else ""

    def action_copy_answer(self) -> None:
        if (target := self._target()) is None:
            raise SkipAction  # the screen has the same keys, and says why it cannot
        self._copy(target)

    def action_copy_code(self) -> None:
        if (chosen := self._chosen_code()) is None:
            raise SkipAction
        self._copy_code(*chosen)

    def action_fold(self) -> None:
        if (entry := self._chosen if isinstance(self._chosen, Question) else self._answer()) is not None:
            self._fold(entry)

    def action_edit(self) -> None:
        if (question := self._last(Question)) is None:
            raise SkipAction
        self.post_message(self.EditRequested(question.position))

    def action_regenerate(self) -> None:
        if self._last(Question) is None:
            raise SkipAction
        self.post_message(self.RegenerateRequested())

    def action_scroll_end(self) -> None:
        self._chosen = None
        self.focus_end()

    def action_turn(self, step: int) -> None:
        """Go to the turn before (-1) or after (1) the chosen one, or the one that the view begins with."""
        turns = [entry for entry in self.document.entries if not isinstance(entry, NoteEntry)]
        if not turns:
            return
        if self._chosen in turns:
            place = min(max(turns.index(self._chosen) + step, 0), len(turns) - 1)
        else:
            shown = [entry for entry in self.shown_entries if entry in turns] or turns[-1:]
            place = turns.index(shown[-1] if self.is_following else shown[0])
        self._chosen, self._code = turns[place], None
        self.go_to(turns[place])

    def choose(self, position: int) -> None:
        """Go to the turn at that place of the chat, if it is there."""
        turns = (entry for entry in self.document.entries if not isinstance(entry, NoteEntry))
        entry = next((entry for entry in turns if entry.position == position), None)
        if entry is not None:
            self._chosen, self._code = entry, None
            self.go_to(entry)

    def action_code(self, step: int) -> None:
        """Choose the code block before (-1) or after (1) the chosen one, in the same answer."""
        answer = self._answer()
        if answer is None or not (fences := answer.fences):
            return
        place = len(fences) - 1
        if self._code is not None and self._code[0] is answer and self._code[1] in fences:
            place = min(max(fences.index(self._code[1]) + step, 0), len(fences) - 1)
        self._code = (answer, fences[place])
        self.go_to(answer, lambda piece: isinstance(piece, Code) and piece.is_chosen)

    def on_row_view_clicked(self, message: RowView.Clicked) -> None:
        """A row was clicked on something that does something."""
        message.stop()
        entry = message.entry
        match message.do:
            case ("fold",):
                self._fold(entry)
            case ("copy-code", int(fence)) if isinstance(entry, Answer):
                self._copy_code(entry, fence)
            case ("copy",) if isinstance(entry, (Answer, Question)):
                self._copy(entry)
            case ("edit",) if isinstance(entry, Question):
                self.post_message(self.EditRequested(entry.position))
            case ("regenerate",):
                self.post_message(self.RegenerateRequested())
            case ("link", str(url)):
                self.post_message(self.LinkClicked(url))

    # --- inside ----------------------------------------------------------------------------------------------------

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _next_position(self) -> int:
        self._position += 1
        return self._position - 1

    def _last(self, kind: type[_Turn]) -> _Turn | None:
        return next((entry for entry in reversed(self.document.entries) if isinstance(entry, kind)), None)

    def _target(self) -> Answer | Question | None:
        """What is copied: the chosen turn, else the last answer."""
        return self._chosen if isinstance(self._chosen, (Answer, Question)) else self._last(Answer)

    def _answer(self) -> Answer | None:
        """Whose thought and code the keys act on: the chosen answer, the one to the chosen question, or the last."""
        entries = self.document.entries
        after = entries[entries.index(self._chosen) :] if self._chosen in entries else []
        return next((entry for entry in after if isinstance(entry, Answer)), None) or self._last(Answer)

    def _chosen_code(self) -> tuple[Answer, int] | None:
        """The code block that the key copies: the chosen one, else the last one of the answer."""
        answer = self._answer()
        if self._code is not None and self._code[0] is answer:
            return self._code
        return (answer, answer.n_fences - 1) if answer is not None and answer.n_fences else None

    def _copy(self, entry: Answer | Question) -> None:
        if entry.text:
            self.post_message(self.CopyRequested(entry.text, "message" if isinstance(entry, Question) else "answer"))

    def _copy_code(self, answer: Answer, fence: int) -> None:
        self._code = (answer, fence)
        self.post_message(self.CopyRequested(answer.code(fence), "code block"))
        self.changed()

    def _fold(self, entry: Entry) -> None:
        entry.is_open = not entry.is_open
        if entry.is_open:
            self.stay()  # what comes into view is below the row that was clicked
        self.changed()

    def look(self, entry: Entry) -> Look:
        code = self._chosen_code()
        return Look(
            now=self._now(),
            clock=self._clock(),
            is_first=bool(self.document.entries) and entry is self.document.entries[0],
            is_chosen=entry is self._chosen,
            is_copied=entry is self._target(),
            has_keys=entry is self._answer() or entry is self._last(Question),
            is_last=entry is self._last(Answer) or entry is self._last(Question),
            fence=code[1] if code is not None and code[0] is entry else None,
        )

    def _stop_taking(self) -> None:
        self._pending.clear()
        if self._timer is not None:
            self._timer.stop()
            self._timer = None

    def _take_pending(self) -> None:
        events = list(self._pending)
        self._stop_taking()
        if self._live is not None and self._live.live is not None:
            for event in joined(events):
                self._live.live.take(event, self._clock())

    def _show_pending(self) -> None:
        started = time.perf_counter()
        self._take_pending()
        if self._live is not None:
            self.grown(self._live)
        self._took_s = time.perf_counter() - started
