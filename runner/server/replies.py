"""The engine's events -> what OpenAI's API answers: one object, or the chunks of a stream. Pure: values in, values out.

Beside OpenAI's fields there are `reasoning_content` (a model's thought), `timings` (runner's own numbers, with what
speculation did and the seed that repeats the answer) and `warnings`. It knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from runner.events import ChatEvent, Finished, Loaded, Notice, ReasoningDelta, TextDelta
from runner.server.refusal import Refusal
from runner.status_text import plain_speculation, plain_timings

_FINISH_REASONS: Final = {"stop": "stop", "length": "length", "context": "length"}


def model_object(loaded: Loaded, created: int) -> dict[str, Any]:
    """The loaded model in /v1/models. created: Unix time, s."""
    info = loaded.info
    return {
        "id": info.name,
        "object": "model",
        "created": created,
        "owned_by": "runner",
        "meta": {
            "architecture": info.architecture,
            "n_params": info.num_parameters,
            "size_bytes": info.size_bytes,
            "quantization": info.quantization,
            "context_length": info.context_length,
            "n_ctx": info.n_ctx,
            "vocab_size": info.vocab_size,
            "backend": info.backend,
            "backend_reason": loaded.reason,
        },
    }


@dataclass(kw_only=True)
class Reply:
    """One answer on its way out. created: Unix time, s.

    has_usage: a stream ends with a chunk that counts the tokens. finished: the event of that name, once it has come.
    """

    id: str
    created: int
    loaded: Loaded
    is_chat: bool
    has_usage: bool = False
    finished: Finished | None = None
    _text: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _warnings: list[str] = field(default_factory=list)

    def take(self, event: ChatEvent) -> None:
        """Keep what an event says, for `whole`. Raises Refusal for an answer that was stopped from outside."""
        if isinstance(event, TextDelta):
            self._text.append(event.text)
        elif isinstance(event, ReasoningDelta):
            self._reasoning.append(event.text)
        self._take_end(event)

    def whole(self) -> dict[str, Any]:
        """The answer in one object, once it is finished."""
        assert self.finished is not None, "the answer goes on"
        text = "".join(self._text)
        if self.is_chat:
            message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
            if self._reasoning:
                message["reasoning_content"] = "".join(self._reasoning)
            said: dict[str, Any] = {"message": message}
        else:
            said = {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": _FINISH_REASONS[self.finished.reason]}
        name = "chat.completion" if self.is_chat else "text_completion"
        return {**self._head(name), "choices": [choice], "usage": self._usage(), **self._extensions()}

    def opening(self) -> Iterator[dict[str, Any]]:
        """The chunk that a stream begins with."""
        if self.is_chat:
            yield self._chunk({"delta": {"role": "assistant", "content": ""}})

    def chunks(self, event: ChatEvent) -> Iterator[dict[str, Any]]:
        """What a stream says of an event. Raises Refusal for an answer that was stopped from outside."""
        if isinstance(event, TextDelta):
            yield self._chunk({"delta": {"content": event.text}} if self.is_chat else {"text": event.text})
        elif isinstance(event, ReasoningDelta) and self.is_chat:
            yield self._chunk({"delta": {"reasoning_content": event.text}})
        self._take_end(event)
        if self.finished is not None:
            last: dict[str, Any] = {"delta": {}} if self.is_chat else {"text": ""}
            reason = _FINISH_REASONS[self.finished.reason]
            yield {**self._chunk(last, reason), **self._extensions()}
            if self.has_usage:
                yield {**self._chunk(None), "usage": self._usage()}

    def _take_end(self, event: ChatEvent) -> None:
        if isinstance(event, Notice) and event.level == "warning":
            self._warnings.append(f"{event.text} {event.hint}".strip())
        elif isinstance(event, Finished):
            if event.reason not in _FINISH_REASONS:
                raise Refusal(503, "The answer was stopped by the server.", code="stopped")
            self.finished = event

    def _head(self, name: str) -> dict[str, Any]:
        return {"id": self.id, "object": name, "created": self.created, "model": self.loaded.info.name}

    def _chunk(self, said: dict[str, Any] | None, reason: str | None = None) -> dict[str, Any]:
        """One chunk; None: one without a choice."""
        choices = [] if said is None else [{"index": 0, **said, "logprobs": None, "finish_reason": reason}]
        usage = {"usage": None} if self.has_usage else {}
        name = "chat.completion.chunk" if self.is_chat else "text_completion"
        return {**self._head(name), "choices": choices, **usage}

    def _usage(self) -> dict[str, Any]:
        assert self.finished is not None, "the answer goes on"
        timings = self.finished.timings
        return {
            "prompt_tokens": timings.prompt_tokens,
            "completion_tokens": timings.completion_tokens,
            "total_tokens": timings.context_tokens,
            "prompt_tokens_details": {"cached_tokens": timings.cached_tokens},
        }

    def _extensions(self) -> dict[str, Any]:
        assert self.finished is not None, "the answer goes on"
        speculation = plain_speculation(self.finished.speculation, self.loaded.speculation)
        timings = {**plain_timings(self.finished.timings), "seed": self.finished.seed, "speculation": speculation}
        return {"timings": timings, **({"warnings": self._warnings} if self._warnings else {})}
