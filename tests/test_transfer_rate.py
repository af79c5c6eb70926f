"""The rate and the time left of a transfer, from readings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.transfer_rate import WINDOW_S, TransferRate


def rate_of(*readings: tuple[float, int]) -> TransferRate:
    rate = TransferRate()
    for now, done in readings:
        rate.add(now, done)
    return rate


def test_what_was_there_at_the_start_does_not_count() -> None:
    rate = rate_of((0.0, 5_000_000), (1.0, 6_000_000))
    assert rate.bytes_s == 1_000_000
    assert rate.left_s(8_000_000) == 2.0


@pytest.mark.parametrize("readings", [[], [(0.0, 7)], [(0.0, 0), (0.2, 10**9)]])
def test_too_little_says_nothing(readings: list[tuple[float, int]]) -> None:
    rate = rate_of(*readings)
    assert rate.bytes_s == 0.0
    assert rate.left_s(10**12) is None


def test_only_the_last_seconds_count() -> None:
    readings = [(float(second), min(second, 100) * 10) for second in range(100 + int(WINDOW_S) + 2)]
    assert rate_of(*readings).bytes_s == 0.0


def test_a_transfer_that_begins_again_is_measured_anew() -> None:
    rate = rate_of((0.0, 0), (1.0, 1000), (2.0, 0), (3.0, 50))
    assert rate.bytes_s == 50.0


def test_what_is_all_there_has_no_time_left() -> None:
    assert rate_of((0.0, 0), (1.0, 10)).left_s(10) == 0.0


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 10**12)), max_size=50))
def test_a_rate_is_never_negative(steps: list[tuple[float, int]]) -> None:
    rate, now = TransferRate(), 0.0
    for step, done in steps:
        now += step
        rate.add(now, done)
        assert rate.bytes_s >= 0.0
