"""Prefill and decoding rates of a loaded backend, and what single steps of runner's own take.

Rates go through Backend.generate, as the engine uses it: sampling, the host's loop and the first token's logits are in
them. Steps go through an Execution. Random ids do, since the weights are random. It knows nothing of files.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import timing

from runner.backends.base import Backend, Prefill
from runner.backends.native.execution import Execution
from runner.backends.native.fused_execution import FusedExecution
from runner.config import SamplingParams
from runner.types import CancelToken

GREEDY = SamplingParams(temperature=0, seed=0)
_QUEUED_STEPS = 20


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """tok_s: of each repetition, (n - 1) / (t_last - t_first) of n tokens. ids: what each of them wrote.

    The run that warms up is in neither: it prefills its whole prompt, while the others find all but its last token in
    the cache and take that in a step, which rounds otherwise.
    """

    tok_s: tuple[float, ...]
    ids: tuple[tuple[int, ...], ...]


def prompt(length: int, vocab_size: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(vocab_size), k=length)


def generated(backend: Backend, ids: Sequence[int], n_tokens: int) -> tuple[list[int], list[float]]:
    """The tokens after `ids`, and when they came, in seconds from the call."""
    tokens: list[int] = []
    times: list[float] = []
    started = time.perf_counter()
    steps = backend.generate(ids, GREEDY, CancelToken())
    for step in steps:
        if isinstance(step, Prefill):
            continue
        times.append(time.perf_counter() - started)
        tokens.append(step.token)
        if len(tokens) == n_tokens:
            break
    steps.close()
    if len(tokens) < n_tokens:
        raise RuntimeError(f"{len(tokens)} of {n_tokens} tokens came: the context is too small")
    return tokens, times


def decode(backend: Backend, depth: int, n_tokens: int, repetitions: int) -> Decoded:
    """Greedy decoding of n_tokens after `depth` tokens of context (at least one); a first run warms up."""
    ids = prompt(max(1, depth), backend.info.vocab_size, seed=1)
    rates, written = [], []
    for _ in range(repetitions + 1):
        tokens, times = generated(backend, ids, n_tokens + 1)
        rates.append(n_tokens / (times[-1] - times[0]))
        written.append(tuple(tokens))
    return Decoded(tok_s=tuple(rates[1:]), ids=tuple(written[1:]))


def prefill(backend: Backend, n_prompt: int, repetitions: int) -> tuple[float, ...]:
    """tokens/s from the call to the first token, of prompts that share no prefix; a first one warms up."""
    rates = []
    for repetition in range(repetitions + 1):
        ids = prompt(n_prompt, backend.info.vocab_size, seed=100 + repetition)
        ids[0] = repetition  # nothing that is cached is a prefix of this
        _, times = generated(backend, ids, 1)
        rates.append(n_prompt / times[0])
    return tuple(rates[1:])


def prefill_after(backend: Backend, depth: int, n_prompt: int, repetitions: int) -> tuple[float, ...]:
    """The same of prompts that go on after a text of `depth` tokens, which the cache holds: messages in a chat."""
    vocab_size = backend.info.vocab_size
    text = prompt(depth, vocab_size, seed=1)
    generated(backend, text, 1)
    rates = []
    for repetition in range(repetitions + 1):
        message = [repetition, *prompt(n_prompt - 1, vocab_size, seed=100 + repetition)]
        _, times = generated(backend, [*text, *message], 1)
        rates.append(n_prompt / times[0])
    return tuple(rates[1:])


# --- steps -----------------------------------------------------------------------------------------------------------


def rows_step(execution: Execution, n_rows: int, rounds: int = 5, queued: int = _QUEUED_STEPS) -> float:
    """Seconds of a step of M rows with all their logits, one of many that the host does not wait for.

    That is the device's time as long as the host is faster. The cache holds some tokens, and the same ones afterwards.
    """
    held = execution.cache.length
    ids = list(range(n_rows))

    def step() -> None:
        execution.extend(ids, "all", _go_on)
        _back_to(execution, held)

    def many() -> None:
        for _ in range(queued):
            step()

    return timing.wall_s(many, rounds) / queued


def _back_to(execution: Execution, length: int) -> None:
    """The cache holds that many tokens again. For a state that is lost another stands in, which takes as long."""
    if execution.cache.states is not None:
        execution.cache.states.hold(length, 1)
    execution.cache.truncate(length)


def fill(execution: Execution, length: int, chunk: int = 512) -> None:
    """Make the cache hold that many tokens."""
    execution.cache.truncate(min(length, execution.cache.length))
    while (missing := length - execution.cache.length) > 0:
        execution.extend([token % 60 for token in range(min(chunk, missing))], "none", _go_on)


def run_passes(execution: FusedExecution, n_rows: int, count: int) -> None:
    """`count` passes of so many tokens, each after what the cache holds, with the logits of the last one."""
    held, ids = execution.cache.length, [row % 60 for row in range(n_rows)]
    for _ in range(count):
        execution.extend(ids, "last", _go_on)
        _back_to(execution, held)
    timing.wait()


def pass_s(execution: FusedExecution, n_rows: int, rounds: int = 6, queued: int = _QUEUED_STEPS) -> float:
    """Seconds of such a pass by its graph, many in a row, which the host does not wait for: the least of some rounds.

    Where there is no graph, or the host launches more slowly than the device computes, it is the host's time.
    """
    run_passes(execution, n_rows, 1)
    execution.after_answer()  # which records a prompt's graph
    run_passes(execution, n_rows, 2)
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        run_passes(execution, n_rows, queued)
        times.append(time.perf_counter() - started)
    return min(times) / queued


def run_ahead(execution: FusedExecution, depth: int, count: int) -> float:
    """Decode `count` tokens greedily after `depth` without reading one, so that the device never waits for the host's
    loop; returns the seconds.

    It is the loop of FusedExecution.decode without its second half, which is why it looks inside. The position lies on
    the device: it is decode that sets it.
    """
    fill(execution, depth)
    tokens = execution.decode(1, GREEDY, CancelToken())
    assert tokens is not None
    next(tokens)
    timing.wait()
    started = time.perf_counter()
    for _ in range(count):
        execution._launch(1, True)
    timing.wait()
    elapsed = time.perf_counter() - started
    execution._mailbox.forget()
    tokens.close()
    execution.cache.truncate(min(depth, execution.cache.length))  # of states the loop keeps none that is so far back
    return elapsed


def device_step_s(execution: FusedExecution, depth: int, rounds: int = 5, queued: int = _QUEUED_STEPS) -> float:
    """Seconds of a decode step on the device after `depth` tokens, the choice of the token included; the median."""
    times = [run_ahead(execution, depth, queued) / queued for _ in range(rounds + 1)]
    return statistics.median(times[1:])


def _go_on() -> None:
    """A checkpoint that lets everything pass."""
