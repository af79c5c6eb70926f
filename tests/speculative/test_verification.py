"""The two exact ways to verify a draft: what they emit is distributed as the target, which a chi-square test sees.

A toy vocabulary, short texts, thousands of seeds: the texts are counted and compared with their exact probabilities.
Broken verification is played too, so that the test is known to see it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import product

import numpy as np
import pytest
from speculation_acceptance import accepted_by_match, accepted_by_rejection, pair, shared_noise
from test_rounds import Scripted

from runner.config import SamplingParams
from runner.sampling import distribution, sample
from runner.speculative import rounds
from runner.speculative.control import EagerController
from runner.speculative.rejection import dense, drafted, optimum, verified
from runner.speculative.rounds import decode
from runner.speculative.speculator import Speculator
from runner.speculative.verify import Verdict, accepted, choices_of

V, LENGTH, SEEDS = 4, 3, 2000
PROMPT = [1]
SETTINGS = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0}

Text = tuple[int, ...]


@cache
def logits_after(history: Text, who: str) -> np.ndarray:
    random = np.random.default_rng([*history[-2:], len(who)])
    return random.normal(0, 1, V).astype(np.float32)


@cache
def probabilities_after(history: Text, who: str) -> np.ndarray:
    ids, p = distribution(logits_after(history, who), SamplingParams(**SETTINGS, seed=0), list(history))
    return dense(ids, p, V)


def expected() -> dict[Text, float]:
    """The probability of each text of the target after the prompt."""
    found = {}
    for text in product(range(V), repeat=LENGTH):
        found[text] = math.prod(
            float(probabilities_after((*PROMPT, *text[:i]), "target")[token]) for i, token in enumerate(text)
        )
    return found


def chi_square_is_plausible(texts: Iterable[Text]) -> bool:
    """Whether such texts come up by chance, but for one time in ten thousand."""
    counts = Counter(texts)
    n = sum(counts.values())
    cells = expected()
    # Cells that expect fewer than five are joined, as the test's approximation asks.
    rare = [text for text, p in cells.items() if p * n < 5]
    pairs = [(counts[text], p * n) for text, p in cells.items() if text not in rare]
    if rare:
        pairs.append((sum(counts[text] for text in rare), sum(cells[text] for text in rare) * n))
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in pairs)
    df = len(pairs) - 1
    assert df > 20
    # Wilson and Hilferty's quantile of chi-square, at z = 3.719.
    return statistic < df * (1 - 2 / (9 * df) + 3.719 * math.sqrt(2 / (9 * df))) ** 3


# --- sample-and-match ------------------------------------------------------------------------------------------------


class Toy:
    """A target of the toy model."""

    n_ctx, vocab_size = len(PROMPT) + LENGTH, V

    def choices(self, draft: Sequence[int], params: SamplingParams, history: Sequence[int]) -> Iterator[int]:
        rows = [logits_after((*history, *draft[:i]), "target") for i in range(len(draft) + 1)]
        return choices_of(rows, draft, params, history)

    def keep(self, length: int) -> None:
        pass


class NotTheLast:
    """Forbids the token before, and the last of the vocabulary."""

    def allowed(self, history: Sequence[int]) -> np.ndarray:
        mask = np.ones(V, np.bool_)
        mask[[history[-1], V - 1]] = False
        return mask


@pytest.mark.parametrize("constraint", [None, NotTheLast()], ids=["free", "constrained"])
def test_the_choices_of_a_draft_are_those_of_plain_sampling(constraint: NotTheLast | None) -> None:
    for seed in range(40):
        params = SamplingParams(**SETTINGS, seed=seed)
        text = list(PROMPT)
        while len(text) < 6:
            allowed = None if constraint is None else constraint.allowed(text)
            text.append(sample(logits_after(tuple(text), "target"), params, text, len(text), allowed))
        draft = text[1:5]
        rows = [logits_after((*PROMPT, *draft[:i]), "target") for i in range(5)]
        assert list(choices_of(rows, draft, params, PROMPT, constraint)) == text[1:]


Guess = Callable[[Sequence[int], int], list[int]]


def another_model(history: Sequence[int], seed: int) -> list[int]:
    """Samples of another model with the target's noise: mostly, but not always, what the target says."""
    written = list(history)
    for _ in range(LENGTH):
        params = SamplingParams(**SETTINGS, seed=seed)
        written.append(sample(logits_after(tuple(written), "drafter"), params, written, len(written)))
    return written[len(history) :]


GUESSES: dict[str, Guess] = {
    "a constant": lambda _history, _seed: [2, 2, 2],
    "its favourite": lambda history, _seed: [int(logits_after(tuple(history), "target").argmax())],
    "another model": another_model,
    "own noise": lambda history, seed: another_model(history, seed + 10**6),
}


def matched(guess: Guess, n_seeds: int = SEEDS) -> Iterator[Text]:
    for seed in range(n_seeds):
        params = SamplingParams(**SETTINGS, seed=seed)
        speculator = Speculator(
            Scripted(lambda history, seed=seed: guess(history, seed)), 4, control=EagerController(4)
        )
        yield tuple(token for token, _, _ in decode(Toy(), params, list(PROMPT), speculator))


@pytest.mark.parametrize("name", GUESSES)
def test_sample_and_match_is_distributed_as_the_target(name: str) -> None:
    assert chi_square_is_plausible(matched(GUESSES[name]))


def test_sample_and_match_that_takes_drafts_too_easily_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def credulous(draft: Sequence[int], choices: Iterable[int]) -> Verdict:
        """Takes a first token that is off by one."""
        verdict = accepted(draft, choices)
        if draft and verdict.n_accepted == 0 and abs(verdict.tokens[0] - draft[0]) == 1:
            return Verdict((draft[0],), 0)
        return verdict

    monkeypatch.setattr(rounds, "accepted", credulous)
    assert not chi_square_is_plausible(matched(GUESSES["own noise"]))


# --- rejection sampling ----------------------------------------------------------------------------------------------

Verify = Callable[[Sequence[int], Sequence[np.ndarray], Sequence[np.ndarray], int, int], Verdict]


def rejected(verify: Verify, n_seeds: int = SEEDS, k: int = 2) -> Iterator[Text]:
    for seed in range(n_seeds):
        text = list(PROMPT)
        while len(text) < len(PROMPT) + LENGTH:
            draft: list[int] = []
            q = []
            for _ in range(k):
                q.append(probabilities_after((*text, *draft), "drafter"))
                draft.append(drafted(q[-1], seed, len(text) + len(draft)))
            p = [probabilities_after((*text, *draft[:i]), "target") for i in range(k + 1)]
            text.extend(verify(draft, p, q, seed, len(text)).tokens)
        yield tuple(text[len(PROMPT) :][:LENGTH])


@pytest.mark.parametrize("k", [1, 2, 3])
def test_rejection_sampling_is_distributed_as_the_target(k: int) -> None:
    assert chi_square_is_plausible(rejected(verified, k=k))


def without_residual(draft, p, q, seed, position) -> Verdict:
    """Replaces what is rejected by a sample of p instead of max(p - q, 0)."""
    verdict = verified(draft, p, q, seed, position)
    if verdict.n_accepted == len(draft):
        return verdict
    i = verdict.n_accepted
    return Verdict((*verdict.tokens[:-1], drafted(p[i], seed + 10**6, position + i)), i)


def always(draft, p, q, seed, position) -> Verdict:
    """Accepts whatever the drafter says."""
    return verified(draft, [*q, p[-1]], q, seed, position)


@pytest.mark.parametrize("broken", [without_residual, always])
def test_broken_rejection_sampling_is_seen(broken: Verify) -> None:
    assert not chi_square_is_plausible(rejected(broken))


def test_a_rejection_sampled_text_can_be_repeated() -> None:
    assert list(rejected(verified, 50)) == list(rejected(verified, 50))


def test_a_token_that_the_target_never_says_is_rejected_and_one_of_equal_models_never() -> None:
    p, q = np.array([0.5, 0.5, 0, 0]), np.array([0, 0, 0.5, 0.5])
    for seed in range(200):
        assert verified([2], [p, p], [q], seed, 5).n_accepted == 0
        assert verified([0], [p, p], [p], seed, 5).n_accepted == 1


# --- how much is accepted --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spread", "shift"), [(1.0, 0.5), (3.0, 1.0), (3.0, 2.0)])
def test_acceptance_is_what_theory_says(spread: float, shift: float) -> None:
    """Rejection reaches the optimum; shared noise comes near it, and never below (1 - TV) / (1 + TV)."""
    n = 1500
    p, q = pair(spread, shift, 60, 3)
    best, shared = optimum(p, q), shared_noise(p, q)
    error = 3.5 * math.sqrt(0.25 / n)
    assert abs(accepted_by_rejection(p, q, n) - best) < error
    assert abs(accepted_by_match(p, q, n, is_shared=True) - shared) < error
    assert best >= shared >= best / (2 - best) - 1e-12
    assert accepted_by_match(p, q, n, is_shared=False) < shared
