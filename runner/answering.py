"""One answer: a backend's steps to events, until the answer ends, and the numbers that go with it.

It renders the prompt, splits thought from answer, watches stop strings and budgets. It loads nothing and knows no
conversation: what was said before is in the messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence

from runner.backends.base import Backend, Prefill, Step
from runner.config import ChatOptions, SamplingParams
from runner.detokenize import AnswerPiece, AnswerStream
from runner.drafting import Drafting
from runner.events import ChatEvent, Finished, FinishReason, Notice, Progress, ReasoningDelta, Stats, TextDelta
from runner.prompt import build_prompt
from runner.telemetry import Stopwatch
from runner.types import CancelToken, Message

log = logging.getLogger(__name__)

_STATS_EVERY_S = 0.1


class Answer:
    """One request: turns a backend's steps into events until the answer ends."""

    def __init__(
        self,
        backend: Backend,
        drafting: Drafting,
        params: SamplingParams,
        options: ChatOptions,
        cancel: CancelToken,
        clock: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._drafting = drafting
        self._params = params
        self._options = options
        self._cancel = cancel
        self._clock = clock
        self._token_ids: list[int] = []
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
        self._speculator = self._drafting.begin(self._cancel, prompt.ids)
        self._stream = AnswerStream(
            tokenizer,
            stops=self._params.stop,
            markers=prompt.markers,
            is_in_reasoning=prompt.is_in_reasoning,
            follows_drafts=self._speculator is not None,
        )
        reason = None if self._is_thought_over_budget() else (yield from self._run(prompt.ids))
        while reason is None:
            yield from self._close_thought()
            reason = self._reached_limit(len(prompt.ids))
            if reason is None:
                reason = yield from self._run((*prompt.ids, *self._token_ids))
        yield from self._deltas(self._stream.finish())
        timings = self._watch.timings(self._clock())
        log.info("answered (%s): %s", reason, timings)
        yield Finished(
            reason=reason,
            timings=timings,
            token_ids=tuple(self._token_ids),
            seed=self._params.seed or 0,
            n_ctx=info.n_ctx,
            speculation=self._drafting.record,
        )

    def _run(self, ids: Sequence[int]) -> Generator[ChatEvent, None, FinishReason | None]:
        """Generate from `ids` until the answer ends, or None when the thought has used up its budget."""
        steps = self._backend.generate(ids, self._params, self._cancel, self._speculator)
        next_stats = self._clock() + _STATS_EVERY_S
        try:
            for step in steps:
                if isinstance(step, Prefill):
                    if not self._has_answered:  # else it goes on after a closed thought, and the prompt is long done
                        self._watch.prefill(step.cached)
                        yield Progress("prefill", step.done, step.total, "tokens")
                    continue
                now = self._clock()
                self._has_answered = True
                if step.token in self._backend.tokenizer.stop_ids:
                    return "stop"
                yield from self._take(step, now)
                if self._stream.is_finished:
                    return "stop"
                if self._params.max_tokens and len(self._token_ids) >= self._params.max_tokens:
                    return "length"
                if self._is_thought_over_budget():
                    return None
                if now >= next_stats:
                    next_stats = now + _STATS_EVERY_S
                    yield Stats(self._watch.timings(now), self._backend.info.n_ctx, self._drafting.record)
        finally:
            steps.close()
        return "cancelled" if self._cancel.is_cancelled else "context"

    def _take(self, step: Step, now: float) -> Iterator[ChatEvent]:
        self._watch.token(now, step.n_drafted, step.n_accepted)
        self._token_ids.append(step.token)
        self._n_reasoning += self._stream.is_in_reasoning
        return self._deltas(self._stream.push(step.token, is_drafted=step.is_drafted))

    def _is_thought_over_budget(self) -> bool:
        budget = self._options.think_budget
        return budget is not None and self._stream.is_in_reasoning and self._n_reasoning >= budget

    def _close_thought(self) -> Iterator[ChatEvent]:
        """Write the end of the thought for the model, as part of its completion."""
        for token in self._backend.tokenizer.encode(self._stream.closing_text):
            self._watch.written()
            self._token_ids.append(token)
            yield from self._deltas(self._stream.push(token))

    def _reached_limit(self, n_prompt: int) -> FinishReason | None:
        """Why nothing can follow what was written for the model, if so."""
        if self._params.max_tokens and len(self._token_ids) >= self._params.max_tokens:
            return "length"
        return "context" if n_prompt + len(self._token_ids) >= self._backend.info.n_ctx else None

    @staticmethod
    def _deltas(pieces: Sequence[AnswerPiece]) -> Iterator[ChatEvent]:
        for kind, text, drafted in pieces:
            yield TextDelta(text, drafted) if kind == "text" else ReasoningDelta(text)


def _dropped_notice(dropped: Sequence[Message]) -> Notice:
    first = " ".join(dropped[0].content.split())[:60]
    return Notice(
        "warning",
        f"The context is full: the oldest {len(dropped)} messages are left out, from “{first}” on.",
        "Use a larger context (-c), or /clear to start afresh.",
    )
