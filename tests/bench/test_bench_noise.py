"""The intervals of ratios: they hold the truth as often as they say, also when processes differ."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.bench.noise import Ratio, Samples, ratio_of


def samples(*values: float, segments: tuple[int, ...] | None = None) -> Samples:
    return Samples(values=values, segments=segments or (len(values),))


def test_an_interval_is_welchs_where_one_process_gave_the_samples() -> None:
    fast, slow = (110.0, 112.0, 108.0, 111.0, 109.0), (100.0, 102.0, 98.0, 101.0, 99.0)
    ratio = ratio_of(samples(*fast), samples(*slow))
    errors = [np.log(values).var(ddof=1) / 5 for values in (fast, slow)]
    freedom = sum(errors) ** 2 / sum(error**2 / 4 for error in errors)
    assert 7 <= freedom < 8  # of which the table of Student's t has 2.3646
    half = 2.3646 * math.sqrt(sum(errors))
    assert ratio.value == pytest.approx(1.1)
    assert ratio.low == pytest.approx(1.1 * math.exp(-half), rel=1e-4)
    assert ratio.high == pytest.approx(1.1 * math.exp(half), rel=1e-4)
    assert ratio.is_beyond_noise


def test_the_same_samples_are_within_noise() -> None:
    values = samples(100.0, 102.0, 98.0)
    ratio = ratio_of(values, values)
    assert ratio.value == 1
    assert not ratio.is_beyond_noise


def test_one_sample_tells_nothing_of_noise() -> None:
    ratio = ratio_of(samples(200.0), samples(100.0, 101.0))
    assert (ratio.value, ratio.low, ratio.high) == (pytest.approx(200 / 100.5), None, None)
    assert not ratio.is_beyond_noise


def test_samples_that_do_not_vary_differ_by_what_they_differ() -> None:
    ratio = ratio_of(samples(2.0, 2.0), samples(1.0, 1.0))
    assert (ratio.low, ratio.high) == (2.0, 2.0)


def test_processes_that_disagree_widen_the_interval() -> None:
    """Two processes at 100 and two at 110, each without noise of its own: a change of 2 % is none."""
    before = samples(100.0, 100.1, 100.2, 110.0, 110.1, segments=(3, 2))
    after = samples(102.0, 102.1, 102.2, 112.0, 112.1, segments=(3, 2))
    together = ratio_of(after, before)
    assert not together.is_beyond_noise
    assert together.low is not None
    assert together.low < 0.9
    in_one = ratio_of(
        samples(102.0, 102.1, 102.2, 102.3, segments=(4,)), samples(100.0, 100.1, 100.2, 100.3, segments=(4,))
    )
    assert in_one.is_beyond_noise


def test_few_degrees_of_freedom_have_their_own_quantiles() -> None:
    two = ratio_of(samples(math.e, math.exp(3)), samples(1.0, 1.0))  # logarithms 1 and 3: all variance is of one side
    assert two.high is not None
    assert math.log(two.high / two.value) == pytest.approx(
        12.7062, rel=1e-5
    )  # of one degree; the error of the mean is 1
    four = ratio_of(samples(math.e, math.exp(3)), samples(math.e, math.exp(3)))
    assert four.high is not None
    assert math.log(four.high) == pytest.approx(4.30265 * math.sqrt(2), rel=1e-5)


def test_processes_count_by_their_samples() -> None:
    """Logarithms 0 and 0.4 of two processes, whose variance is 0.08; means with weights 3/4 and 1/4 have 5/8 of it."""
    one = samples(1.0, 1.0, 1.0, math.exp(0.4), segments=(3, 0, 1))
    ratio = ratio_of(one, one)
    assert ratio.high is not None
    assert math.log(ratio.high) == pytest.approx(4.30265 * math.sqrt(2 * 0.08 * 5 / 8), rel=1e-5)


def test_where_processes_agree_better_than_their_samples_the_samples_count() -> None:
    before, after = (100.0, 120.0, 100.0, 120.0), (105.0, 126.0, 105.0, 126.0)
    apart, together = (ratio_of(*(samples(*one, segments=of) for one in (after, before))) for of in ((2, 2), (4,)))
    assert apart == together
    assert not apart.is_beyond_noise


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.2), (0.8, 1.0)])
def test_an_interval_that_ends_at_no_difference_is_within_noise(low: float, high: float) -> None:
    assert not Ratio(value=(low + high) / 2, low=low, high=high).is_beyond_noise


@pytest.mark.parametrize("between", [0.0, 0.02, 0.08])
@pytest.mark.parametrize("segments", [(3, 2), (2, 1), (5,)])
def test_intervals_hold_the_truth_as_often_as_they_say(between: float, segments: tuple[int, ...]) -> None:
    if len(segments) == 1 and between:
        segments = (2, 2, 1)  # one process cannot know how much processes differ
    chance = random.Random(20_260_131)
    n_held = 0
    for _ in range(1000):
        sides = []
        for true in (100.0, 130.0):
            values: list[float] = []
            for size in segments:
                process = chance.gauss(0, between)
                values += [true * math.exp(process + chance.gauss(0, 0.02)) for _ in range(size)]
            sides.append(Samples(values=tuple(values), segments=segments))
        ratio = ratio_of(sides[1], sides[0])
        assert ratio.low is not None
        assert ratio.high is not None
        n_held += ratio.low <= 1.3 <= ratio.high
    assert 0.93 <= n_held / 1000 <= 0.995


positive = st.floats(0.001, 1e6)
many = st.lists(positive, min_size=2, max_size=8).map(tuple)


@given(many, many)
def test_to_turn_the_runs_around_turns_the_ratio_around(a: tuple[float, ...], b: tuple[float, ...]) -> None:
    one, other = ratio_of(samples(*a), samples(*b)), ratio_of(samples(*b), samples(*a))
    assert one.value * other.value == pytest.approx(1)
    assert one.low is not None
    assert one.high is not None
    assert other.high is not None
    assert one.low <= one.value <= one.high
    assert one.low * other.high == pytest.approx(1)
    assert one.is_beyond_noise == other.is_beyond_noise


@given(many, many, st.floats(0.01, 100))
def test_units_do_not_matter(a: tuple[float, ...], b: tuple[float, ...], unit: float) -> None:
    here = ratio_of(samples(*a), samples(*b))
    there = ratio_of(samples(*(unit * value for value in a)), samples(*(unit * value for value in b)))
    assert there.value == pytest.approx(here.value)
    assert there.low == pytest.approx(here.low, rel=1e-4)
