"""What stands in a transcript, one entry a turn or note: its pieces, and how many rows each of them takes.

An entry far from the screen has no pieces, only a height. It knows nothing of where it stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from runner.errors import RunnerError
from runner.safe_text import safe_line, safe_text
from runner.status_text import SEPARATOR
from runner.transcript import NOTES, Turn
from runner.tui.markdown.lines import Line
from runner.tui.markdown.sections import Section, code_of, sections_of
from runner.tui.markdown.styles import GROUND, MUTED
from runner.tui.model_names import short_name
from runner.tui.turns.labels import numbers_text, thought_label, time_text, timings_of
from runner.tui.turns.live import LiveAnswer
from runner.tui.turns.pieces import (
    Fold,
    Header,
    Note,
    Numbers,
    Piece,
    Plain,
    ThoughtWindow,
    about_rows,
    button,
    plain_parts,
    section_pieces,
)

_LONG, _SHOWN = 30, 20  # lines of a message that is folded, and how many are shown then


@dataclass(frozen=True)
class Look:
    """What an entry shows beside its text. now: seconds since the epoch; clock: monotonic seconds.

    is_copied: the key for copying acts on it. has_keys: the other keys do. is_last: the last answer, or question.
    """

    now: float
    clock: float
    is_first: bool = False
    is_chosen: bool = False
    is_copied: bool = False
    has_keys: bool = False
    is_last: bool = False
    fence: int | None = None


class Laid:
    """A piece and its rows, once they were asked for; a guess of how many they are before."""

    __slots__ = ("_height", "_lines", "_width", "piece")

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self._width = 0
        self._height = 0
        self._lines: list[Line] | None = None

    def is_measured(self, width: int) -> bool:
        return self._width == width

    def height(self, width: int) -> int:
        return self._height if self._width == width else self.piece.estimate(width)

    def lines(self, width: int) -> list[Line]:
        if self._lines is None or self._width != width:
            self._lines = self.piece.lines(width)
            self._width, self._height = width, len(self._lines)
        return self._lines

    def forget(self) -> None:
        """Give the rows back; their number stays."""
        self._lines = None


class Entry:
    """A turn or a note. number: its own in this transcript, growing. position: of its turn in the chat, or -1."""

    def __init__(self, number: int, position: int = -1) -> None:
        self.number = number
        self.position = position
        self.is_open = False
        self.laid: list[Laid] | None = None
        self._look: Look | None = None
        self._far_height: tuple[int, int] | None = None  # width, and the height it had there

    # --- what differs ----------------------------------------------------------------------------------------------

    def pieces(self, look: Look) -> Iterable[Piece]:
        raise NotImplementedError

    def estimate(self, width: int) -> int:
        """About how many rows it takes when it has no pieces yet."""
        raise NotImplementedError

    # --- rows ------------------------------------------------------------------------------------------------------

    def height(self, width: int) -> int:
        if self.laid is not None:
            return sum(laid.height(width) for laid in self.laid)
        if self._far_height is not None and self._far_height[0] == width:
            return self._far_height[1]
        return self.estimate(width)

    def lay(self, look: Look) -> list[Laid]:
        """Its pieces; those that stay as they were keep their rows."""
        before = self.laid or []
        after: list[Laid] = []
        for place, piece in enumerate(self.pieces(look)):
            same = place < len(before) and (before[place].piece is piece or before[place].piece == piece)
            after.append(before[place] if same else Laid(piece))
        self.laid = after
        return after

    def drop(self, width: int) -> None:
        """Far from the screen: keep the height alone."""
        self._far_height = (width, self.height(width))
        self.laid = None


class NoteEntry(Entry):
    def __init__(self, number: int, note: Note) -> None:
        super().__init__(number)
        self._note = note

    def pieces(self, look: Look) -> Iterable[Piece]:
        del look
        return [self._note]

    def estimate(self, width: int) -> int:
        return self._note.estimate(width)


class Question(Entry):
    """A turn of the user, or of anyone who is not the model: literal text, folded when it is long."""

    def __init__(self, number: int, position: int, turn: Turn) -> None:
        super().__init__(number, position)
        self.turn = turn

    @property
    def text(self) -> str:
        """What was said, raw."""
        return self.turn.content

    def pieces(self, look: Look) -> Iterable[Piece]:
        name = "you" if self.turn.role == "user" else self.turn.role
        tail = button("[y] copy", "copy") if look.is_copied else None
        if look.is_last:
            edit = button("[e] edit", "edit")
            tail = tail + "  " + edit if tail else edit
        when = time_text(self.turn.created_at, look.now)
        pieces: list[Piece] = [Header(name, "$text-primary", when, tail, look.is_chosen, look.is_first)]
        text = safe_text(self.turn.content).strip("\n")
        parts = plain_parts(text)
        n_lines = text.count("\n") + 1
        if n_lines > _LONG and not self.is_open:
            parts = plain_parts("\n".join(text.split("\n", _SHOWN)[:_SHOWN]))
        pieces += [Plain(part, bar="▌ ", fill=GROUND) for part in parts]
        if n_lines > _LONG:
            pieces.append(Fold(f"{n_lines - _SHOWN} more lines", self.is_open))
        return pieces

    def estimate(self, width: int) -> int:
        n_lines = self.turn.content.count("\n") + 1
        return 2 + (_SHOWN + 1 if n_lines > _LONG else about_rows(self.turn.content, width))


class Answer(Entry):
    """A turn of the model: `live` while it arrives, `turn` when it is over. error: what ended it."""

    def __init__(self, number: int, position: int, model: str, begun_at: float, live: LiveAnswer | None) -> None:
        super().__init__(number, position)
        self.model = model
        self.live = live
        self.turn: Turn | None = None
        self.error: RunnerError | None = None
        self._begun_at = begun_at
        self._sections: list[Section] | None = None
        self._drafted = ""  # the marks of its text, once it has ended
        self._label = ""
        self._early_notes: list[Note] = []
        self._late_notes: list[Note] = []

    @classmethod
    def kept(cls, number: int, position: int, turn: Turn) -> Answer:
        """An answer of a chat that was opened."""
        answer = cls(number, position, turn.model, turn.created_at, None)
        answer.turn = turn
        return answer

    def end(self, turn: Turn, error: RunnerError | None, clock: float) -> None:
        """The answer is over: what was seen of it and is not in the turn stays with it."""
        if self.live is not None:
            self._early_notes, self._late_notes = self.live.early_notes, self.live.late_notes
            self._label = self.live.thought_label(clock) if turn.reasoning and not self.live.is_thinking else ""
            self._drafted = self.live.marks if turn.content == self.live.text else ""
        self.turn, self.error, self.live = turn, error, None
        self._begun_at = turn.created_at or self._begun_at

    @property
    def text(self) -> str:
        """The answer so far, raw."""
        return self.turn.content if self.turn else self.live.text if self.live else ""

    @property
    def thought(self) -> str:
        """The thought so far, safe."""
        if self.live is not None:
            return self.live.thought
        return safe_text(self.turn.reasoning).strip("\n") if self.turn else ""

    @property
    def fences(self) -> list[int]:
        """The numbers of its code blocks."""
        if self.live is not None:
            return self.live.fences
        return [part.fence for part in self._own_sections() if part.kind == "code" and not part.is_more]

    @property
    def n_fences(self) -> int:
        """How many code blocks there are, however long the answer is."""
        return self.live.n_fences if self.live is not None else len(self.fences)

    def code(self, fence: int) -> str:
        """The contents of one of its code blocks."""
        return self.live.code(fence) if self.live is not None else code_of(self._own_sections(), fence)

    def pieces(self, look: Look) -> Iterable[Piece]:
        about = SEPARATOR.join(
            part for part in (time_text(self._begun_at, look.now), safe_line(short_name(self.model))) if part
        )
        has_text = self.live.has_text if self.live else bool(self.turn and self.turn.content)
        copy = button("[y] copy" if look.is_copied else "copy", "copy") if has_text else None
        yield Header("assistant", "$text-accent", about, copy, look.is_chosen, look.is_first)
        yield from self.live.early_notes if self.live else self._early_notes
        yield from self._thought_pieces(look)
        if self.live is not None:
            if status := self.live.status(look.clock):
                yield status
            yield from self.live.pieces(look.fence)
            yield from self.live.late_notes
        else:
            yield from section_pieces(self._own_sections(), look.fence)
            yield from self._late_notes
            yield from self._end_pieces(look)

    def _thought_pieces(self, look: Look) -> Iterable[Piece]:
        thought = self.thought
        if not thought.strip():
            return
        is_thinking = self.live is not None and self.live.is_thinking
        label = self.live.thought_label(look.clock) if self.live else self._label or self._kept_label()
        if is_thinking and not self.is_open:
            yield ThoughtWindow(label, thought[-4000:])
            return
        yield Fold(label, self.is_open, "[t] " if look.has_keys else "")
        if self.is_open:
            yield from (Plain(part, f"italic {MUTED}", "│ ") for part in plain_parts(thought))
            yield Plain("")

    def _kept_label(self) -> str:
        return thought_label(self.turn) if self.turn else ""

    def _end_pieces(self, look: Look) -> Iterable[Piece]:
        turn = self.turn
        if turn is None:
            return
        if (note := NOTES.get(turn.state)) and self.error is None:
            yield Note(note, level="error" if turn.state == "error" else "info", has_gap=bool(turn.content))
        if self.error is not None:
            yield Note(self.error.message, self.error.hint, "error", has_gap=True)
        again = button("[r] again", "regenerate") if look.is_last else None
        timings = timings_of(turn)
        text = numbers_text(timings) if timings else ""
        if text or again:
            yield Numbers(text, again)

    def _own_sections(self) -> list[Section]:
        if self._sections is None:
            self._sections = sections_of(safe_text(self.turn.content), self._drafted) if self.turn else []
        return self._sections

    def drop(self, width: int) -> None:
        super().drop(width)
        self._sections = None

    def estimate(self, width: int) -> int:
        if self.turn is None:
            return 3
        return 5 + about_rows(self.turn.content, width) + bool(self.turn.reasoning)


def entry_of(number: int, position: int, turn: Turn) -> Entry:
    """The entry of a kept turn."""
    return Answer.kept(number, position, turn) if turn.role == "assistant" else Question(number, position, turn)
