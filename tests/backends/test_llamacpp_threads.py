from __future__ import annotations

from pathlib import Path

import pytest

from runner.backends import llamacpp
from runner.backends.llamacpp.threads import Threads
from runner.config import LoadOptions
from runner.types import CancelToken
from tests.backends.conformance import N_CTX, take
from tests.backends.test_llamacpp import gguf_model

DEMO_BYTES = 20_000_000


class Timed(Threads):
    """Nothing happens between its steps, but for `idle`."""

    def __init__(self, most: int, *, is_fixed: bool = False, weights_bytes: float = DEMO_BYTES) -> None:
        self.now = 0.0
        super().__init__(most, is_fixed=is_fixed, weights_bytes=weights_bytes, clock=lambda: self.now)

    def took(self, seconds: float, n_tokens: int = 1) -> None:
        self.now += seconds
        super().took(seconds, n_tokens)

    def idle(self, seconds: float) -> None:
        self.now += seconds


def threads(most: int = 2, *, is_fixed: bool = False) -> Timed:
    return Timed(most, is_fixed=is_fixed)


def steps(of: Timed, n: int, seconds: float, n_tokens: int = 1) -> None:
    for _ in range(n):
        of.took(seconds, n_tokens)


def test_all_threads_compute_as_long_as_they_are_no_slower_than_one() -> None:
    four = threads(4)
    steps(four, 1000, 0.001)
    four.took(0.01)  # disturbed once
    steps(four, 1000, 0.001)
    assert four.of(1) == 4


def test_one_thread_goes_on_where_all_of_them_wait_for_each_other() -> None:
    two = threads()
    two.took(0.4)
    assert (two.of(1), two.of(16)) == (1, 1)
    assert two.of(512) == 2  # prefill computes more than it waits


def test_many_small_losses_count_as_a_large_one() -> None:
    two = threads()
    two.took(0.4)
    steps(two, 1001, 0.001)  # of one thread, for a second
    assert two.of(1) == 2
    steps(two, 20, 0.003)  # less than was guessed of one thread, and more than it takes
    assert two.of(1) == 1


def test_all_threads_are_tried_again_after_rests_that_double() -> None:
    two, rests = threads(), []
    for _ in range(8):
        two.took(1.0)
        n = 0
        while two.of(1) == 1:
            two.took(0.125)
            n += 1
        rests.append(n * 0.125)
    assert rests == [1, 2, 4, 8, 16, 32, 32, 32]


def test_rests_begin_anew_once_all_threads_have_done_well() -> None:
    two = threads()
    two.took(0.4)
    steps(two, 1001, 0.001)
    steps(two, 3000, 0.0007)  # longer than the next rest would be
    two.took(0.4)
    steps(two, 1001, 0.001)
    assert two.of(1) == 2


def test_steps_that_verify_drafts_count_too() -> None:
    two = threads()
    steps(two, 100, 0.004, n_tokens=4)  # no longer than one thread would take for four
    assert two.of(1) == 2
    two.took(0.4, n_tokens=4)
    assert two.of(4) == 1
    steps(two, 100, 0.02, n_tokens=8)
    assert two.of(4) == 2  # the rest is over, though no step of one token came
    two.took(10.0, n_tokens=512)
    assert two.of(4) == 2


def test_time_between_answers_is_rest() -> None:
    two = threads()
    two.took(0.4)
    two.idle(3600)
    two.took(0.001)
    assert two.of(1) == 2


@pytest.mark.parametrize(("most", "is_fixed"), [(1, False), (8, True)])
def test_a_single_thread_and_a_number_that_was_asked_for_stay(most: int, is_fixed: bool) -> None:
    some = threads(most, is_fixed=is_fixed)
    steps(some, 100, 10.0)
    assert some.of(1) == most


@pytest.mark.parametrize("n_threads", [None, 2])
def test_steps_that_wait_make_the_library_use_one_thread_unless_a_number_was_asked_for(
    demo_directory: Path, n_threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import llama_cpp

    monkeypatch.setattr("runner.backends.llamacpp.library.default_threads", lambda: 2)
    monkeypatch.setattr("runner.backends.llamacpp.threads._FIRST_REST_S", 60.0)  # on the slowest machine not over here
    options = LoadOptions(ctx_size=N_CTX, n_threads=n_threads)
    backend = llamacpp.load(gguf_model(demo_directory / "demo-q8_0.gguf"), options, lambda _: None, CancelToken())
    used: list[int] = []  # threads, a batch
    decode = llama_cpp.llama_decode

    def watched(context: object, batch: object) -> int:
        used.append(llama_cpp.llama_n_threads(context))
        return int(decode(context, batch))

    monkeypatch.setattr(llama_cpp, "llama_decode", watched)
    try:
        backend._threads.took(10.0)  # type: ignore[attr-defined]
        take(backend, range(100, 140), 4)
    finally:
        backend.close()
    assert used == [2, *([1] * 3 if n_threads is None else [2] * 3)]
