"""One answer: a backend's steps to events, until the answer ends, and the numbers that go with it.

It renders the prompt, splits thought from answer, watches stop strings and budgets. It loads nothing and knows no
conversation: what was said before is in the messages.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

from runner.backends.base import Backend, Prefill, Step
from runner.config import ChatOptions, SamplingParams
from runner.constraint import AnswerConstraint
from runner.detokenize import AnswerPiece, AnswerStream, joined_pieces
from runner.drafting import Drafting
from runner.events import ChatEvent, Finished, FinishReason, Notice, Progress, ReasoningDelta, Stats, TextDelta
from runner.grammar import Grammars
from runner.prompt import Prompt, build_prompt
from runner.status_text import summary
from runner.telemetry import Stopwatch
from runner.types import CancelToken, Message, ReasoningMarkers

log = logging.getLogger(__name__)

_STATS_EVERY_S = 0.1
_TELL_EVERY_S = 0.025  # 40 times a second: who reads it shares the CPU with what computes


class Answer:
    """One request: turns a backend's steps into events until the answer ends.

    A step leaves cold caches, and what is done after each one then takes several times as long as many at once would.
    So the tokens of a fast model wait to be read until there is something to tell, unless reading them decides
    whether there is a next one.
    """

    def __init__(
        self,
        backend: Backend,
        drafting: Drafting,
        grammars: Grammars,
        params: SamplingParams,
        options: ChatOptions,
        cancel: CancelToken,
        clock: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._drafting = drafting
        self._grammars = grammars
        self._params = params
        self._options = options
        self._cancel = cancel
        self._clock = clock
        self._reads_each = bool(params.stop) or options.think_budget is not None
        self._token_ids: list[int] = []
        self._unread: list[Step] = []
        self._pieces: list[AnswerPiece] = []  # read, and not told yet
        self._token_at = 0.0
        self._tell_at = -math.inf
        self._n_reasoning = 0
        self._has_answered = False

    def events(self, messages: Sequence[Message]) -> Iterator[ChatEvent]:
        started = self._clock()
        info, tokenizer = self._backend.info, self._backend.tokenizer
        quarter = info.n_ctx // 4
        room = min(self._params.max_tokens or quarter, quarter)
        prompt = build_prompt(messages, self._options, info, tokenizer, room)
        if prompt.dropped:
            yield _dropped_notice(prompt.dropped)
        self._watch = Stopwatch(started, len(prompt.ids))
        self._stats_at = started + _STATS_EVERY_S
        self._speculator = self._drafting.begin(self._cancel, prompt.ids)
        self._constraint = self._constrained(prompt)
        self._stream = AnswerStream(
            tokenizer,
            stops=self._params.stop,
            markers=prompt.markers if self._constraint is None else _with_the_answer_alone(prompt.markers),
            is_in_reasoning=prompt.is_in_reasoning,
            follows_drafts=self._speculator is not None,
            strips_space=self._constraint is None,
        )
        reason = None if self._is_thought_over_budget() else (yield from self._run(prompt.ids))
        while reason is None:
            closing = self._backend.tokenizer.encode(self._stream.closing_text)
            reason = self._reached_limit(len(prompt.ids), len(closing))
            if reason is None:
                self._close_thought(closing)
                yield from self._tell()
                reason = yield from self._run((*prompt.ids, *self._token_ids))
        self._read()
        self._pieces += self._stream.finish()
        yield from self._tell()
        timings = self._watch.timings(self._clock())
        log.info("answered (%s): %s", reason, summary(timings, self._backend.info.n_ctx))
        yield Finished(
            reason=reason,
            timings=timings,
            token_ids=tuple(self._token_ids),
            seed=self._params.seed or 0,
            n_ctx=info.n_ctx,
            speculation=self._drafting.record,
        )

    def _constrained(self, prompt: Prompt) -> AnswerConstraint | None:
        """What the tokens after `prompt` have to keep to."""
        if self._params.grammar is None:
            return None
        may_think = prompt.is_in_reasoning or self._options.think != "off"
        is_on_channels = prompt.markers is not None and prompt.markers.channels is not None
        return AnswerConstraint(
            self._grammars.matcher(self._params.grammar),
            self._backend.tokenizer,
            len(prompt.ids),
            prompt.markers if may_think or is_on_channels else None,
            is_in_reasoning=prompt.is_in_reasoning,
        )

    def _run(self, ids: Sequence[int]) -> Generator[ChatEvent, None, FinishReason | None]:
        """Generate from `ids` until the answer ends, or None when the thought has used up its budget."""
        steps = self._backend.generate(ids, self._params, self._cancel, self._speculator, self._constraint)
        stop_ids, clock, unread = self._backend.tokenizer.stop_ids, self._clock, self._unread
        n_left = (self._params.max_tokens or math.inf) - len(self._token_ids)
        try:
            for step in steps:
                if isinstance(step, Prefill):
                    if not self._has_answered:  # else it goes on after a closed thought, and the prompt is long done
                        self._watch.prefill(step.cached)
                        yield Progress("prefill", step.done, step.total, "tokens")
                    continue
                now = clock()
                if step.token in stop_ids:
                    self._watch.drafted(step.n_drafted, step.n_accepted)
                    return "stop"
                unread.append(step)
                self._token_at = now
                n_left -= 1
                if now < self._tell_at and n_left and not self._reads_each:
                    continue
                self._read()
                if self._stream.is_finished:
                    return "stop"
                if not n_left:
                    return "length"
                if self._is_thought_over_budget():
                    return None
                if now >= self._tell_at:
                    yield from self._tell()
                if now >= self._stats_at:
                    self._stats_at = now + _STATS_EVERY_S
                    yield Stats(self._watch.timings(now), self._backend.info.n_ctx, self._drafting.record)
        except Exception:
            self._read()
            self._pieces += self._stream.finish()
            yield from self._tell()
            raise
        finally:
            steps.close()
        return "cancelled" if self._cancel.is_cancelled else "context"

    def _read(self) -> None:
        """Read the tokens that wait: count them, and see what they say."""
        self._has_answered = self._has_answered or bool(self._unread)
        for step in self._unread:
            # Only the first and the last reading of the clock count, and the first token does not wait.
            self._watch.token(self._token_at, step.n_drafted, step.n_accepted)
            self._token_ids.append(step.token)
            self._n_reasoning += self._stream.is_in_reasoning
            self._pieces += self._stream.push(step.token, is_drafted=step.is_drafted)
        self._unread.clear()

    def _tell(self) -> Iterator[ChatEvent]:
        """What was read since the last time."""
        self._tell_at = self._token_at + _TELL_EVERY_S
        for kind, text, drafted in joined_pieces(self._pieces):
            yield TextDelta(text, drafted) if kind == "text" else ReasoningDelta(text)
        self._pieces.clear()

    def _is_thought_over_budget(self) -> bool:
        budget = self._options.think_budget
        return budget is not None and self._stream.is_in_reasoning and self._n_reasoning >= budget

    def _close_thought(self, closing: Sequence[int]) -> None:
        """Write the end of the thought for the model, as part of its completion."""
        for token in closing:
            self._watch.written()
            self._token_ids.append(token)
            self._pieces += self._stream.push(token)

    def _reached_limit(self, n_prompt: int, n_written: int) -> FinishReason | None:
        """Why nothing could follow so many tokens written for the model, if so."""
        n_tokens = len(self._token_ids) + n_written
        if self._params.max_tokens and n_tokens >= self._params.max_tokens:
            return "length"
        return "context" if n_prompt + n_tokens >= self._backend.info.n_ctx else None


def _with_the_answer_alone(markers: ReasoningMarkers | None) -> ReasoningMarkers | None:
    """An answer that keeps to a grammar is that alone: what comes on other channels is free, and no part of it."""
    if markers is None or (channels := markers.channels) is None:
        return markers
    return replace(markers, channels=replace(channels, is_answer_alone=True))


def _dropped_notice(dropped: Sequence[Message]) -> Notice:
    first = " ".join(dropped[0].content.split())[:60]
    return Notice(
        "warning",
        f"The context is full: the oldest {len(dropped)} messages are left out, from “{first}” on.",
        "Use a larger context (-c), or /clear to start afresh.",
    )
