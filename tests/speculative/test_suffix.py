"""The suffix drafter: its hash chains against brute force, and what it drafts as a text goes on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.config import SamplingParams
from runner.speculative.control import Most
from runner.speculative.drafter import NO_DRAFT, Draft
from runner.speculative.history import common_prefix
from runner.speculative.suffix import LONGEST_MATCH, SHORTEST_MATCH, HashChains, Match, SuffixDrafter, ending

PARAMS = SamplingParams()
TEXTS = st.lists(st.integers(0, 2), max_size=60)


def chains_of(text: Sequence[int]) -> HashChains:
    chains = HashChains()
    chains.extend(text)
    return chains


def match_of(text: Sequence[int]) -> Match | None:
    """The longest match of the text's own end."""
    chains = chains_of(text)
    return chains.longest(chains.repeated(), text[-LONGEST_MATCH:])


def ends_of(part: Sequence[int], text: Sequence[int]) -> list[int]:
    """Where in `text` an occurrence of `part` ends."""
    n = len(part)
    return [end for end in range(n, len(text) + 1) if list(text[end - n : end]) == list(part)]


def propose(drafter: SuffixDrafter, history: Sequence[int], n: int = 15) -> Draft:
    return drafter.propose(history, PARAMS, Most(n))


# --- the hash chains -------------------------------------------------------------------------------------------------


@given(TEXTS)
def test_the_longest_and_then_the_latest_match_is_found(text: list[int]) -> None:
    ends = [(n, ends_of(text[-n:], text)[:-1]) for n in range(min(len(text), LONGEST_MATCH), SHORTEST_MATCH - 1, -1)]
    expected = next(((n, found[-1]) for n, found in ends if found), None)
    match = match_of(text)
    assert (match and match[:2]) == expected


@given(TEXTS)
def test_a_match_says_how_far_all_others_of_its_length_go_on_alike(text: list[int]) -> None:
    match = match_of(text)
    if match is None or match.length == LONGEST_MATCH:
        return
    others = [end for end in ends_of(text[-match.length :], text) if end < len(text)]
    followed = text[match.place : match.place + LONGEST_MATCH]
    assert match.n_alone >= min(common_prefix(followed, text[end : end + LONGEST_MATCH]) for end in others)
    assert (match.n_alone == 0) == (len({text[end] for end in others}) > 1)


@given(TEXTS, TEXTS)
def test_a_place_in_another_text_is_found_by_the_key(text: list[int], other: list[int]) -> None:
    chains, key = chains_of(text), chains_of(other).key
    place = chains.place(key)
    if len(other) >= SHORTEST_MATCH:
        ends = ends_of(other[-SHORTEST_MATCH:], text)
        match = chains.longest(place, other[-LONGEST_MATCH:])
        assert (match is None) == (not ends)
        assert match is None or match.place in ends


def test_of_three_matches_the_first_that_goes_on_otherwise_ends_what_is_alike() -> None:
    oldest, older, latest = [20, 1, 2, 3, 4, 5, 9], [21, 1, 2, 3, 4, 8], [22, 1, 2, 3, 4, 5, 6]
    assert match_of([*oldest, *older, *latest, 23, 1, 2, 3]) == (3, 17, 1)


def test_matches_too_far_back_are_not_looked_at() -> None:
    between = [token for n in range(40) for token in (100 + n, 1, 2, 3)]
    assert match_of([9, 1, 2, 3, *between[:40], 9, 1, 2, 3]) == (4, 4, LONGEST_MATCH)
    assert match_of([9, 1, 2, 3, *between, 9, 1, 2, 3])[0] == 3


def test_ids_of_any_size_are_compared_and_not_only_their_keys() -> None:
    large = 1 << 20
    assert match_of([1, 2, 3, 9, 1, 2 + large, 3]) is None
    assert match_of([1, 2, 3 + large, 9, 1, 2, 3 + large]) == (3, 3, LONGEST_MATCH)


def test_a_text_that_repeats_goes_on_for_ever() -> None:
    assert chains_of([1, 2, 3, 4] * 2).continuation(4, 10) == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]


def test_nothing_matches_or_goes_on_across_a_separator() -> None:
    chains = chains_of([1, 2, 3, 4, 5])
    chains.separate()
    chains.extend([6, 7, 3, 4, 5])
    match = chains.longest(chains.repeated(), chains.tokens[-LONGEST_MATCH:])
    assert match == (3, 5, LONGEST_MATCH)
    assert chains.continuation(match.place, 9) == []


def test_one_separator_does_not_match_another() -> None:
    chains = HashChains()
    for part in ([5], [1, 2, 3, 9, 5]):
        chains.extend(part)
        chains.separate()
    chains.extend([1, 2, 3])
    assert chains.longest(chains.repeated(), chains.tokens[-LONGEST_MATCH:]) == (3, 5, LONGEST_MATCH)


# --- the drafter -----------------------------------------------------------------------------------------------------


def test_what_followed_before_is_drafted_again() -> None:
    text = [10, 11, 12, 13, 14, 15, 16, 17]
    assert propose(SuffixDrafter(), [*text, 99, 10, 11, 12]).tokens == (13, 14, 15, 16, 17, 99)


def test_two_tokens_that_occurred_before_are_chance() -> None:
    assert propose(SuffixDrafter(), [10, 11, 12, 99, 10, 11]) == NO_DRAFT


@pytest.mark.parametrize("length", [3, 5, 7])
def test_a_draft_is_at_most_twice_as_long_as_its_match(length: int) -> None:
    text = list(range(100, 140))
    assert len(propose(SuffixDrafter(), [*text, 99, *text[:length]])) == min(15, 2 * length)


def test_of_two_continuations_the_latest_is_drafted_and_contested() -> None:
    found = propose(SuffixDrafter(), [1, 2, 3, 4, 9, 1, 2, 3, 5, 8, 1, 2, 3], 2)
    assert (found.tokens, found.buckets) == ((5, 8), (0, 0))


def test_what_goes_on_alike_for_a_while_is_contested_from_there_on() -> None:
    found = propose(SuffixDrafter(), [1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 7, 8, 0, 9, 1, 2, 3])
    assert (found.tokens[:3], found.buckets[:3]) == ((4, 7, 8), (1, 0, 0))


def test_it_may_guess_where_it_has_something_to_quote() -> None:
    """Asked before each step, without being asked to guess."""
    file, text = list(range(500, 520)), [1, 2, 3, 4, 9, 1, 2, 3, 500, 501, 502, 7]
    drafter = SuffixDrafter([file])
    may = [drafter.may_guess(text[:n]) for n in range(1, len(text) + 1)]
    assert may == [bool(propose(SuffixDrafter([file]), text[:n])) for n in range(1, len(text) + 1)]
    assert [n for n, found in enumerate(may, 1) if found] == [8, 11]


def test_what_was_written_while_it_was_not_asked_is_read_when_it_is() -> None:
    text = [i * i % 7 for i in range(100)]
    for pause in (1, 40, 90):
        drafter = SuffixDrafter()
        propose(drafter, text[:5])
        assert propose(drafter, text[: 5 + pause]) == propose(SuffixDrafter(), text[: 5 + pause])


def test_the_gate_ends_a_draft() -> None:
    text = list(range(100, 140))
    assert propose(SuffixDrafter(), [*text, 99, *text[:9]], 4).tokens == tuple(text[9:13])


def test_buckets_tell_a_contested_guess_and_the_length_of_the_match() -> None:
    text = list(range(100, 140))
    found = {}
    for length in (3, 4, 8, 16):
        buckets = propose(SuffixDrafter(), [*text, 99, *text[:length]]).buckets
        assert len(set(buckets)) == 1
        found[length] = buckets[0]
    assert found == {3: 1, 4: 2, 8: 3, 16: 4}
    contested = propose(SuffixDrafter(), [1, 2, 3, 4, 4, 1, 2, 3, 5, 5, 1, 2, 3])
    assert set(contested.buckets) == {0}
    assert max(found.values()) < SuffixDrafter.n_buckets


def test_it_follows_a_text_step_by_step_as_it_would_read_it_at_once() -> None:
    text = [i * i % 7 for i in range(60)]
    stepwise = SuffixDrafter()
    for n in range(20, len(text)):
        assert propose(stepwise, text[:n]) == propose(SuffixDrafter(), text[:n])


def test_an_answer_that_was_replaced_is_still_known() -> None:
    prompt, answer = list(range(100, 190)), list(range(200, 230))
    drafter = SuffixDrafter()
    propose(drafter, prompt + answer)
    held = len(drafter._live)
    again = [*prompt, 300, *answer[:4]]
    assert propose(drafter, again, 5).tokens == tuple(answer[4:9])
    # What both share is not taken in again, but for the end that joins them.
    assert len(drafter._live) < held + len(again)
    # The next step goes on from it: one token more.
    held = len(drafter._live)
    propose(drafter, [*again, answer[4]])
    assert len(drafter._live) == held + 1


def test_a_replaced_answer_does_not_go_on_as_its_prompt() -> None:
    prompt, answer = list(range(100, 190)), list(range(200, 230))
    drafter = SuffixDrafter()
    propose(drafter, prompt + answer)
    assert propose(drafter, [*prompt, 300, *answer[-4:]]).tokens == ()


def test_a_match_reaches_across_where_an_answer_was_replaced() -> None:
    text = [10, 11, 12, 13, 14, 50, 10, 11]
    drafter = SuffixDrafter()
    propose(drafter, [*text, 99])
    assert propose(drafter, [*text, 12], 2).tokens == (13, 14)


def test_a_match_reaches_across_where_the_older_part_was_forgotten() -> None:
    drafter = SuffixDrafter(limit=90)
    text = [10, 11, 12, 13, 14, *range(200, 223), 10, 11]
    propose(drafter, text)
    assert len(drafter._live) == 30, "full"
    assert propose(drafter, [*text, 12], 2).tokens == (13, 14)


def test_a_new_turn_that_ends_as_the_last_did_is_read_wholly() -> None:
    end = list(range(100, 108))
    drafter = SuffixDrafter()
    propose(drafter, [*range(200, 240), *end])
    turn = [*range(300, 340), *end, *range(400, 500)]
    assert propose(drafter, [*turn, 310, 311, 312], 2).tokens == (313, 314)


def test_of_matches_that_are_long_enough_the_latest_is_drafted() -> None:
    text = list(range(100, 120))
    assert propose(SuffixDrafter(), [*text, 7, 8, *text[2:], 5, 6, *text], 2).tokens == (5, 6)


def test_a_turn_that_goes_on_from_the_last_is_added_to_it() -> None:
    drafter = SuffixDrafter()
    first = list(range(100, 160))
    propose(drafter, first)
    propose(drafter, [*first, *range(200, 300)])
    assert len(drafter._live) == 160


def test_a_text_that_was_given_is_quoted() -> None:
    file = list(range(500, 600))
    drafter = SuffixDrafter([file])
    assert propose(drafter, [1, 2, 3, *file[40:44]], 6).tokens == tuple(file[44:50])
    assert propose(SuffixDrafter(), [1, 2, 3, *file[40:44]], 6) == NO_DRAFT


def test_texts_that_were_given_are_kept_apart() -> None:
    drafter = SuffixDrafter([[1, 2, 3, 4, 5], [6, 7, 8, 9]])
    assert drafter.n_given == 9
    assert propose(drafter, [99, 2, 3, 4], 6).tokens == (5,)
    assert propose(drafter, [99, 4, 5, 6]) == NO_DRAFT, "across the end of the first"
    assert propose(drafter, [98, 6, 7, 8], 6).tokens == (9,)


def test_the_longer_match_counts_wherever_it_is() -> None:
    drafter = SuffixDrafter([[50, 51, 52, 53, 54, 70, 71]])
    history = [52, 53, 54, 80, 81, 9, 50, 51, 52, 53, 54]
    assert propose(drafter, history, 2).tokens == (70, 71)


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    drafter = SuffixDrafter(limit=3000)
    history: list[int] = []
    for start in range(0, 20_000, 50):
        history.extend(range(start, start + 50))
        propose(drafter, history, 0)
        assert len(drafter._live) + sum(map(len, drafter._others)) <= 2000 + 100
    assert propose(drafter, [*history, *range(19_500, 19_505)], 3).tokens == (19_505, 19_506, 19_507)
    assert propose(drafter, [*history, *range(19_500, 19_505), 7, *range(100, 105)]) == NO_DRAFT


def test_a_prompt_longer_than_the_memory_is_known_by_its_end() -> None:
    drafter = SuffixDrafter(limit=600)
    history = [*range(10_000), 9_990, 9_991, 9_992]
    assert propose(drafter, history, 3).tokens == (9_993, 9_994, 9_995)


def test_of_long_texts_the_end_is_known() -> None:
    drafter = SuffixDrafter([range(1000)], limit=600)
    assert drafter.n_given == 199
    assert propose(drafter, [1, 990, 991, 992], 2).tokens == (993, 994)
    assert propose(drafter, [1, 2, 3, 700, 701, 702]) == NO_DRAFT


@pytest.mark.parametrize(
    ("most", "left"),
    [
        (0, []),
        (1, []),
        (2, [[9]]),
        (4, [[7, 8, 9]]),
        (5, [[7, 8, 9]]),
        (6, [[4], [7, 8, 9]]),
        (9, [[1, 2, 3, 4], [7, 8, 9]]),
        (99, [[1, 2, 3, 4], [7, 8, 9]]),
    ],
)
def test_the_end_of_texts_is_cut_by_places(most: int, left: list[list[int]]) -> None:
    assert ending([[1, 2, 3, 4], [7, 8, 9]], most) == left
    assert sum(len(text) + 1 for text in left) <= max(most, 0)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 40), st.lists(st.integers(0, 3), max_size=30)), min_size=1, max_size=12))
def test_any_history_may_follow_any_other(turns: list[tuple[int, list[int]]]) -> None:
    drafter = SuffixDrafter([[0, 1, 2, 3, 0, 1]], limit=120)
    history = [0]
    for kept, added in turns:
        history = history[: max(1, kept)] + added
        draft = propose(drafter, history)
        assert len(draft.tokens) == len(draft.buckets) <= 15
        assert all(0 <= token <= 3 for token in draft.tokens)
        assert all(0 <= bucket < drafter.n_buckets for bucket in draft.buckets)


def test_closing_forgets_everything_and_does_no_harm_twice() -> None:
    drafter = SuffixDrafter()
    text = list(range(100, 140))
    propose(drafter, text)
    drafter.close()
    drafter.close()
    assert propose(drafter, [*text[:5]]) == NO_DRAFT


def test_closing_leaves_a_drafter_as_it_was_made() -> None:
    drafter = SuffixDrafter([range(500, 520)])
    for _ in range(2):
        assert propose(drafter, [1, 500, 501, 502], 2).tokens == (503, 504)
        drafter.close()
