"""Times answers on a loaded model, without speculation and with it, in turn: A B B A over two prompts.

Each answer begins with an empty KV cache, and with a drafter that has not seen it: a text that is written a second time
would be guessed from the first. It runs in the process that holds the model and knows nothing of repetitions or
statistics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from runner.backends.base import Backend
from runner.bench.genre_texts import genre_prompts, md5_of, prompt_ids
from runner.bench.measure import written
from runner.bench.record import Genre
from runner.bench.request import GENRES
from runner.bench.speculated import together
from runner.bench.tasks import GenreSample, GenreTask, Written
from runner.config import SamplingParams
from runner.drafting import Drafting
from runner.speculative.record import SpeculationRecord
from runner.speculative.speculator import Speculator
from runner.telemetry import Timings
from runner.types import CancelToken

_SEED: Final = 7  # of the first prompt; the others follow
_Answer = tuple[Timings, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One prompt, answered both ways. record: what speculation did."""

    plain: _Answer
    speculative: _Answer
    record: SpeculationRecord


class PairMeter:
    """Answers prompts both ways. stop_ids: end an answer; the model's own when None. clock: seconds."""

    def __init__(
        self,
        backend: Backend,
        drafting: Drafting,
        stop_ids: frozenset[int] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._backend = backend
        self._drafting = drafting
        self._stop_ids = backend.tokenizer.stop_ids if stop_ids is None else stop_ids
        self._clock = clock

    def pair(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        n_tokens: int,
        cancel: CancelToken,
        *,
        is_plain_first: bool = True,
    ) -> Pair:
        """Up to `n_tokens` after the first, or to a stop id. Raises RunnerError when cancelled."""
        plain = self._answer(prompt, params, n_tokens, cancel, None) if is_plain_first else None
        speculator = self._fresh_speculator(prompt, cancel)
        speculative = self._answer(prompt, params, n_tokens, cancel, speculator)
        record = speculator.record
        plain = plain or self._answer(prompt, params, n_tokens, cancel, None)
        return Pair(plain=plain, speculative=speculative, record=record)

    def _fresh_speculator(self, prompt: Sequence[int], cancel: CancelToken) -> Speculator:
        speculator = self._drafting.speculator
        assert speculator is not None, "nothing drafts"
        if speculator.drafter.is_quoting:
            speculator.drafter.close()  # which leaves it as it was made; what the controller learnt stays
            self._backend.forget_texts()
        self._drafting.begin(cancel, prompt)
        return speculator

    def _answer(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        n_tokens: int,
        cancel: CancelToken,
        speculator: Speculator | None,
    ) -> _Answer:
        self._backend.keep(0)
        return written(
            self._backend,
            prompt,
            params,
            n_tokens + 1,
            cancel,
            speculator=speculator,
            stop_ids=self._stop_ids,
            clock=self._clock,
        )


class GenreMeter:
    """Measures one model with what drafts for it, on the prompts of genres."""

    def __init__(self, backend: Backend, drafting: Drafting) -> None:
        self._backend = backend
        self._meter = PairMeter(backend, drafting)
        self._prompts: dict[Genre, list[tuple[int, ...]]] = {}
        texts = [prompt.ask for genre in GENRES for prompt in genre_prompts(genre)]
        self._md5 = md5_of([backend.tokenizer.encode(text, parse_special=False) for text in texts])

    def measure(self, task: GenreTask, cancel: CancelToken) -> GenreSample:
        """Do it once. Raises ContextOverflow, RunnerError when cancelled, and what the backend raises."""
        pairs = self.pairs(task, cancel)
        return GenreSample(
            plain=all_written([pair.plain for pair in pairs]),
            speculative=all_written([pair.speculative for pair in pairs]),
            record=together([pair.record for pair in pairs]),
            prompts_md5=self._md5,
        )

    def pairs(self, task: GenreTask, cancel: CancelToken) -> list[Pair]:
        """The answers of a task, prompt by prompt. Raises as `measure`."""
        prompts = self._prompts_of(task.genre)[: None if task.number else 1]
        return [
            self._meter.pair(
                prompt,
                SamplingParams(temperature=task.temperature, seed=_SEED + index),
                task.n_tokens,
                cancel,
                is_plain_first=(index + task.number) % 2 == 0,
            )
            for index, prompt in enumerate(prompts)
        ]

    def _prompts_of(self, genre: Genre) -> list[tuple[int, ...]]:
        if genre not in self._prompts:
            info, tokenizer = self._backend.info, self._backend.tokenizer
            self._prompts[genre] = [prompt_ids(prompt, info, tokenizer) for prompt in genre_prompts(genre)]
        return self._prompts[genre]


def all_written(answers: Sequence[_Answer]) -> Written:
    """Several answers as one: the first token of each is not timed."""
    return Written(
        ids=tuple(ids for _, ids in answers),
        n_tokens=sum(timings.completion_tokens - 1 for timings, _ in answers),
        seconds=sum(timings.decode_s for timings, _ in answers),
    )
