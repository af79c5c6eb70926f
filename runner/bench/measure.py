"""Times one Task on a loaded model, and checks that the model computes what it should.

It runs in the process that holds the model and speaks to it in token ids, as the engine does. It knows nothing of
repetitions, statistics or other backends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from runner.backends.base import Backend, Prefill
from runner.bench.prompts import Prompts
from runner.bench.prose import PASSAGE
from runner.bench.tasks import Sample, SelfCheck, Task, Vitals
from runner.config import SamplingParams
from runner.errors import RunnerError
from runner.evaluation.divergence import negative_log_likelihood
from runner.machine import peak_bytes
from runner.speculative.speculator import Speculator
from runner.telemetry import Stopwatch, Timings
from runner.types import CancelToken

# A decode test at depth 0 needs some text to go on from.
SHORTEST_PROMPT: Final = 16
_GREEDY: Final = SamplingParams(temperature=0, seed=0)
_N_CHECKED_IDS: Final = 24
_SCORED: Final = 96


class Meter:
    """Measures one model. clock: seconds."""

    def __init__(self, backend: Backend, clock: Callable[[], float] = time.perf_counter) -> None:
        self._backend = backend
        self._clock = clock
        self._prompts = Prompts.of(backend.tokenizer)

    def measure(self, task: Task, cancel: CancelToken) -> Sample:
        """Do it once. Raises RunnerError when cancelled, and what the backend raises."""
        if task.kind == "prefill":
            return self._prefill(task, cancel)
        prompt = self._prompts.prefix(max(task.depth, SHORTEST_PROMPT))
        timings, ids = self._run(prompt, task.n_tokens + 1, cancel)
        return Sample(
            seconds=timings.decode_s,
            n_tokens=timings.completion_tokens - 1,
            n_prompt=len(prompt),
            token_ids=ids,
            prompts_md5=self._prompts.md5,
        )

    def _prefill(self, task: Task, cancel: CancelToken) -> Sample:
        kept = self._prompts.prefix(task.depth)
        if kept:
            self._run(kept, 1, cancel)
        prompt = kept + self._prompts.fresh(task.n_tokens, task.number)
        timings, ids = self._run(prompt, 1, cancel)
        return Sample(
            seconds=timings.prefill_s,
            n_tokens=timings.prompt_tokens - timings.cached_tokens,
            n_prompt=len(prompt),
            token_ids=ids,
            prompts_md5=self._prompts.md5,
        )

    def _run(self, prompt: Sequence[int], n_tokens: int, cancel: CancelToken) -> tuple[Timings, tuple[int, ...]]:
        """Write up to `n_tokens` greedily after `prompt`, stop tokens or not; fewer when the context is full."""
        return written(self._backend, prompt, _GREEDY, n_tokens, cancel, clock=self._clock)

    # --- correctness -------------------------------------------------------------------------------------------------

    def check(self, cancel: CancelToken) -> SelfCheck:
        """Score a passage, and what the model wrote itself. Raises RunnerError when cancelled."""
        room = self._backend.info.n_ctx
        prompt = self._prompts.prefix(min(SHORTEST_PROMPT, room // 2))
        _, ids = self._run(prompt, min(_N_CHECKED_IDS, room - len(prompt)), cancel)
        written = self._logits((*prompt, *ids))[len(prompt) - 1 : -1]
        passage = self._passage(min(_SCORED, room))
        nll = negative_log_likelihood(self._logits(passage)[:-1], np.asarray(passage[1:], np.int64))
        mean = float(np.mean(nll))
        is_numbers = math.isfinite(mean) and bool(np.isfinite(written.max(axis=1)).all())
        return SelfCheck(
            perplexity=math.exp(min(mean, 700.0)) if is_numbers else None,
            n_scored=len(nll),
            n_ids=len(ids),
            n_agreeing=int(np.count_nonzero(written.argmax(axis=1) == np.asarray(ids))),
        )

    def _passage(self, length: int) -> Sequence[int]:
        tokenizer = self._backend.tokenizer
        bos = (tokenizer.bos_id,) if tokenizer.add_bos and tokenizer.bos_id is not None else ()
        return (*bos, *tokenizer.encode(PASSAGE, parse_special=False))[:length]

    def _logits(self, ids: Sequence[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return np.stack([logits.values for logits in self._backend.score(ids)])

    def vitals(self) -> Vitals:
        return Vitals(memory=self._backend.memory(), peak_bytes=peak_bytes())


def written(
    backend: Backend,
    prompt: Sequence[int],
    params: SamplingParams,
    n_tokens: int,
    cancel: CancelToken,
    *,
    speculator: Speculator | None = None,
    stop_ids: frozenset[int] = frozenset(),
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Timings, tuple[int, ...]]:
    """Write up to `n_tokens` after `prompt`, or to a stop id, which is among the ids. Raises RunnerError if cancelled.

    A full context ends it as well. clock: seconds.
    """
    watch = Stopwatch(clock(), len(prompt))
    ids: list[int] = []
    steps = backend.generate(prompt, params, cancel, speculator)
    try:
        for step in steps:
            if isinstance(step, Prefill):
                watch.prefill(step.cached)
                continue
            watch.token(clock(), step.n_drafted, step.n_accepted)
            ids.append(step.token)
            if len(ids) == n_tokens or step.token in stop_ids:
                break
    finally:
        steps.close()
    if cancel.is_cancelled:
        raise RunnerError("The measurement was cancelled.")
    return watch.timings(clock()), tuple(ids)
