"""The decode loop with speculation: the text is the target's, whatever the drafter does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from runner.config import SamplingParams
from runner.sampling import sample
from runner.speculative.drafter import Draft, Gate
from runner.speculative.rounds import decode
from runner.speculative.speculator import Speculator
from runner.speculative.verify import accepted, choices_of

V = 32
PARAMS = {
    "greedy": SamplingParams(temperature=0, seed=0),
    "sampled": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7),
    "filtered": SamplingParams(temperature=0.7, top_k=10, top_p=0.9, seed=8),
    "penalized": SamplingParams(temperature=0.9, repeat_penalty=1.3, frequency_penalty=0.2, seed=9),
}


def logits_after(history: Sequence[int]) -> np.ndarray:
    """A model of its own: the logits depend on the last three tokens."""
    random = np.random.default_rng([*history[-3:], len(history) % 5])
    return random.normal(0, 2, V).astype(np.float32)


class TableTarget:
    """A target that checks how it is used: the cache must hold what a step goes on from."""

    def __init__(self, n_ctx: int, held: Sequence[int]) -> None:
        self.n_ctx, self.vocab_size = n_ctx, V
        self.held = list(held)
        self.n_steps = 0

    def choices(self, draft: Sequence[int], params: SamplingParams, history: Sequence[int]) -> Iterator[int] | None:
        assert self.held == list(history[:-1])
        rows = []
        for token in (history[-1], *draft):
            self.held.append(token)
            rows.append(logits_after(self.held))
        assert len(self.held) <= self.n_ctx
        self.n_steps += 1
        return choices_of(rows, draft, params, history)

    def keep(self, length: int) -> None:
        del self.held[length:]


class Scripted:
    """Drafts what a function of the history says."""

    name = "scripted"
    n_buckets = 1
    is_host_only = True
    nbytes = 0

    def __init__(self, guess) -> None:
        self._guess = guess

    def propose(self, history: Sequence[int], _params: SamplingParams, gate: Gate) -> Draft:
        tokens: list[int] = []
        for token in self._guess(history):
            if not gate.admits(0):
                break
            tokens.append(token)
        return Draft(tuple(tokens), (0,) * len(tokens))

    def close(self) -> None:
        pass


def plain(prompt: Sequence[int], params: SamplingParams, n: int) -> list[int]:
    history = list(prompt)
    for _ in range(n):
        history.append(sample(logits_after(history), params, history, len(history)))
    return history[len(prompt) :]


def right(params: SamplingParams, n: int):
    return lambda history: plain(history, params, n)


DRAFTERS = {
    "none": lambda _: lambda _: [],
    "always_right": lambda params: right(params, 8),
    "always_wrong": lambda params: lambda history: [(plain(history, params, 1)[0] + 1) % V] * 5,
    "half_right": lambda params: lambda history: [*plain(history, params, 2), 0, 0, 0],
    "too_long": lambda params: right(params, 60),
    "outside_the_vocabulary": lambda _: lambda _: [V, -1, 10**9],
    "of_changing_length": lambda params: lambda history: plain(history, params, len(history) % 7),
}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("sampling", PARAMS)
def test_the_text_does_not_depend_on_the_drafter(sampling: str, drafter: str) -> None:
    params, prompt, n_ctx = PARAMS[sampling], [1, 2, 3], 64
    history = [*prompt, *plain(prompt, params, 1)]
    target = TableTarget(n_ctx, prompt)
    speculator = Speculator(Scripted(DRAFTERS[drafter](params)), 15)
    tokens = [token for token, _, _ in decode(target, params, history, speculator)]
    assert history[3:] == plain(prompt, params, n_ctx - 3)
    assert tokens == history[4:]


def test_right_drafts_save_steps() -> None:
    params, prompt = PARAMS["greedy"], [1, 2, 3]
    target = TableTarget(64, prompt)
    list(decode(target, params, [*prompt, *plain(prompt, params, 1)], Speculator(Scripted(right(params, 7)), 15)))
    assert target.n_steps == 8  # 60 tokens, eight at a time


@pytest.mark.parametrize("n", range(1, 20))
def test_closing_leaves_the_cache_with_all_but_the_last_token(n: int) -> None:
    params, prompt = PARAMS["sampled"], [1, 2, 3]
    history = [*prompt, *plain(prompt, params, 1)]
    target = TableTarget(64, prompt)
    rounds = decode(target, params, history, Speculator(Scripted(right(params, 6)), 15))
    for _ in range(n):
        next(rounds)
    rounds.close()
    assert len(history) == 4 + n
    assert target.held == history[:-1]


def test_only_what_counts_is_sampled() -> None:
    read = []

    def choices() -> Iterator[int]:
        for token in (5, 6, 9, 8):
            read.append(token)
            yield token

    verdict = accepted((5, 6, 7), choices())
    assert verdict.tokens == (5, 6, 9)
    assert verdict.n_accepted == 2
    assert read == [5, 6, 9]
