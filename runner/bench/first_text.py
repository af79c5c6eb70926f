"""How long a user waits for the first text of an answer, through the same door as a chat: time to first token.

The clock runs in the front end's process, from handing over the message to the first piece of text, thought or answer.
It knows nothing of statistics.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from runner.bench.process import BenchProcess
from runner.config import ChatOptions, SamplingParams
from runner.errors import TemplateError
from runner.events import Progress, ReasoningDelta, TextDelta
from runner.types import Message

_QUESTION: Final = "Why is the sky blue during the day, and red when the sun goes down? Answer in two sentences."
_OTHER: Final = "The"
_RAW: Final = ChatOptions(raw=True)
_MOST_TOKENS: Final = 64  # a model that has written no text by then writes none


@dataclass(frozen=True, kw_only=True)
class FirstText:
    """n_prompt: tokens of the whole prompt; n_cached: those that the KV cache held, a BOS token at most."""

    seconds: float
    n_prompt: int
    n_cached: int
    is_raw: bool

    @property
    def fault(self) -> str | None:
        """Why this is no measurement, or None."""
        return f"{self.n_cached} tokens of the prompt were in the KV cache" if self.n_cached > 1 else None


def first_text(process: BenchProcess) -> FirstText | None:
    """Ask a question in a new chat; None when no text came. A model without a chat template continues the question."""
    try:
        return _asked(process, ChatOptions())
    except TemplateError:
        return _asked(process, _RAW)


def _asked(process: BenchProcess, options: ChatOptions) -> FirstText | None:
    n_prompt, n_cached = 0, -1
    params = SamplingParams(temperature=0, seed=0, max_tokens=_MOST_TOKENS)
    started = time.perf_counter()
    events = process.chat([Message(role="user", content=_QUESTION)], params, options)
    for event in events:
        if isinstance(event, Progress) and event.stage == "prefill":
            n_prompt, n_cached = event.total, event.done if n_cached < 0 else n_cached
        elif isinstance(event, (TextDelta, ReasoningDelta)) and event.text:
            seconds = time.perf_counter() - started
            events.close()  # type: ignore[attr-defined]  # a generator: the answer is not waited for
            return FirstText(seconds=seconds, n_prompt=n_prompt, n_cached=n_cached, is_raw=options.raw)
    return None


def forget(process: BenchProcess) -> None:
    """Put other text into the KV cache, so that the next answer finds nothing of its prompt there."""
    for _ in process.chat([Message(role="user", content=_OTHER)], SamplingParams(temperature=0, max_tokens=1), _RAW):
        pass
