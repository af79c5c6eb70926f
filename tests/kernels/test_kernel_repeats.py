"""Drafts that the device makes of the text: what followed the longest match, the latest of equals."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from attention_cases import DEVICE
from torch import Tensor

from runner.backends.native.device_text import DeviceText
from runner.kernels.repeats import LONGEST_MATCH, draft_repeats, draft_repeats_ref

Draft = Callable[[Tensor, Tensor, Tensor, Tensor, int], None]
HOW = pytest.mark.parametrize("how", [draft_repeats, draft_repeats_ref])


def drafted(
    how: Draft, text: list[int], n: int, *, earlier: list[int] | None = None, around: list[int] | None = None
) -> list[int]:
    """n tokens after `text`, before which an earlier one lies; around them is something that is not to be read."""
    earlier, around = earlier or [], around or [77] * 40
    ids = torch.tensor([*around, *earlier, *text, *around], dtype=torch.int32, device=DEVICE)[len(around) :]
    tokens = torch.full((16,), -5, dtype=torch.int64, device=DEVICE)
    begin, start = (torch.tensor([at], dtype=torch.int32, device=DEVICE) for at in (-len(earlier), len(text) - 1))
    how(ids if how is draft_repeats_ref else ids[len(earlier) :], begin, start, tokens, n)
    found: list[int] = tokens.tolist()
    assert found[0] == -5
    assert found[1 + n :] == [-5] * (15 - n)
    return found[1 : 1 + n]


@HOW
def test_what_followed_the_longest_match_is_drafted(how: Draft) -> None:
    #        the long one            a later, shorter one
    text = [1, 2, 3, 4, 50, 51, 52, 9, 9, 3, 4, 60, 61, 8, 8, 1, 2, 3, 4]
    assert drafted(how, text, 3) == [50, 51, 52]
    assert drafted(how, text, 7) == [50, 51, 52, 9, 9, 3, 4]


@HOW
def test_of_equal_matches_the_latest_counts(how: Draft) -> None:
    assert drafted(how, [5, 6, 10, 5, 6, 20, 5, 6, 30, 5, 6], 1) == [30]
    # Beyond the longest that is compared all are equal.
    run = list(range(LONGEST_MATCH))
    assert drafted(how, [99, *run, 10, *run, 20, 99, *run], 1) == [20]
    assert drafted(how, [99, *run[1:], 10, *run[1:], 20, 99, *run[1:]], 1) == [10]


@HOW
def test_a_match_that_reaches_into_the_end_goes_round(how: Draft) -> None:
    assert drafted(how, [0, 1, 2, 3, 1, 2, 3, 1], 7) == [2, 3, 1, 2, 3, 1, 2]
    assert drafted(how, [4, 4, 4], 3) == [4, 4, 4]


@HOW
def test_a_text_without_a_match_repeats_its_last_token(how: Draft) -> None:
    assert drafted(how, [1, 2, 3], 3) == [3, 3, 3]
    assert drafted(how, [6], 2) == [6, 6]
    assert drafted(how, [1, 2, 3], 2, around=[3, 3, 3, 3]) == [3, 3]


@HOW
def test_earlier_texts_are_looked_through_too(how: Draft) -> None:
    assert drafted(how, [8, 4, 5], 3, earlier=[1, 4, 5, 6]) == [6, 8, 4]
    assert drafted(how, [6], 2, earlier=[6, 7, 6]) == [6, 6]
    assert drafted(how, [4, 5, 9, 1, 4, 5], 2, earlier=[1, 4, 5, 6]) == [6, 4], "the longer match"
    assert drafted(how, [4, 5, 9, 4, 5], 1, earlier=[4, 5, 6]) == [9], "the later one"
    assert drafted(how, [2, 3], 2, earlier=[2, 3, -1]) == [0, 2], "no token was chosen there"


def drafted_in(how: Draft, text: DeviceText, held: list[int], n: int) -> list[int]:
    """n tokens after `held`, as a step drafts them of all that is known."""
    text.lose(0)
    text.fill(held)
    n_before = -int(text.begin)
    first = len(text._all) - len(text.ids) - n_before
    tokens = torch.zeros(16, dtype=torch.int64, device=DEVICE)
    start = torch.tensor([len(held) - 1], dtype=torch.int32, device=DEVICE)
    how(text._all[first:] if how is draft_repeats_ref else text.ids, text.begin, start, tokens, n)
    found: list[int] = tokens[1 : 1 + n].tolist()
    return found


@HOW
def test_texts_that_were_given_are_drafted_from(how: Draft) -> None:
    text = DeviceText(200, torch.device(DEVICE))
    given = [[1, 2, 3, 4, 5, 6], [11, 12, 13, 14, 15]]
    text.give(given)
    assert drafted_in(how, text, [50, 2, 3], 3) == [4, 5, 6]
    assert drafted_in(how, text, [50, 11], 3) == [12, 13, 14]
    assert drafted_in(how, text, [50, 14, 15], 3) == [0, 50, 14], "its end is no token"
    assert drafted_in(how, text, [2, 3, 90, 2, 3], 2) == [90, 2], "of equals the text itself"
    assert drafted_in(how, text, [3, 90, 1, 2, 3], 2) == [4, 5], "the longer match"
    text.put(0, torch.tensor([*range(100, 150), 2, 3, 70, 71], device=DEVICE))
    text.put(0, torch.tensor([80], device=DEVICE))
    assert drafted_in(how, text, [149, 2, 3], 2) == [70, 71], "an earlier text, which comes before them"
    assert drafted_in(how, text, [50, 2, 3], 2) == [4, 5], "of equals the text that was given"
    text.forget()
    assert drafted_in(how, text, [149, 2, 3], 2) == [4, 5]


@HOW
def test_nothing_matches_across_the_end_of_a_text(how: Draft) -> None:
    text = DeviceText(200, torch.device(DEVICE))
    # What comes before [7, 8], there and here, makes no longer match of it: the latest counts.
    text.give([[9], [7, 8, 20], [5, 7, 8, 30], [9]])
    assert drafted_in(how, text, [7, 8], 1) == [30]
    text.give([[7, 8, 20], [6, 7, 8, 30], [9]])
    assert drafted_in(how, text, [7, 8], 1) == [30]
    text.put(0, torch.tensor([*range(100, 140)], device=DEVICE))
    text.put(0, torch.tensor([80], device=DEVICE))
    assert drafted_in(how, text, [139, 7, 8], 1) == [30]


@pytest.mark.parametrize("length", [2, 15, 4095, 4096, 4097, 4098, 9000])
def test_the_kernel_drafts_what_its_reference_does(length: int) -> None:
    draw = random.Random(length)
    for vocabulary in (2, 4, 50):
        text = draw.choices(range(vocabulary), k=length)
        for earlier in ([], text[: length // 2][::-1]):
            found = [drafted(how, text, 15, earlier=earlier) for how in (draft_repeats, draft_repeats_ref)]
            assert found[0] == found[1]
