"""Confidence intervals over windows."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from runner.evaluation.intervals import MIN_WINDOWS, _estimate, mean_estimate, quantile_estimate, student_quantile


@pytest.mark.parametrize(
    ("freedom", "tabled"), [(3, 3.18245), (4, 2.77645), (9, 2.26216), (29, 2.04523), (1000, 1.96234)]
)
def test_student_quantiles_are_those_of_tables(freedom: int, tabled: float) -> None:
    assert student_quantile(freedom) == pytest.approx(tabled, rel=2e-3)


def test_the_interval_of_a_mean_is_as_wide_as_theory_says() -> None:
    values = np.random.default_rng(0).normal(3, 1, (400, 5))
    found = mean_estimate(values)
    assert found.value == pytest.approx(values.mean())
    assert found.low is not None
    assert found.high is not None
    expected = 2 * 1.966 * values.mean(axis=1).std(ddof=1) / math.sqrt(400)
    assert found.high - found.low == pytest.approx(expected, rel=0.06)


def test_tokens_of_one_window_count_as_one_observation_when_they_agree() -> None:
    by_window = np.random.default_rng(1).normal(0, 1, (40, 1))
    alone, repeated = mean_estimate(by_window), mean_estimate(np.repeat(by_window, 100, axis=1))
    assert repeated.low == pytest.approx(alone.low)
    assert repeated.high == pytest.approx(alone.high)
    alone, repeated = (quantile_estimate(np.repeat(by_window, n, axis=1), 0.8) for n in (1, 100))
    assert (repeated.low, repeated.high) == (alone.low, alone.high)


def test_percentiles_are_expanded_for_few_windows() -> None:
    found = _estimate(0.5, np.linspace(0, 1, 2001).tolist(), 10)
    tail = NormalDist().cdf(-2.26216 * math.sqrt(10 / 9))
    assert found.low == pytest.approx(tail, rel=1e-2)
    assert found.high == pytest.approx(1 - tail, rel=1e-4)


def test_intervals_of_a_mean_hold_the_truth_about_95_times_in_100(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.evaluation.intervals.N_RESAMPLES", 300)
    random = np.random.default_rng(2)
    hits = 0
    for _ in range(300):
        found = mean_estimate(random.normal(0, 1, (10, 1)))
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0 <= found.high
    assert 0.89 <= hits / 300 <= 0.99


def test_a_quantile_is_numpys_and_its_interval_holds_that_of_the_population() -> None:
    values = np.random.default_rng(3).exponential(1, (200, 50))
    found = quantile_estimate(values, 0.99)
    assert found.value == np.quantile(values, 0.99)
    assert found.low is not None
    assert found.high is not None
    assert found.low < -math.log(0.01) < found.high
    assert found.high - found.low < 0.6


def test_the_same_values_have_the_same_interval_and_too_few_windows_have_none() -> None:
    values = np.random.default_rng(4).normal(0, 1, (MIN_WINDOWS, 20))
    assert mean_estimate(values) == mean_estimate(values.copy())
    assert mean_estimate(values).low is not None
    assert quantile_estimate(values, 0.5).low is not None
    for estimate in (mean_estimate(values[1:]), quantile_estimate(values[1:], 0.5)):
        assert (estimate.low, estimate.high) == (None, None)
    assert mean_estimate(values[:1]).value == values[0].mean()


def test_an_interval_goes_through_an_increasing_function() -> None:
    logs = np.random.default_rng(5).normal(2, 1, (30, 4))
    plain, through = mean_estimate(logs), mean_estimate(logs).through(math.exp)
    assert plain.low is not None
    assert (through.value, through.low) == (math.exp(plain.value), math.exp(plain.low))
