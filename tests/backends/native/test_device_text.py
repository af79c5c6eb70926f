"""What is known of the text on the device: whatever was cut, computed anew or chosen elsewhere."""

from __future__ import annotations

import torch

from runner.backends.native.device_text import DeviceText
from runner.speculative.suffix import MOST_GIVEN, ending


def text_of(n_ctx: int = 200) -> DeviceText:
    return DeviceText(n_ctx, torch.device("cpu"))


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def earlier(text: DeviceText) -> list[int]:
    n_before = -int(text.begin)
    found: list[int] = text._all[: len(text._all) - len(text.ids)][-n_before:].tolist() if n_before else []
    return found


def test_a_prompt_in_chunks_and_what_steps_add_are_known() -> None:
    text = text_of()
    text.put(0, ids(1, 2, 3))
    text.put(3, ids(4, 5))
    text.ids[5:8] = ids(6, 7, 8).int()  # as steps do
    text.grow(5, 8)
    text.fill([1, 2, 3, 4, 5, 6, 7, 8])
    assert text.ids[:9].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 0]


def test_what_is_not_known_is_filled_in_and_nothing_else() -> None:
    text = text_of()
    text.put(0, ids(1, 2, 3))
    text.lose(3)
    text.ids[5] = 60
    text.grow(5, 6)  # behind a gap
    text.fill([1, 2, 3, 4, 5])
    assert text.ids[:6].tolist() == [1, 2, 3, 4, 5, 60]
    text.lose(1)
    text.fill([1, 20, 30])
    assert text.ids[:5].tolist() == [1, 20, 30, 4, 5]


def test_another_text_leaves_the_one_before_it_to_be_found() -> None:
    text = text_of()
    text.put(0, torch.arange(100))
    text.put(40, ids(7, 8))
    assert earlier(text) == list(range(8, 100)), "with what stood before the seam"
    assert text.ids[:42].tolist() == [*range(40), 7, 8]
    text.put(0, torch.arange(300, 303))
    assert earlier(text) == [*range(8, 100), *range(40), 7, 8]
    assert text.ids[:3].tolist() == [300, 301, 302]


def test_the_end_of_an_answer_that_was_cut_is_no_text() -> None:
    text = text_of()
    text.put(0, torch.arange(100))
    text.put(80, ids(7, 8))
    assert earlier(text) == []


def test_what_was_forgotten_is_not_found() -> None:
    text = text_of()
    text.put(0, torch.arange(100))
    text.put(0, torch.arange(50))
    text.forget()
    text.put(0, ids(1, 2))
    assert earlier(text) == []
    text.fill([1, 2, 3])
    assert text.ids[:3].tolist() == [1, 2, 3]


def test_of_long_texts_the_latest_are_kept() -> None:
    text = text_of(10_000)
    for number in range(3):
        text.put(0, torch.arange(10_000) + 10_000 * number)
    text.put(0, ids(1))
    kept = earlier(text)
    assert len(kept) == 1 << 14
    assert kept == list(range(30_000 - (1 << 14), 30_000))


def test_texts_that_were_given_lie_before_the_first_position_with_ends_of_their_own() -> None:
    text = text_of()
    text.put(0, torch.arange(100))
    places = text.ids.data_ptr(), text.begin.data_ptr()
    text.give([[1, 2, 3], [4, 5]])
    first, *rest = earlier(text)
    assert rest == [1, 2, 3, rest[3], 4, 5, rest[6]]
    assert len({first, rest[3], rest[6]}) == 3
    assert max(first, rest[3], rest[6]) < -1, "no token, and none that could not be chosen"
    assert (text.ids.data_ptr(), text.begin.data_ptr()) == places, "graphs read them"
    text.give([[], [7]])
    assert earlier(text)[2:-1] == [7]
    text.give([])
    assert earlier(text) == []


def test_what_was_given_stays_whatever_is_forgotten_and_earlier_texts_come_before_it() -> None:
    text = text_of()
    text.give([[1, 2, 3]])
    given = earlier(text)
    text.put(0, torch.arange(100, 150))
    text.put(0, torch.arange(200, 290))
    assert earlier(text) == [*range(100, 150), *given]
    text.put(0, ids(5))
    assert earlier(text) == [*range(100, 150), *range(200, 290), *given]
    text.forget()
    assert earlier(text) == given
    text.put(0, torch.arange(300, 340))
    text.put(0, ids(5))
    assert earlier(text) == [*range(300, 340), *given]


def test_as_much_as_may_be_given_has_room_beside_all_that_is_kept() -> None:
    text = text_of(10_000)
    texts = ending([range(50_000), range(60_000, 60_100)], MOST_GIVEN)
    text.give(texts)
    assert len(earlier(text)) == MOST_GIVEN + 1
    given = earlier(text)
    assert given[-101:-1] == list(range(60_000, 60_100))
    for number in range(3):
        text.put(0, torch.arange(10_000) + 10_000 * number)
    text.put(0, ids(1))
    kept = earlier(text)[: 1 << 14]
    assert kept == list(range(30_000 - (1 << 14), 30_000))
    assert earlier(text)[1 << 14 :] == given
    assert text.ids.data_ptr() % 16 == text._all.data_ptr() % 16 == 0
