"""Which tokens are read together, and which are scored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import UsageError
from runner.evaluation.windows import Windowing, cut


def test_defaults_are_those_of_llama_cpp() -> None:
    # llama-perplexity: first = n_ctx/2; logits at first .. n_ctx-2 score the n_ctx - 1 - first tokens after them
    for n_ctx in (512, 2048, 100):
        windowing = Windowing(size=n_ctx)
        assert windowing.step == n_ctx
        assert windowing.n_scored == n_ctx - 1 - n_ctx // 2


def test_windows_follow_one_another_and_the_rest_is_left_out() -> None:
    text = cut("a", range(100, 150), Windowing(size=16), None)
    assert [w[0] for w in text.windows] == [100, 116, 132]
    assert all(len(w) == 16 for w in text.windows)
    assert text.n_tokens == 50


def test_bos_stands_first_in_every_window_and_with_a_stride_no_token_is_lost() -> None:
    text = cut("a", range(100, 200), Windowing(size=16, stride=15, context=1), bos=1)
    assert all(w[0] == 1 for w in text.windows)
    scored = [token for w in text.windows for token in w[1:]]
    assert scored == list(range(100, 100 + len(scored)))
    # llama.cpp's way: BOS before the text, and over the first token of each later window
    text = cut("a", range(100, 200), Windowing(size=16), bos=1)
    assert [w[:3] for w in text.windows[:2]] == [(1, 100, 101), (1, 116, 117)]


def test_a_limit_takes_the_first_windows() -> None:
    everything = cut("a", range(100), Windowing(size=16), None)
    assert cut("a", range(100), Windowing(size=16, limit=2), None).windows == everything.windows[:2]


@given(n_ids=st.integers(16, 400), size=st.integers(16, 40), context=st.integers(1, 15), extra=st.integers(0, 20))
def test_no_token_is_scored_twice(n_ids: int, size: int, context: int, extra: int) -> None:
    windowing = Windowing(size=size, context=context, stride=size - context + extra)
    if n_ids < size:
        with pytest.raises(UsageError, match="a window has"):
            cut("a", range(n_ids), windowing, None)
        return
    scored = [token for w in cut("a", range(n_ids), windowing, None).windows for token in w[context:]]
    assert len(scored) == len(set(scored))
    if extra == 0:
        assert scored == list(range(context, context + len(scored)))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"size": 8}, "window of 8"),
        ({"size": 99_999_999}, "--window 16 to 16777216"),
        ({"size": 32, "context": 32}, "nothing to score"),
        ({"context": 0}, "nothing to score"),
        ({"size": 512, "stride": 100}, "twice"),
        ({"limit": 0}, "--windows"),
    ],
)
def test_what_cannot_be_measured_is_refused(values: dict[str, int], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        Windowing(**values)
    assert words in f"{refused.value.message} {refused.value.hint}"
