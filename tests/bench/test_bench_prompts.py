"""The text that benchmarks read, and the prompts that are cut from it."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.backends.base import common_prefix
from runner.backends.fake import FakeTokenizer
from runner.bench.prompts import Prompts
from runner.bench.prose import prose


def test_the_text_is_the_same_everywhere() -> None:
    assert hashlib.md5(prose(5000)[:5000].encode()).hexdigest() == "9aa616cc7af4fe63d73bd56555ad6a1b"


def test_a_longer_text_goes_on_where_a_shorter_one_ends() -> None:
    assert prose(20_000).startswith(prose(1000))
    assert len(prose(20_000)) >= 20_000


def test_the_text_hardly_repeats_itself() -> None:
    words = prose(40_000).split()
    runs = [tuple(words[i : i + 16]) for i in range(len(words) - 16)]
    assert len(set(runs)) > 0.99 * len(runs)


ids = st.lists(st.integers(0, 30), min_size=1, max_size=300)


@given(ids, st.integers(0, 400), st.one_of(st.none(), st.just(99)))
def test_the_prefix_has_the_length_asked_for_and_begins_with_bos(text: list[int], n: int, bos: int | None) -> None:
    prefix = Prompts(text, bos).prefix(n)
    assert len(prefix) == n
    if bos is not None and n:
        assert prefix[0] == bos
    assert Prompts(text, bos).prefix(n + 5)[:n] == prefix


@given(st.lists(st.integers(0, 30), min_size=1, max_size=300), st.integers(1, 64), st.integers(0, 12))
def test_a_fresh_prompt_shares_no_beginning_with_the_prefix_or_its_neighbour(
    text: list[int], n: int, number: int
) -> None:
    prompts = Prompts(text)
    fresh = prompts.fresh(n, number)
    assert len(fresh) == n
    if len(set(text)) > 2:
        assert fresh[0] != prompts.prefix(1)[0]
        assert fresh[0] != prompts.fresh(n, number + 1)[0]


def test_with_a_real_vocabulary_no_two_fresh_prompts_begin_alike() -> None:
    prompts = Prompts(FakeTokenizer().encode(prose(40_000)))
    made = [prompts.fresh(64, number) for number in range(20)]
    firsts = {prompt[0] for prompt in made}
    assert len(firsts) == 20
    assert all(common_prefix(a, b) == 0 for a in made for b in made if a is not b)


@pytest.mark.parametrize("changed", [([1, 2, 4], None), ([1, 2, 3], 0), ([1, 2, 3, 3], None)])
def test_the_hash_tells_texts_apart(changed: tuple[list[int], int | None]) -> None:
    assert Prompts([1, 2, 3]).md5 != Prompts(*changed).md5
    assert Prompts([1, 2, 3]).md5 == Prompts([1, 2, 3]).md5
