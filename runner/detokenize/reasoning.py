"""Tells a model's thought from its answer by the markers around it.

It knows no tokens: markers are text here, and text comes in any pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from typing import Literal, NamedTuple

from runner.detokenize.drafted import Ranges, joined
from runner.detokenize.text import held_back
from runner.types import ChannelMarkers, ReasoningMarkers

Kind = Literal["text", "reasoning"]


class AnswerPiece(NamedTuple):
    """A part of the answer ("text") or of the thought before it ("reasoning").

    drafted: the ranges of an answer's characters that come from drafted tokens, where they are followed (AnswerStream).
    """

    kind: Kind
    text: str
    drafted: Ranges = ()


def joined_pieces(pieces: Iterable[AnswerPiece]) -> list[AnswerPiece]:
    """The same text in as few pieces as there can be: those of one kind that follow each other become one."""
    groups = groupby(pieces, key=lambda piece: piece.kind)
    return [AnswerPiece(kind, *joined([(piece.text, piece.drafted) for piece in group])) for kind, group in groups]


class ReasoningSplitter:
    """Tells the thought from the answer and takes the markers out, even when they are split over many pieces.

    Only a marker at the very start (after whitespace) opens a thought, and there is one: "<think>" later on is text,
    as in an answer about templates. Whitespace is dropped at the start and the end of a thought, line ends at the
    start of the answer after it. Where messages are on channels there may be several thoughts and remarks before the
    answer: a blank line is put between two of a kind, and the answer channel goes on to the end, with markers as text.
    """

    def __init__(self, markers: ReasoningMarkers, starts_inside: bool = False) -> None:
        self.markers = markers
        self._parser: _TagParser | _ChannelParser = (
            _TagParser(markers, starts_inside)
            if markers.channels is None
            else _ChannelParser(markers.channels, starts_inside)
        )

    @property
    def is_in_reasoning(self) -> bool:
        return self._parser.is_in_reasoning

    @property
    def is_in_answer(self) -> bool:
        """All that comes from now on is the answer, as it stands."""
        return self._parser.is_in_answer

    @property
    def n_held(self) -> int:
        """Characters at the end of what was read that may be part of a marker."""
        return self._parser.n_held

    def push(self, text: str) -> list[AnswerPiece]:
        return self._parser.push(text)

    def flush(self) -> list[AnswerPiece]:
        """What was held back in case a marker came."""
        return self._parser.flush()


class _Thought:
    """The text between the markers of a thought, less the whitespace at its ends."""

    # More trailing whitespace than this is shown: a model stuck in newlines must not be held back for ever.
    _MAX_HELD_SPACE = 32

    def __init__(self) -> None:
        self._has_begun = False
        self._space = ""

    def push(self, text: str) -> list[AnswerPiece]:
        text = self._space + text
        if not self._has_begun:
            text = text.lstrip()
        self._has_begun = self._has_begun or bool(text)
        shown = max(len(text.rstrip()), len(text) - self._MAX_HELD_SPACE)
        self._space = text[shown:]
        return [AnswerPiece("reasoning", text[:shown])] if shown > 0 else []

    def flush(self) -> list[AnswerPiece]:
        """The whitespace at the end after all: the thought was cut short."""
        space, self._space = self._space, ""
        return [AnswerPiece("reasoning", space)] if space else []


class _TagParser:
    """<think>…</think> and its like: one thought, then the answer."""

    def __init__(self, markers: ReasoningMarkers, starts_inside: bool) -> None:
        self._markers = markers
        self._buffer = ""
        self._thought = _Thought()
        self._drops_newlines = False
        self.is_in_reasoning = starts_inside
        self.is_in_answer = False

    @property
    def n_held(self) -> int:
        return len(self._buffer)

    def push(self, text: str) -> list[AnswerPiece]:
        if self.is_in_answer:
            return self._answer(text)
        self._buffer += text
        return self._inside() if self.is_in_reasoning else self._start()

    def _start(self) -> list[AnswerPiece]:
        """Nothing has been said yet: does the text open with a thought?"""
        open_, text = self._markers.open, self._buffer.lstrip()
        if text.startswith(open_):
            self.is_in_reasoning = True
            self._buffer = text[len(open_) :]
            return self._inside()
        if open_.startswith(text):
            return []
        self.is_in_answer = True
        text, self._buffer = self._buffer, ""
        return [AnswerPiece("text", text)]

    def _inside(self) -> list[AnswerPiece]:
        close = self._markers.close
        at = self._buffer.find(close)
        if at < 0:
            keep = len(self._buffer) - held_back(self._buffer, (close,))
            text, self._buffer = self._buffer[:keep], self._buffer[keep:]
            return self._thought.push(text)
        pieces = self._thought.push(self._buffer[:at])
        rest, self._buffer = self._buffer[at + len(close) :], ""
        self.is_in_reasoning, self.is_in_answer, self._drops_newlines = False, True, True
        return pieces + self._answer(rest)

    def _answer(self, text: str) -> list[AnswerPiece]:
        if self._drops_newlines:
            text = text.lstrip("\r\n")
            self._drops_newlines = not text
        return [AnswerPiece("text", text)] if text else []

    def flush(self) -> list[AnswerPiece]:
        text, self._buffer = self._buffer, ""
        if not self.is_in_reasoning:
            return [AnswerPiece("text", text)] if text else []
        return self._thought.push(text) + self._thought.flush()


class _ChannelParser:
    """Harmony: <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…"""

    # A header is a role, a channel, a recipient: more than this is a model that has lost the format.
    _MAX_HEADER = 400

    def __init__(self, channels: ChannelMarkers, starts_inside: bool) -> None:
        self._channels = channels
        self._buffer = ""
        self._state: Literal["between", "header", "body"] = "body" if starts_inside else "between"
        self._thought: _Thought | None = _Thought() if starts_inside else None
        self._seen: set[Kind] = set()
        self._is_new = starts_inside
        self.is_in_answer = False

    @property
    def is_in_reasoning(self) -> bool:
        return self._state == "body" and self._thought is not None

    @property
    def n_held(self) -> int:
        return len(self._buffer)

    def push(self, text: str) -> list[AnswerPiece]:
        self._buffer += text
        pieces: list[AnswerPiece] = []
        steps = {"between": self._between, "header": self._header, "body": self._body}
        while not self.is_in_answer and steps[self._state](pieces):
            pass
        if self.is_in_answer:
            self._emit("text", pieces, self._take(len(self._buffer)))
        return pieces

    def _take(self, length: int) -> str:
        text, self._buffer = self._buffer[:length], self._buffer[length:]
        return text

    def _emit(self, kind: Kind, pieces: list[AnswerPiece], text: str) -> None:
        """Show `text`, after a blank line when it begins a further message of its kind."""
        if not text:
            return
        if self._is_new and kind in self._seen:
            text = "\n\n" + text
        self._is_new = False
        self._seen.add(kind)
        pieces.append(AnswerPiece(kind, text))

    def _between(self, _: list[AnswerPiece]) -> bool:
        """Before a message: its header, or a model that does not keep to the format."""
        starts = (self._channels.turn, self._channels.channel)
        text = self._buffer.lstrip()
        if text.startswith(starts):
            self._state = "header"
            return True
        if not any(start.startswith(text) for start in starts):
            self._give_up()
        return False

    def _give_up(self) -> None:
        """This is no message: show what there is, and what comes, as it stands."""
        self._is_new = self.is_in_answer = True

    def _header(self, _: list[AnswerPiece]) -> bool:
        body = self._channels.body
        at = self._buffer.find(body)
        if at > self._MAX_HEADER or (at < 0 and len(self._buffer) >= self._MAX_HEADER + len(body)):
            self._give_up()
            return False
        if at < 0:
            return False
        header = self._take(at + len(body))
        name = re.search(re.escape(self._channels.channel) + r"\s*(\w+)", header)
        channel = name[1] if name else ""
        self._state, self._is_new = "body", True
        self.is_in_answer = channel == self._channels.answer
        is_thought = channel in self._channels.thoughts or self._channels.is_answer_alone
        self._thought = _Thought() if is_thought and not self.is_in_answer else None
        return True

    def _body(self, pieces: list[AnswerPiece]) -> bool:
        ends = (self._channels.end, self._channels.turn)
        at = min((at for end in ends if (at := self._buffer.find(end)) >= 0), default=-1)
        text = self._take(at if at >= 0 else len(self._buffer) - held_back(self._buffer, ends))
        if self._thought is None:
            self._emit("text", pieces, text)
        else:
            for piece in self._thought.push(text):
                self._emit(piece.kind, pieces, piece.text)
        if at < 0:
            return False
        if self._buffer.startswith(self._channels.end):
            self._take(len(self._channels.end))
        self._state, self._thought = "between", None
        return True

    def flush(self) -> list[AnswerPiece]:
        """What was held back; an unfinished header is no text and is dropped, as is space after a message."""
        pieces: list[AnswerPiece] = []
        text = self._take(len(self._buffer))
        if self._state == "between" and (text.strip() or not self._seen):
            self._emit("text", pieces, text)
        elif self._state == "body" and self._thought is not None:
            for piece in self._thought.push(text) + self._thought.flush():
                self._emit(piece.kind, pieces, piece.text)
        elif self._state == "body":
            self._emit("text", pieces, text)
        return pieces
