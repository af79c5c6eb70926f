"""Token ids to the text of an answer: UTF-8 across tokens, stop strings, and the thought apart from the answer.

All of it works on a stream and gives the same whatever pieces the stream comes in. It knows no template and no
backend beyond its tokenizer; reasoning markers are values that it is given.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from runner.backends.base import Tokenizer
from runner.types import ChannelMarkers, ReasoningMarkers

Kind = Literal["text", "reasoning"]


class AnswerPiece(NamedTuple):
    """A part of the answer ("text") or of the thought before it ("reasoning")."""

    kind: Kind
    text: str


class Detokenizer:
    """Token ids to text, one at a time; bytes of an unfinished character wait for the rest of it.

    Bytes that are not UTF-8 become U+FFFD, as in bytes.decode(errors="replace"). strips_leading_space: one space at
    the very start is not part of the text (SentencePiece).
    """

    def __init__(self, token_bytes: Callable[[int], bytes], strips_leading_space: bool = False) -> None:
        self._token_bytes = token_bytes
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._strips_space = strips_leading_space

    def push(self, token: int) -> str:
        return self.push_bytes(self._token_bytes(token))

    def push_bytes(self, data: bytes) -> str:
        text = self._decode(data)
        if self._strips_space and text:
            self._strips_space = False
            return text[1:] if text[0] == " " else text
        return text

    def flush(self) -> str:
        """What never became complete, as U+FFFD."""
        return self._decode(b"", True)


def _held_back(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of `text` that could be the start of one of `markers`."""
    longest = 0
    for marker in markers:
        at = text.find(marker[0], max(0, len(text) - len(marker) + 1))
        while at >= 0 and len(text) - at > longest:
            if marker.startswith(text[at:]):
                longest = len(text) - at
                break
            at = text.find(marker[0], at + 1)
    return longest


class StopMatcher:
    """Ends a text before the first stop string that is complete, and never shows a part of one.

    Of several that end at the same place the one that starts first counts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self._is_hit = False

    def push(self, text: str) -> tuple[str, bool]:
        """(what can be shown now, whether a stop string was found); nothing comes after one."""
        if self._is_hit:
            return "", True
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held, self._is_hit = "", True
            return text[: min(found)[1]], True
        keep = len(text) - _held_back(text, self._stops)
        self._held = text[keep:]
        return text[:keep], False

    def flush(self) -> str:
        """What was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held


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
            keep = len(self._buffer) - _held_back(self._buffer, (close,))
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
        self._thought = _Thought() if channel in self._channels.thoughts else None
        self.is_in_answer = channel == self._channels.answer
        return True

    def _body(self, pieces: list[AnswerPiece]) -> bool:
        ends = (self._channels.end, self._channels.turn)
        at = min((at for end in ends if (at := self._buffer.find(end)) >= 0), default=-1)
        text = self._take(at if at >= 0 else len(self._buffer) - _held_back(self._buffer, ends))
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


class AnswerStream:
    """The tokens of one completion to pieces of thought and answer, until a stop string ends it.

    Stop strings apply to the answer: one that occurs in the thought does not end it. Control tokens show nothing,
    except that those of the reasoning markers are read as markers until the answer begins.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stops: Sequence[str] = (),
        markers: ReasoningMarkers | None = None,
        is_in_reasoning: bool = False,
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer.token_bytes, tokenizer.strips_leading_space)
        self._splitter = ReasoningSplitter(markers, is_in_reasoning) if markers else None
        self._marker_names = _marker_names(tokenizer, markers) if markers else {}
        self._matcher = StopMatcher(stops) if any(stops) else None
        self.closing_text = markers.closing_text if markers else ""
        self.is_finished = False

    @property
    def is_in_reasoning(self) -> bool:
        return self._splitter is not None and self._splitter.is_in_reasoning

    def push(self, token: int) -> list[AnswerPiece]:
        """The pieces that this token completes, often one, sometimes none."""
        if self.is_finished:
            return []
        splitter = self._splitter
        if splitter is None or splitter.is_in_answer or token not in self._marker_names:
            text = self._detokenizer.push(token)
        else:
            text = self._detokenizer.push_bytes(self._marker_names[token])
        if not text:
            return []
        return self._stopped([AnswerPiece("text", text)] if splitter is None else splitter.push(text))

    def _stopped(self, pieces: list[AnswerPiece]) -> list[AnswerPiece]:
        if self._matcher is None:
            return pieces
        kept: list[AnswerPiece] = []
        for piece in pieces:
            if piece.kind == "reasoning":
                kept.append(piece)
                continue
            text, self.is_finished = self._matcher.push(piece.text)
            if text:
                kept.append(AnswerPiece("text", text))
            if self.is_finished:
                break
        return kept

    def finish(self) -> list[AnswerPiece]:
        """The completion is over: what was held back. Call it once, after the last push."""
        if self.is_finished:
            return []
        text = self._detokenizer.flush()
        pieces = [AnswerPiece("text", text)] if text else []
        if self._splitter is not None:
            pieces = (self._splitter.push(text) if text else []) + self._splitter.flush()
        pieces = self._stopped(pieces)
        if self._matcher is not None and (held := self._matcher.flush()):
            pieces.append(AnswerPiece("text", held))
        return pieces


def _marker_names(tokenizer: Tokenizer, markers: ReasoningMarkers) -> dict[int, bytes]:
    """The control tokens among the tokens of the markers, with the names that make them visible to the splitter."""
    texts = [markers.open, markers.close, markers.closing_text]
    tokens = {token for text in texts for token in tokenizer.encode(text, parse_special=True)}
    return {token: tokenizer.token_bytes(token, special=True) for token in tokens if not tokenizer.token_bytes(token)}
