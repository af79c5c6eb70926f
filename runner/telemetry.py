"""One definition of every number that runner shows: TTFT, prefill and decode tokens/s, acceptance.

Durations are seconds, rates tokens per second. Clock readings are passed in, so everything here is
a pure function of values; the readings of devices are machine.py's.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Timings:
    """What one request took so far.

    prompt_tokens counts the whole prompt, cached_tokens the part of it found in the KV cache.
    written_tokens: those of completion_tokens that were written for the model, such as the end of a thought.
    ttft_s: from the request to the first token. prefill_s: computing the uncached prompt, up to the first token.
    decode_s: from the first token to the last (t_last - t_first). total_s: from the request to now.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    written_tokens: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    ttft_s: float | None = None
    prefill_s: float = 0.0
    decode_s: float = 0.0
    total_s: float = 0.0

    @property
    def prefill_tok_s(self) -> float | None:
        """Uncached prompt tokens over prefill_s. None before the first token: how many were read is not known."""
        computed = self.prompt_tokens - self.cached_tokens
        is_read = self.ttft_s is not None
        return computed / self.prefill_s if is_read and self.prefill_s > 0 and computed > 0 else None

    @property
    def decode_tok_s(self) -> float | None:
        """(n - 1) / (t_last - t_first), of n that the model decoded: the first one belongs to the prefill."""
        return self.timed_tokens / self.decode_s if self.decode_s > 0 else None

    @property
    def timed_tokens(self) -> int:
        """How many decode_s is of."""
        return max(0, self.completion_tokens - self.written_tokens - 1)

    @property
    def acceptance_rate(self) -> float | None:
        return self.n_accepted / self.n_drafted if self.n_drafted else None

    @property
    def context_tokens(self) -> int:
        """Tokens of context in use after this request."""
        return self.prompt_tokens + self.completion_tokens


class Stages:
    """What the time of a load went into: seconds by the name of a stage, in order."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._name = ""
        self._began = 0.0

    def begin(self, name: str, now: float) -> None:
        """The stage before ends where this one begins. A stage that is begun again goes on."""
        self._end(now)
        self._name, self._began = name, now

    def end(self, now: float) -> dict[str, float]:
        """All stages, the last one ended."""
        self._end(now)
        self._name = ""
        return dict(self._seconds)

    def _end(self, now: float) -> None:
        if self._name:
            self._seconds[self._name] = self._seconds.get(self._name, 0.0) + now - self._began


class Stopwatch:
    """Builds Timings from clock readings (seconds of one monotonic clock) as a request runs."""

    def __init__(self, now: float, prompt_tokens: int) -> None:
        self._requested = now
        self._prompt_tokens = prompt_tokens
        self._cached = 0
        self._completion = 0
        self._written = 0
        self._drafted = 0
        self._accepted = 0
        self._first: float | None = None
        self._last = now

    def prefill(self, cached: int) -> None:
        self._cached = cached

    def token(self, now: float, n_drafted: int = 0, n_accepted: int = 0) -> None:
        if self._first is None:
            self._first = now
        self._last = now
        self._completion += 1
        self.drafted(n_drafted, n_accepted)

    def drafted(self, n_drafted: int, n_accepted: int) -> None:
        """What was drafted in a step whose token is none of the completion's: the one that ends it."""
        self._drafted += n_drafted
        self._accepted += n_accepted

    def written(self) -> None:
        """A token of the completion that was not sampled: the end that was written for a thought."""
        self._completion += 1
        self._written += 1

    def timings(self, now: float) -> Timings:
        first = self._first
        return Timings(
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached,
            completion_tokens=self._completion,
            written_tokens=self._written,
            n_drafted=self._drafted,
            n_accepted=self._accepted,
            ttft_s=None if first is None else first - self._requested,
            prefill_s=(now if first is None else first) - self._requested,
            decode_s=0.0 if first is None else self._last - first,
            total_s=now - self._requested,
        )
