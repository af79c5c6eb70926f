"""One completion's tokens to pieces of thought and answer.

It puts the parts of this package together and knows nothing of how the tokens were made.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner.backends.base import Tokenizer
from runner.detokenize.drafted import DraftedMarks
from runner.detokenize.reasoning import AnswerPiece, ReasoningSplitter
from runner.detokenize.text import Detokenizer, StopMatcher
from runner.types import ReasoningMarkers


class AnswerStream:
    """The tokens of one completion to pieces of thought and answer, until a stop string ends it.

    Stop strings apply to the answer: one that occurs in the thought does not end it. Control tokens show nothing,
    except that those of the reasoning markers are read as markers until the answer begins. follows_drafts: the pieces
    of the answer say which of their characters come from drafted tokens. strips_space: leave out the space that
    SentencePiece begins a text with; it is the answer's own where a grammar asks for it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stops: Sequence[str] = (),
        markers: ReasoningMarkers | None = None,
        is_in_reasoning: bool = False,
        follows_drafts: bool = False,
        strips_space: bool = True,
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer.token_bytes, tokenizer.strips_leading_space and strips_space)
        self._splitter = ReasoningSplitter(markers, is_in_reasoning) if markers else None
        self._marker_names = _marker_names(tokenizer, markers) if markers else {}
        self._matcher = StopMatcher(stops) if any(stops) else None
        self._marks = DraftedMarks() if follows_drafts else None
        self.closing_text = markers.closing_text if markers else ""
        self.is_finished = False

    @property
    def is_in_reasoning(self) -> bool:
        return self._splitter is not None and self._splitter.is_in_reasoning

    @property
    def is_in_answer(self) -> bool:
        """All that comes from now on is the answer."""
        return self._splitter is None or self._splitter.is_in_answer

    def push(self, token: int, *, is_drafted: bool = False) -> list[AnswerPiece]:
        """The pieces that this token completes, often one, sometimes none."""
        if self.is_finished:
            return []
        splitter = self._splitter
        if splitter is None or splitter.is_in_answer or token not in self._marker_names:
            text = self._detokenizer.push(token)
        else:
            text = self._detokenizer.push_bytes(self._marker_names[token])
        if self._marks is not None:
            self._marks.read(len(text), is_drafted, has_rest=self._detokenizer.has_rest)
        if not text:
            return []
        return self._stopped([AnswerPiece("text", text)] if splitter is None else splitter.push(text))

    def finish(self) -> list[AnswerPiece]:
        """The completion is over: what was held back. Call it once, after the last push."""
        if self.is_finished:
            return []
        text = self._detokenizer.flush()
        if self._marks is not None:
            self._marks.flush(len(text))
        pieces = [AnswerPiece("text", text)] if text else []
        if self._splitter is not None:
            pieces = (self._splitter.push(text) if text else []) + self._splitter.flush()
        pieces = self._stopped(pieces)
        if self._matcher is not None and (held := self._matcher.flush()):
            pieces.append(self._shown(held))
        return pieces

    def _stopped(self, pieces: list[AnswerPiece]) -> list[AnswerPiece]:
        if self._marks is not None:
            n_answer = sum(len(piece.text) for piece in pieces if piece.kind == "text")
            self._marks.passed(n_answer, n_held=0 if self._splitter is None else self._splitter.n_held)
        if self._matcher is None and self._marks is None:
            return pieces
        kept: list[AnswerPiece] = []
        for piece in pieces:
            if piece.kind == "reasoning":
                kept.append(piece)
                continue
            text = piece.text
            if self._matcher is not None:
                text, self.is_finished = self._matcher.push(text)
            if text:
                kept.append(self._shown(text))
            if self.is_finished:
                break
        return kept

    def _shown(self, text: str) -> AnswerPiece:
        return AnswerPiece("text", text, self._marks.shown(len(text)) if self._marks is not None else ())


def _marker_names(tokenizer: Tokenizer, markers: ReasoningMarkers) -> dict[int, bytes]:
    """The control tokens among the tokens of the markers, with the names that make them visible to the splitter."""
    texts = [markers.open, markers.close, markers.closing_text]
    tokens = {token for text in texts for token in tokenizer.encode(text, parse_special=True)}
    return {token: tokenizer.token_bytes(token, special=True) for token in tokens if not tokenizer.token_bytes(token)}
