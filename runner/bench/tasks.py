"""What a bench asks of the process that holds a model, and what that answers: values that cross the pipe.

It knows neither side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from runner.bench.record import Bandwidth
from runner.types import MemoryUse

__all__ = ["Bandwidth", "Sample", "SelfCheck", "Task", "Vitals"]


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
