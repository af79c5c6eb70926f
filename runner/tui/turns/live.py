"""An answer while it arrives: events in, pieces out. What is finished of it is not made again.

It knows nothing of rows; clock readings are passed in.
"""

from __future__ import annotations

from collections.abc import Iterable

from runner.events import ChatEvent, Notice, Progress, ReasoningDelta, Stats, TextDelta
from runner.measures import duration
from runner.safe_text import safe_text
from runner.status_text import SEPARATOR, prefill_status, tokens_text
from runner.tui.markdown.sections import DRAFTED, WRITTEN, Section, Sections, code_of
from runner.tui.turns.labels import measured_thought_label
from runner.tui.turns.pieces import Code, Note, Piece, Prose, Status, section_pieces


def joined(events: Iterable[ChatEvent]) -> list[ChatEvent]:
    """Events with neighbouring pieces of text made one."""
    after: list[ChatEvent] = []
    for event in events:
        last = after[-1] if after else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            shift = len(last.text)
            moved = tuple((start + shift, end + shift) for start, end in event.drafted)
            after[-1] = TextDelta(last.text + event.text, last.drafted + moved)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            after[-1] = ReasoningDelta(last.text + event.text)
        else:
            after.append(event)
    return after


def marked(delta: TextDelta) -> tuple[str, str]:
    """Its text, safe, and a mark for each character of that: DRAFTED or WRITTEN."""
    if not delta.drafted:
        text = safe_text(delta.text)
        return text, WRITTEN * len(text)
    marks = list(WRITTEN * len(delta.text))
    for start, end in delta.drafted:
        marks[start:end] = DRAFTED * len(marks[start:end])
    shown = [(safe_text(character), mark) for character, mark in zip(delta.text, marks, strict=True)]
    return "".join(text for text, _ in shown), "".join(mark for text, mark in shown if text)


class LiveAnswer:
    """One answer that streams. now: seconds of one monotonic clock. thought: as far as it has come, safe.

    early_notes, late_notes: what was said before its first text, and after that.
    """

    def __init__(self, now: float) -> None:
        self._sections = Sections()
        self._text: list[str] = []
        self.thought = ""
        self._pieces: list[Prose | Code] = []  # of the sections that are done
        self._fence: int | None = None
        self._before: Section | None = None
        self.early_notes: list[Note] = []
        self.late_notes: list[Note] = []
        self._progress: Progress | None = None
        self._reading_since, self._read_before = now, 0
        self._thinking_since: float | None = None
        self._thought_s = 0.0
        self._n_tokens = self._thought_tokens = 0

    def take(self, event: ChatEvent, now: float) -> None:
        if isinstance(event, TextDelta):
            self._end_thought(now)
            self._text.append(event.text)
            text, marks = marked(event)
            self._sections.feed(text, marks)
        elif isinstance(event, ReasoningDelta):
            if self._thinking_since is None:
                self._thinking_since = now - self._thought_s
            self.thought += safe_text(event.text) if self.thought else safe_text(event.text).lstrip("\n")
        elif isinstance(event, Notice):
            has_begun = bool(self._text or self.thought)
            note = Note(event.text, event.hint, event.level, has_gap=has_begun)
            (self.late_notes if has_begun else self.early_notes).append(note)
        elif isinstance(event, Progress):
            if self._progress is None:
                self._reading_since, self._read_before = now, event.done
            self._progress = event
        elif isinstance(event, Stats):
            self._n_tokens = event.timings.completion_tokens
            if self.is_thinking:
                self._thought_tokens = self._n_tokens

    def _end_thought(self, now: float) -> None:
        if self._thinking_since is not None:
            self._thought_s, self._thinking_since = now - self._thinking_since, None

    @property
    def is_thinking(self) -> bool:
        return self._thinking_since is not None

    @property
    def text(self) -> str:
        """The answer so far, raw."""
        return "".join(self._text)

    @property
    def marks(self) -> str:
        """Of each character of its safe text; "" when no drafter had guessed any."""
        marks = self._sections.marks
        return marks if DRAFTED in marks else ""

    @property
    def has_text(self) -> bool:
        return bool(self._text)

    def thought_label(self, now: float) -> str:
        if self._thinking_since is not None:
            label = f"thinking {duration(now - self._thinking_since)}"
            return f"{label}{SEPARATOR}{tokens_text(self._n_tokens)}" if self._n_tokens else label
        return measured_thought_label(self._thought_s, self._thought_tokens)

    def status(self, now: float) -> Status | None:
        """What goes on, while there is no text."""
        if self._text or self.thought:
            return None
        progress = self._progress
        if progress is None or progress.stage != "prefill":
            return Status("waiting for the model")
        share = progress.done / progress.total if progress.total else None
        return Status(prefill_status(progress, now - self._reading_since, self._read_before), share)

    def pieces(self, chosen_fence: int | None) -> Iterable[Piece]:
        """The pieces of its text; those of sections that are done stay the same objects."""
        done = self._sections.done
        if chosen_fence != self._fence:
            self._pieces, self._fence, self._before = [], chosen_fence, None
        if fresh := done[len(self._pieces) :]:
            self._pieces += section_pieces(fresh, chosen_fence, self._before)
            self._before = done[-1]
        return [*self._pieces, *section_pieces(self._sections.tail(), chosen_fence, self._before)]

    def code(self, fence: int) -> str:
        """The contents of a code block so far."""
        return code_of([*self._sections.done, *self._sections.tail()], fence)

    @property
    def n_fences(self) -> int:
        """How many code blocks have begun and gone on to another line."""
        return self._sections.n_fences

    @property
    def fences(self) -> list[int]:
        """The numbers of its code blocks."""
        sections = [*self._sections.done, *self._sections.tail()]
        return [section.fence for section in sections if section.kind == "code" and not section.is_more]
