"""Likelihoods and divergences against formulas written out, position by position."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from runner.evaluation.divergence import compare, joined, log_softmax, negative_log_likelihood


def written_out(logits: list[float]) -> list[float]:
    """The probabilities, by exact sums."""
    top = max(logits)
    weights = [math.exp(value - top) for value in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def random_logits(seed: int, scale: float = 4.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, scale, (7, 50)).astype(np.float32)


def test_likelihoods_equal_the_formula() -> None:
    logits = random_logits(1)
    tokens = np.arange(7, dtype=np.int64) * 7
    expected = [-math.log(written_out(row.tolist())[token]) for row, token in zip(logits, tokens, strict=True)]
    assert negative_log_likelihood(logits, tokens) == pytest.approx(expected, rel=1e-12)


def test_divergences_equal_the_formula() -> None:
    reference, model = random_logits(1), random_logits(1) + random_logits(2, 0.5)
    tokens = np.arange(7, dtype=np.int64)
    found = compare(reference, model, tokens)
    for row in range(7):
        p, q = written_out(reference[row].tolist()), written_out(model[row].tolist())
        assert found.kld[row] == pytest.approx(
            math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True)), rel=1e-9
        )
        assert found.nll[row] == pytest.approx(-math.log(q[row]), rel=1e-12)
        assert found.reference_nll[row] == pytest.approx(-math.log(p[row]), rel=1e-12)
        assert found.delta_p[row] == pytest.approx(q[row] - p[row], abs=1e-12)
        assert found.same_top[row] == (p.index(max(p)) == q.index(max(q)))


def test_a_model_does_not_diverge_from_itself() -> None:
    logits = random_logits(3)
    found = compare(logits, logits.copy(), np.zeros(7, np.int64))
    assert not found.kld.any()
    assert not found.delta_p.any()
    assert found.same_top.all()


def test_a_divergence_of_a_billionth_is_still_told() -> None:
    # KL of a small change e in one logit is p (1 - p) e^2 / 2: float32 sums would drown it.
    logits = np.zeros((1, 2), np.float32)
    changed = np.array([[1e-4, 0]], np.float32)
    assert compare(logits, changed, np.zeros(1, np.int64)).kld[0] == pytest.approx(0.125e-8, rel=1e-3)


def test_what_the_reference_rules_out_counts_for_nothing() -> None:
    reference = np.array([[0, 0, -np.inf, -2000]], np.float32)
    model = np.array([[0, 0, 0, -np.inf]], np.float32)
    found = compare(reference, model, np.zeros(1, np.int64))
    assert found.kld[0] == pytest.approx(math.log(3 / 2))
    ruled_out = compare(np.zeros((1, 2), np.float32), np.array([[0, -np.inf]], np.float32), np.zeros(1, np.int64))
    assert ruled_out.kld[0] == math.inf


@given(arrays.arrays(np.float32, (2, 3, 9), elements=st.floats(-1000, 1000, width=32)))
def test_divergences_are_never_negative_and_probabilities_sum_to_one(pair: np.ndarray) -> None:
    found = compare(pair[0], pair[1], np.zeros(3, np.int64))
    assert (found.kld >= 0).all()
    assert np.exp(log_softmax(pair[0])).sum(axis=1) == pytest.approx([1, 1, 1])


def test_a_shift_of_all_logits_changes_nothing() -> None:
    logits = random_logits(4)
    tokens = np.zeros(7, np.int64)
    assert negative_log_likelihood(logits + np.float32(64), tokens) == pytest.approx(
        negative_log_likelihood(logits, tokens), abs=1e-4
    )


def test_blocks_joined_equal_the_whole() -> None:
    reference, model, tokens = random_logits(1), random_logits(2), np.arange(7, dtype=np.int64)
    whole = compare(reference, model, tokens)
    parts = joined(compare(reference[s], model[s], tokens[s]) for s in (slice(0, 3), slice(3, 7)))
    assert np.array_equal(parts.kld, whole.kld)
    assert np.array_equal(parts.nll, whole.nll)
