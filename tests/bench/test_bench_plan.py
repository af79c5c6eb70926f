"""Which tests a bench makes, of which sizes, how often and in which order."""

from __future__ import annotations

import dataclasses
import math

import pytest

from runner.bench.plan import (
    BenchTest,
    Budget,
    Speed,
    abba,
    needed_context,
    plan_tests,
    share_of,
    wanted_tests,
)
from runner.bench.request import BenchRequest
from runner.config import LONGEST_DRAFT, LoadOptions
from runner.errors import UsageError
from runner.types import ModelInfo

FAST = Speed(prefill_tok_s=math.inf, decode_tok_s=math.inf)
PLAIN = BenchRequest(model="m", load=LoadOptions())
TEST_S = 8.0


def info(*, context_length: int = 32768, n_ctx: int = 8192) -> ModelInfo:
    return ModelInfo(
        name="m",
        backend="llamacpp",
        architecture="llama",
        num_parameters=1,
        num_layers=1,
        n_gpu_layers=0,
        vocab_size=100,
        context_length=context_length,
        n_ctx=n_ctx,
        quantization="Q8_0",
        size_bytes=1,
        device="CPU",
        chat_template=None,
        bos_token="",
        eos_token="",
        longest_draft=LONGEST_DRAFT,
    )


def names(request: BenchRequest, model: ModelInfo, speed: Speed = FAST) -> list[str]:
    return [test.name for test in plan_tests(request, model, speed, TEST_S).tests]


def test_nothing_said_measures_prefill_decode_and_decode_at_depth() -> None:
    assert names(PLAIN, info()) == ["pp512", "tg128", "tg128 @ d4096"]
    assert PLAIN.options().repetitions == 5


def test_depths_that_are_asked_for_are_measured_with_prefill_and_decode_as_llama_bench_does() -> None:
    asked = dataclasses.replace(PLAIN, n_prompt=(64, 32), n_gen=(8,), depths=(0, 100))
    assert names(asked, info()) == ["pp64", "pp32", "tg8", "pp64 @ d100", "pp32 @ d100", "tg8 @ d100"]


def test_a_size_of_0_is_no_test_and_nothing_at_all_is_refused() -> None:
    assert names(dataclasses.replace(PLAIN, n_prompt=(0,)), info()) == ["tg128", "tg128 @ d4096"]
    with pytest.raises(UsageError, match="nothing to measure"):
        dataclasses.replace(PLAIN, n_prompt=(0,), n_gen=(0,))


@pytest.mark.parametrize("field", ["n_prompt", "n_gen", "depths"])
@pytest.mark.parametrize("value", [-1, 2**21])
def test_absurd_sizes_are_refused(field: str, value: int) -> None:
    with pytest.raises(UsageError, match=str(value)):
        dataclasses.replace(PLAIN, **{field: (value,)})


def test_what_the_model_or_the_cache_has_no_room_for_is_skipped_with_the_reason() -> None:
    short = plan_tests(PLAIN, info(context_length=2048, n_ctx=2048), FAST, TEST_S)
    assert [test.test for test in short.skipped] == ["tg128 @ d4096"]
    assert "the model has 2048" in short.skipped[0].reason
    small_cache = plan_tests(PLAIN, info(n_ctx=1024), FAST, TEST_S)
    assert "1024 are allocated" in small_cache.skipped[0].reason


@pytest.mark.parametrize("kind", ["prefill", "decode"])
@pytest.mark.parametrize("depth", [0, 100])
def test_a_test_fits_a_context_of_just_its_size(kind: str, depth: int) -> None:
    test = BenchTest(kind=kind, n_tokens=50, depth=depth)
    asked = dataclasses.replace(PLAIN, n_prompt=(50,), n_gen=(50,), depths=(depth,))
    assert test in plan_tests(asked, info(n_ctx=test.context), FAST, TEST_S).tests
    assert test not in plan_tests(asked, info(n_ctx=test.context - 1), FAST, TEST_S).tests


def test_a_slow_machine_measures_less_and_says_so() -> None:
    slow = Speed(prefill_tok_s=40.0, decode_tok_s=10.0)
    plan = plan_tests(PLAIN, info(), slow, TEST_S)
    assert [test.name for test in plan.tests] == ["pp64", "tg16"]
    assert "in place of pp512" in plan.notes["pp64"]
    assert "it is measured where its size is asked for (-n 128)" in plan.notes["tg16"]
    assert [test.test for test in plan.skipped] == ["tg128 @ d4096"]
    assert "it is measured where its size is asked for (-d 4096)" in plan.skipped[0].reason
    assert plan.is_reduced


def test_a_fast_machine_measures_all_of_it() -> None:
    plan = plan_tests(PLAIN, info(), Speed(prefill_tok_s=5000.0, decode_tok_s=100.0), TEST_S)
    assert not plan.is_reduced
    assert not plan.notes


def test_sizes_that_are_asked_for_are_measured_however_slow_that_is() -> None:
    asked = dataclasses.replace(PLAIN, n_prompt=(512,), n_gen=(128,), depths=(0, 4096))
    speed = Speed(prefill_tok_s=1.0, decode_tok_s=0.1)
    assert names(asked, info(), speed) == ["pp512", "tg128", "pp512 @ d4096", "tg128 @ d4096"]


def test_the_second_backend_takes_over_the_sizes_of_the_first() -> None:
    first = plan_tests(PLAIN, info(), Speed(prefill_tok_s=40.0, decode_tok_s=100.0), TEST_S)
    faster = plan_tests(PLAIN, info(), FAST, TEST_S, first)
    a_little_slower = plan_tests(PLAIN, info(), Speed(prefill_tok_s=30.0, decode_tok_s=40.0), TEST_S, first)
    assert faster.tests == a_little_slower.tests == first.tests
    assert "(-p 512)" in first.notes["pp64"]
    assert faster.notes == {"pp64": "as many tokens as the backend before it, to be compared"}
    assert [test.test for test in faster.skipped] == ["tg128 @ d4096"]
    far_slower = plan_tests(PLAIN, info(), Speed(prefill_tok_s=30.0, decode_tok_s=2.0), TEST_S, first)
    assert [test.name for test in far_slower.tests] == ["pp64", "tg16"]


def test_processes_go_there_and_back() -> None:
    assert abba(("native", "llamacpp")) == ("native", "llamacpp", "llamacpp", "native")
    assert abba(("native",)) == ("native",)


@pytest.mark.parametrize("repetitions", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("n_processes", [1, 2])
def test_the_shares_of_the_processes_make_up_all_repetitions(repetitions: int, n_processes: int) -> None:
    options = dataclasses.replace(PLAIN, repetitions=repetitions).options()
    shares = [share_of(options, process, n_processes) for process in range(n_processes)]
    assert sum(share.most for share in shares) == repetitions
    assert sum(share.least for share in shares) == min(3, repetitions)
    assert all(share.least <= share.most for share in shares)


def budget(left_s: float, n_parts: int = 1, *, is_binding: bool = True) -> Budget:
    made = Budget(left_s, is_binding=is_binding)
    made.n_parts = n_parts
    return made


def test_a_rows_part_of_the_time_ends_repetitions_but_not_before_the_third() -> None:
    share, of = share_of(PLAIN.options(), 0, 1), budget(100.0, n_parts=5)
    assert not share.is_enough(2, spent_s=50.0, last_s=25.0, budget=of)
    assert share.is_enough(3, spent_s=15.0, last_s=5.1, budget=of)
    assert not share.is_enough(3, spent_s=15.0, last_s=4.9, budget=of)
    assert share.is_enough(5, spent_s=1.0, last_s=0.3, budget=of)


def test_one_repetition_is_enough_once_the_run_has_no_time_left() -> None:
    share = share_of(PLAIN.options(), 0, 1)
    assert share.is_enough(1, spent_s=20.0, last_s=1.0, budget=budget(20.0, n_parts=3))
    assert share.is_enough(1, spent_s=0.1, last_s=0.1, budget=budget(0.0, n_parts=3))


def test_what_a_row_leaves_of_its_part_goes_to_those_after_it() -> None:
    of = budget(40.0, n_parts=4)
    of.spend(4.0)  # a look belongs to no row
    assert of.part_s == 9.0
    of.spend(3.0, n_parts=1)
    assert of.part_s == 11.0
    of.spend(100.0, n_parts=1)
    assert of.left_s == of.part_s == 0.0


def test_repetitions_that_are_asked_for_are_all_made() -> None:
    share, of = share_of(dataclasses.replace(PLAIN, repetitions=4).options(), 0, 1), budget(40.0, is_binding=False)
    of.spend(1000.0, n_parts=1)
    assert of.left_s == 40.0
    assert not share.is_enough(3, spent_s=1000.0, last_s=300.0, budget=of)


def test_the_context_grows_for_a_depth_that_is_asked_for_and_for_nothing_else() -> None:
    assert needed_context(PLAIN) is None
    deep = dataclasses.replace(PLAIN, depths=(0, 16000))
    assert needed_context(deep) == 16640
    assert max(test.context for test in wanted_tests(deep.options())) <= 16640
    own = dataclasses.replace(deep, load=LoadOptions(ctx_size=2048))
    assert needed_context(own) == 2048


def test_a_test_that_the_model_has_no_context_for_takes_no_room() -> None:
    deep = dataclasses.replace(PLAIN, depths=(0, 9000, 16000))
    assert needed_context(deep, 10000) == 9728
    assert needed_context(deep, 9200) == 9200
    assert needed_context(deep, 2048) is None
    assert needed_context(dataclasses.replace(deep, load=LoadOptions(ctx_size=20000)), 2048) == 20000


def test_runs_that_were_asked_for_the_same_have_equal_options() -> None:
    assert PLAIN.options() == dataclasses.replace(PLAIN, model="other").options()
    assert PLAIN.options() != dataclasses.replace(PLAIN, load=LoadOptions(kv_type="q8_0")).options()
