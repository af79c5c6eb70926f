"""Drafters that know what the target will write and spoil it as a script says, and scripts taken from real texts.

A model with random weights writes noise, which nothing guesses; its steps take their real time all the same. So its
own text, from a plain run before, is drafted as well as a real drafter guessed a real text at the same place. The bad
ones are there to be survived: always wrong, at random, slow, or right until they are trusted. It measures nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runner.backends.base import Tokenizer
from runner.bench.genre_texts import genre_prompts, prompt_ids
from runner.bench.record import Genre
from runner.config import LONGEST_DRAFT, SamplingParams
from runner.speculative.control import Most
from runner.speculative.drafter import Draft, Drafter, DrafterName, Gate
from runner.speculative.history import common_prefix
from runner.speculative.suffix import SuffixDrafter
from runner.types import ModelInfo


@dataclass(frozen=True)
class Guess:
    """What a drafter proposes at one place: the bucket of each token, and how many are right before the first error."""

    buckets: tuple[int, ...]
    n_right: int


Script = Callable[[int], Guess]
"""The guess after so many tokens of the completion."""


class ScriptedDrafter(Drafter):
    """Drafts `tokens`, which the target writes after a prompt of n_prompt ids, as right as the script says.

    token_s: seconds that each drafted token takes, on the device when not 0.
    """

    name: DrafterName = "scripted"
    nbytes = 0

    def __init__(self, script: Script, n_buckets: int, vocab_size: int, token_s: float = 0.0) -> None:
        self.n_buckets = n_buckets
        self.is_host_only = token_s == 0
        self._script = script
        self._vocab_size = vocab_size
        self._token_s = token_s
        self._tokens: Sequence[int] = ()
        self._n_prompt = 0

    def follow(self, tokens: Sequence[int], n_prompt: int) -> None:
        """From now on the target writes these."""
        self._tokens, self._n_prompt = tokens, n_prompt

    def may_guess(self, history: Sequence[int]) -> bool:
        return bool(self._guess(history).buckets)

    def _guess(self, history: Sequence[int]) -> Guess:
        return self._script(max(0, len(history) - self._n_prompt))

    def propose(self, history: Sequence[int], params: SamplingParams, gate: Gate) -> Draft:
        del params
        done = max(0, len(history) - self._n_prompt)
        guess = self._guess(history)
        # Beyond its text it drafts as well, as where it is only timed.
        known = [*self._tokens[done : done + LONGEST_DRAFT], *[0] * LONGEST_DRAFT]
        tokens: list[int] = []
        for offset, (bucket, right) in enumerate(zip(guess.buckets, known, strict=False)):
            if not gate.admits(bucket):
                break
            _busy(self._token_s)
            tokens.append(right if offset < guess.n_right else (right + 1) % self._vocab_size)
        return Draft(tuple(tokens), guess.buckets[: len(tokens)])

    def close(self) -> None:
        """It holds nothing."""


def _busy(seconds: float) -> None:
    """Works rather than sleeps, which takes as long as it is asked to."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


# --- bad ones --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Adversary:
    """A way to be wrong. token_share: what a drafted token takes, in plain steps."""

    name: str
    script: Script
    n_buckets: int = 1
    token_share: float = 0.0


def adversaries() -> tuple[Adversary, ...]:
    full = (0,) * LONGEST_DRAFT

    def erratic(done: int) -> Guess:
        draw = random.Random(done)
        n = draw.randint(1, LONGEST_DRAFT)
        return Guess(tuple(draw.randrange(4) for _ in range(n)), draw.randint(0, n) if draw.random() < 0.2 else 0)

    return (
        Adversary(name="always wrong", script=lambda _: Guess(full, 0)),
        Adversary(name="wrong, lengths and confidence at random", script=erratic, n_buckets=4),
        Adversary(
            name="right for 32 tokens, wrong for 32", script=lambda n: Guess(full, LONGEST_DRAFT * (n // 32 % 2 == 0))
        ),
        Adversary(name="right until the middle, wrong after", script=lambda n: Guess(full, LONGEST_DRAFT * (n < 128))),
        Adversary(name="always wrong, and slow", script=lambda _: Guess(full, 0), token_share=0.3),
        Adversary(name="always right, and as slow as the target", script=lambda _: Guess(full, 15), token_share=1.0),
    )


# --- from real texts -------------------------------------------------------------------------------------------------


def suffix_script(genre: Genre, info: ModelInfo, tokenizer: Tokenizer) -> tuple[Script, int]:
    """How the suffix drafter guesses the answers of a genre, one after the other, and how many tokens they have.

    The answers are what a good model might write, not what any wrote.
    """
    guesses: list[Guess] = []
    for prompt in genre_prompts(genre):
        ids = list(prompt_ids(prompt, info, tokenizer))
        answer = tokenizer.encode(prompt.answer, parse_special=False)
        drafter = SuffixDrafter()
        for done in range(1, len(answer)):
            draft = drafter.propose([*ids, *answer[:done]], SamplingParams(temperature=0), Most(LONGEST_DRAFT))
            n_right = common_prefix(draft.tokens, answer[done:])
            guesses.append(Guess(draft.buckets, n_right))
    return lambda done: guesses[(done - 1) % len(guesses)], len(guesses)
