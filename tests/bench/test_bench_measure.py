"""Timing one task on a model, and the model's check of itself, on backends that compute nothing or wrongly."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from runner.backends.base import Backend, Logits, Prefill, Step
from runner.backends.fake import FakeBackend, Reply, Script
from runner.bench.gates import check_fault, sample_fault
from runner.bench.measure import Meter
from runner.bench.plan import BenchTest
from runner.config import LoadOptions, SamplingParams
from runner.errors import ContextOverflow, RunnerError
from runner.speculative.speculator import Speculator
from runner.types import CancelToken, MemoryUse, ReadyModel


def fake(reply: str = "a reply that goes on and on and on", *, n_ctx: int = 4096) -> FakeBackend:
    model = ReadyModel(name="m", format="script", weights=(), directory=Path(), size_bytes=0)
    return FakeBackend(model, Script(replies=(Reply(text=reply),), n_ctx=n_ctx), LoadOptions(ctx_size=n_ctx))


def ticking() -> Callable[[], float]:
    """A clock that is a second later each time."""
    ticks = count()
    return lambda: float(next(ticks))


class Broken(Backend):
    """A fake backend that goes wrong in one way."""

    def __init__(self, how: str) -> None:
        self._fake = fake()
        self._how = how
        self.info = self._fake.info
        self.tokenizer = self._fake.tokenizer

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        cancel: CancelToken,
        speculator: Speculator | None = None,
    ) -> Generator[Prefill | Step, None, None]:
        del speculator
        for number, step in enumerate(self._fake.generate(prompt, params, cancel)):
            if isinstance(step, Step) and self._how == "garbage":
                step = Step((step.token + 1) % 256)
            if isinstance(step, Step) and self._how == "outside":
                step = Step(100_000)
            if self._how == "short" and number > 5:
                return
            yield step

    def score(self, tokens: Sequence[int]) -> Iterator[Logits]:
        for logits in self._fake.score(tokens):
            values = logits.values
            if self._how == "nan":
                values[0] = np.nan
            if self._how == "language":
                values = 50 * values
            yield Logits(logits.position, values)

    def memory(self) -> MemoryUse:
        return self._fake.memory()

    def close(self) -> None: ...


def test_decoding_is_timed_from_the_first_token_to_the_last() -> None:
    test = BenchTest(kind="decode", n_tokens=10)
    sample = Meter(fake(), ticking()).measure(test.task(0), CancelToken())
    assert (sample.n_tokens, sample.seconds, len(sample.token_ids)) == (10, 10.0, 11)
    assert sample_fault(test, sample, 258) is None


def test_prefill_is_timed_from_the_request_to_the_first_token() -> None:
    test = BenchTest(kind="prefill", n_tokens=100)
    sample = Meter(fake(), ticking()).measure(test.task(0), CancelToken())
    assert (sample.n_tokens, sample.seconds, sample.n_prompt) == (100, 1.0, 100)
    assert sample_fault(test, sample, 258) is None


@pytest.mark.parametrize("depth", [0, 1, 300])
def test_no_repetition_of_a_prefill_finds_its_prompt_in_the_cache(depth: int) -> None:
    meter, test = Meter(fake()), BenchTest(kind="prefill", n_tokens=40, depth=depth)
    for number in range(5):
        sample = meter.measure(test.task(number), CancelToken())
        assert sample_fault(test, sample, 258) is None
        assert sample.n_prompt == depth + 40


def test_a_prompt_that_is_in_the_cache_is_noticed() -> None:
    meter, test = Meter(fake()), BenchTest(kind="prefill", n_tokens=40)
    meter.measure(test.task(4), CancelToken())
    sample = meter.measure(test.task(4), CancelToken())
    assert "came from the KV cache" in (sample_fault(test, sample, 258) or "")


def test_depth_is_the_length_of_the_prompt_before_decoding() -> None:
    sample = Meter(fake()).measure(BenchTest(kind="decode", n_tokens=5, depth=700).task(0), CancelToken())
    assert sample.n_prompt == 700


def test_repetitions_of_a_decode_test_write_the_same() -> None:
    meter, test = Meter(fake()), BenchTest(kind="decode", n_tokens=20)
    ids = {meter.measure(test.task(number), CancelToken()).token_ids for number in range(3)}
    assert len(ids) == 1


def test_what_ends_early_is_not_taken_for_the_whole() -> None:
    test = BenchTest(kind="decode", n_tokens=20)
    sample = Meter(Broken("short")).measure(test.task(0), CancelToken())
    assert "in place of 20" in (sample_fault(test, sample, 258) or "")


def test_tokens_outside_the_vocabulary_are_noticed() -> None:
    test = BenchTest(kind="decode", n_tokens=20)
    sample = Meter(Broken("outside")).measure(test.task(0), CancelToken())
    assert "100000" in (sample_fault(test, sample, 258) or "")


def test_a_test_that_does_not_fit_the_context_says_so() -> None:
    with pytest.raises(ContextOverflow):
        Meter(fake(n_ctx=64)).measure(BenchTest(kind="prefill", n_tokens=64).task(0), CancelToken())


def test_a_cancelled_measurement_is_none() -> None:
    cancel = CancelToken()
    cancel.cancel()
    with pytest.raises(RunnerError, match="cancelled"):
        Meter(fake()).measure(BenchTest(kind="decode", n_tokens=5).task(0), cancel)


def test_a_sound_model_agrees_with_itself() -> None:
    check = Meter(fake()).check(CancelToken())
    assert check.n_agreeing == check.n_ids == 24
    assert check.perplexity is not None
    assert check_fault(check, 258, is_random=False) is None


@pytest.mark.parametrize(
    ("how", "words"),
    [("garbage", "contradict each other"), ("nan", "not numbers"), ("language", "worse than guessing")],
)
def test_a_broken_model_is_found_out(how: str, words: str) -> None:
    check = Meter(Broken(how)).check(CancelToken())
    assert words in (check_fault(check, 258, is_random=False) or "")


@pytest.mark.parametrize("n_ctx", [16, 17, 40, 64])
def test_the_check_fits_small_contexts(n_ctx: int) -> None:
    check = Meter(fake(n_ctx=n_ctx)).check(CancelToken())
    assert check_fault(check, 258, is_random=True) is None


def test_vitals_tell_what_the_process_holds() -> None:
    vitals = Meter(fake()).vitals()
    assert vitals.peak_bytes is not None
    assert 2**20 < vitals.peak_bytes < 2**40
