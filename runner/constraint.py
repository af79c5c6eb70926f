"""Keeps an answer to its grammar, and leaves the thought before it free.

It follows one completion, told by its ids: through the thought, if there is one, to the answer, which goes through the
grammar token by token. What the grammar allows is grammar.py's, what a thought looks like detokenize's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from runner.backends.base import Tokenizer
from runner.detokenize import AnswerStream
from runner.errors import RunnerError
from runner.grammar import Matcher
from runner.sampling import Constraint, Mask
from runner.types import ReasoningMarkers

_BLANK_LINE = "\n\n"


class AnswerConstraint(Constraint):
    """See Constraint in sampling.py: the tokens that keep the completion after the first `n_prompt` ids to a grammar.

    markers: of the model's thoughts, None where it has none or is not to think. is_in_reasoning: the prompt has opened
    the thought. A model may open one where the answer could begin; within it every token is allowed but those that end
    the answer, and a blank line after it is not the grammar's. It is a function of the history: one that goes on from
    the one before is read on, any other from its beginning.
    """

    def __init__(
        self,
        matcher: Matcher,
        tokenizer: Tokenizer,
        n_prompt: int,
        markers: ReasoningMarkers | None = None,
        *,
        is_in_reasoning: bool = False,
    ) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._n_prompt = n_prompt
        self._markers = markers
        self._is_in_reasoning = is_in_reasoning
        self._free = ~_only(tokenizer.stop_ids, tokenizer.vocab_size)
        self._opening = _opening(tokenizer, markers)
        self._blank_line = _blank_line(tokenizer)
        self._begin()

    def _begin(self) -> None:
        self._matcher.reset()
        self._read: list[int] = []
        self._is_answer_too = True  # what was read of an opening may also begin an answer
        self._part: Literal["opening", "thought", "gap", "blank", "answer"] = "answer"
        if self._markers is not None:
            self._stream = AnswerStream(
                self._tokenizer, markers=self._markers, is_in_reasoning=self._is_in_reasoning, strips_space=False
            )
            self._part = "thought" if self._is_in_reasoning else "opening"

    def allowed(self, history: Sequence[int]) -> Mask:
        self._follow(history)
        if self._part == "thought":
            return self._free
        if self._part == "opening":
            next_of_opening = self._opening[len(self._read)]
            if self._begins_by_marker or not self._is_answer_too:
                return _only((next_of_opening,), len(self._free))
            return _with(self._matcher.allowed(), next_of_opening)
        if self._part == "gap" and self._blank_line is not None:
            return _with(self._matcher.allowed(), self._blank_line)
        return self._matcher.allowed()

    @property
    def _begins_by_marker(self) -> bool:
        """Whether an answer is a message on a channel: then there is none without a marker."""
        return self._markers is not None and self._markers.channels is not None

    def _follow(self, history: Sequence[int]) -> None:
        n_known = self._n_prompt + len(self._read)
        if list(history[self._n_prompt : n_known]) != self._read:
            self._begin()
            n_known = self._n_prompt
        for token in history[n_known:]:
            self._take(token)
            self._read.append(token)

    def _take(self, token: int) -> None:
        match self._part:
            case "opening":
                self._take_opening(token)
            case "thought":
                self._take_thought(token)
            case "gap" | "blank":
                self._take_after_thought(token)
            case "answer":
                self._take_answer(token)

    def _take_opening(self, token: int) -> None:
        if token != self._opening[len(self._read)]:
            self._part = "answer"
            self._take_answer(token)
            return
        self._is_answer_too = self._is_answer_too and self._matcher.take(token)
        self._stream.push(token)
        if len(self._read) + 1 == len(self._opening):
            self._matcher.reset()
            self._part = "thought"

    def _take_thought(self, token: int) -> None:
        pieces = self._stream.push(token)
        if not self._stream.is_in_answer:
            return
        # A token that ends the thought may have begun the answer.
        begun = "".join(piece.text for piece in pieces if piece.kind == "text")
        for token_of_it in self._tokenizer.encode(begun, parse_special=False) if begun else ():
            self._take_answer(token_of_it)
        self._part = "answer" if begun else "gap"

    def _take_after_thought(self, token: int) -> None:
        if not (self._part == "gap" and token == self._blank_line) and self._matcher.take(token):
            self._part = "answer"
        elif not self._tokenizer.token_bytes(token).strip(b"\r\n"):
            self._part = "blank"
        else:
            raise _lost()

    def _take_answer(self, token: int) -> None:
        if not self._matcher.take(token):
            raise _lost()


def _lost() -> RunnerError:
    return RunnerError(
        "The model left the form of its thoughts, and what it wrote is no answer by the grammar.",
        hint="Ask again, or without thinking (--think off).",
    )


def _only(tokens: Sequence[int] | frozenset[int], vocab_size: int) -> Mask:
    mask = np.zeros(vocab_size, np.bool_)
    mask[list(tokens)] = True
    return mask


def _with(mask: Mask, token: int) -> Mask:
    mask[token] = True
    return mask


def _opening(tokenizer: Tokenizer, markers: ReasoningMarkers | None) -> list[int]:
    """The tokens that open what comes before an answer, as a model writes them."""
    if markers is None:
        return []
    return tokenizer.encode(markers.channels.channel if markers.channels else markers.open, parse_special=True)


def _blank_line(tokenizer: Tokenizer) -> int | None:
    """The token of the blank line that models write after a thought, where there is one."""
    ids = tokenizer.encode(_BLANK_LINE, parse_special=False)
    return ids[0] if len(ids) == 1 else None
