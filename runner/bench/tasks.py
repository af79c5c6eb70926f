"""What a bench asks of the process that holds a model, and what that answers: values that cross the pipe.

It knows neither side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from runner.bench.record import Bandwidth, Genre
from runner.speculative.record import SpeculationRecord
from runner.types import BackendName, MemoryUse

__all__ = ["Bandwidth", "Chosen", "GenreSample", "GenreTask", "Sample", "SelfCheck", "Task", "Vitals", "Written"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """One thing to be timed, once.

    prefill: `n_tokens` that the KV cache lacks, after `depth` that it holds; prompts of different `number` have nothing
    in common. decode: `n_tokens` steps after a prompt of `depth` tokens that is the same each time.
    """

    kind: Literal["prefill", "decode"]
    n_tokens: int
    depth: int
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A Task done. n_tokens: how many were computed in those seconds; n_prompt: tokens of the whole prompt.

    token_ids: what the model wrote. prompts_md5: of the text's ids.
    """

    seconds: float
    n_tokens: int
    n_prompt: int
    token_ids: tuple[int, ...]
    prompts_md5: str


@dataclass(frozen=True, kw_only=True)
class GenreTask:
    """Write on every prompt of a genre twice, plain and with speculation: one after the other, the two in turn first.

    n_tokens: of each answer at most. number: which time it is; 0 warms up, with the first prompt alone.
    """

    genre: Genre
    n_tokens: int
    temperature: float
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class Written:
    """Answers to prompts: the ids of each, n_tokens of which were decoded in those seconds (the first is prefill's)."""

    ids: tuple[tuple[int, ...], ...]
    n_tokens: int
    seconds: float

    @property
    def tok_s(self) -> float:
        return self.n_tokens / self.seconds


@dataclass(frozen=True, kw_only=True)
class GenreSample:
    """A GenreTask done. record: what speculation did. prompts_md5: of the ids of the prompts of all genres."""

    plain: Written
    speculative: Written
    record: SpeculationRecord
    prompts_md5: str


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The backend that chats use for a model."""

    backend: BackendName


@dataclass(frozen=True, kw_only=True)
class SelfCheck:
    """Whether the model computes what it should.

    perplexity: of a short English text, None when logits are not numbers. n_ids: tokens that it wrote greedily;
    n_agreeing: those of them that are also the likeliest where the same text is scored all at once.
    """

    perplexity: float | None
    n_scored: int
    n_ids: int
    n_agreeing: int


@dataclass(frozen=True, kw_only=True)
class Vitals:
    """What the process holds now. peak_bytes: the most main memory that it ever held, None where nobody says."""

    memory: MemoryUse
    peak_bytes: int | None
