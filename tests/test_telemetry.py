"""One definition of every number: rates and times from clock readings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.telemetry import Stages, Stopwatch, Timings


def test_a_request_is_timed_by_its_first_and_last_token() -> None:
    watch = Stopwatch(100.0, prompt_tokens=50)
    watch.prefill(cached=10)
    for at in (102.0, 102.5, 103.0, 104.0):
        watch.token(at)
    timings = watch.timings(110.0)
    assert timings.ttft_s == timings.prefill_s == 2.0
    assert timings.decode_s == 2.0
    assert timings.total_s == 10.0
    assert timings.prefill_tok_s == 20.0  # the 40 tokens that were not cached, in 2 s
    assert timings.decode_tok_s == 1.5  # the first token belongs to the prefill
    assert timings.context_tokens == 54


def test_tokens_that_were_written_for_the_model_take_room_and_are_no_part_of_its_speed() -> None:
    watch = Stopwatch(0.0, prompt_tokens=10)
    watch.token(1.0)
    for _ in range(7):
        watch.written()
    watch.token(2.0)
    watch.token(3.0)
    timings = watch.timings(3.0)
    assert (timings.completion_tokens, timings.written_tokens, timings.context_tokens) == (10, 7, 20)
    assert timings.decode_tok_s == 1.0


def test_before_the_first_token_there_is_no_ttft_and_the_prefill_goes_on() -> None:
    watch = Stopwatch(5.0, prompt_tokens=8)
    timings = watch.timings(5.5)
    assert timings.ttft_s is None
    assert timings.prefill_s == 0.5
    assert timings.decode_s == 0.0
    assert timings.prefill_tok_s is None  # a cancelled prompt was read in part: it would be too fast
    assert timings.decode_tok_s is None
    assert timings.completion_tokens == 0


def test_one_token_has_no_decode_rate() -> None:
    watch = Stopwatch(0.0, prompt_tokens=1)
    watch.token(1.0)
    assert watch.timings(1.0).decode_tok_s is None


def test_a_wholly_cached_prompt_has_no_prefill_rate() -> None:
    watch = Stopwatch(0.0, prompt_tokens=20)
    watch.prefill(cached=20)
    watch.token(0.1)
    assert watch.timings(0.1).prefill_tok_s is None


def test_acceptance_counts_drafted_and_accepted_tokens() -> None:
    watch = Stopwatch(0.0, prompt_tokens=1)
    assert watch.timings(0.0).acceptance_rate is None
    watch.token(1.0, n_drafted=4, n_accepted=3)
    watch.token(2.0, n_drafted=4, n_accepted=1)
    watch.token(3.0)
    watch.drafted(2, 1)  # the step that ended the answer
    timings = watch.timings(3.0)
    assert (timings.n_drafted, timings.n_accepted, timings.acceptance_rate) == (10, 5, 0.5)
    assert timings.completion_tokens == 3


@given(
    st.floats(0, 1e6),
    st.lists(st.floats(0.001, 10), min_size=2, max_size=30),
    st.integers(1, 1000),
)
def test_the_parts_never_exceed_the_whole(start: float, gaps: list[float], prompt: int) -> None:
    watch, now = Stopwatch(start, prompt), start
    for gap in gaps:
        now += gap
        watch.token(now)
    timings = watch.timings(now)
    assert timings.ttft_s is not None
    assert timings.ttft_s + timings.decode_s == pytest.approx(timings.total_s)
    assert timings.decode_tok_s == pytest.approx((len(gaps) - 1) / sum(gaps[1:]), rel=1e-3)
    assert timings.completion_tokens == len(gaps)


def test_empty_timings_have_no_rates() -> None:
    empty = Timings()
    assert (empty.prefill_tok_s, empty.decode_tok_s, empty.acceptance_rate, empty.context_tokens) == (None,) * 3 + (0,)


def test_the_time_of_a_load_is_divided_into_its_stages() -> None:
    stages = Stages()
    for name, now in (("files", 10.0), ("weights", 10.5), ("kernels", 12.5), ("weights", 13.0)):
        stages.begin(name, now)
    assert stages.end(13.25) == {"files": 0.5, "weights": 2.25, "kernels": 0.5}
    assert stages.end(20.0) == {"files": 0.5, "weights": 2.25, "kernels": 0.5}
