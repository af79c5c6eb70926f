"""Where rows of a transcript are: the window shows what it should, and what is seen stays when other things change."""

from __future__ import annotations

import pytest
from transcript_stage import answer, chat, question

from runner.transcript import Turn
from runner.tui.turns.document import Document
from runner.tui.turns.entries import Answer, Entry, Look, entry_of
from runner.tui.turns.pieces import about_rows, plain_parts

HEIGHT = 30


def document_of(turns: list[Turn], width: int = 70) -> Document:
    document = Document(lambda _: Look(now=0.0, clock=0.0))
    document.width = width
    document.entries = [entry_of(number, number, turn) for number, turn in enumerate(turns)]
    return document


def texts(document: Document, top: int) -> list[str]:
    return [row.line.content.plain for row in document.rows(top, HEIGHT)]


def all_rows(document: Document) -> list[str]:
    """Every row, with everything laid out and measured."""
    rows = []
    for entry in document.entries:
        for laid in entry.lay(Look(now=0.0, clock=0.0)):
            rows += [line.content.plain for line in laid.lines(document.width)]
    return rows


def test_the_window_at_the_end_shows_the_last_rows_of_an_unmeasured_chat() -> None:
    document = document_of(chat(100))
    top = document.settle(0, HEIGHT, at_end=True)
    assert texts(document, top) == all_rows(document_of(chat(100)))[-HEIGHT:]
    assert sum(entry.laid is not None for entry in document.entries) < 10


def test_scrolling_up_row_by_row_shows_every_row_once_and_in_order() -> None:
    document, expected = document_of(chat(24)), all_rows(document_of(chat(24)))
    top = document.settle(0, HEIGHT, at_end=True)
    seen = texts(document, top)
    while top > 0:
        before = texts(document, top)
        top = document.settle(top - 3, HEIGHT)
        rows = texts(document, top)
        fresh = next(n for n in range(4) if rows[n:] == before[: HEIGHT - n])
        seen = rows[:fresh] + seen
    assert seen == expected


def test_what_is_above_the_window_is_measured_without_moving_what_it_shows() -> None:
    document = document_of(chat(60))
    place = document.height // 2
    top = document.settle(place, HEIGHT)
    shown = texts(document, top)
    again = document.settle(top, HEIGHT)
    assert (again, texts(document, again)) == (top, shown)


def test_entries_far_from_the_window_give_their_pieces_back_and_keep_their_height() -> None:
    document = document_of(chat(400))
    for top in range(0, document.height, 400):
        document.settle(top, HEIGHT)
    laid = [entry for entry in document.entries if entry.laid is not None]
    assert len(laid) < 80
    height = document.height
    document.settle(0, HEIGHT)
    assert abs(document.height - height) < 0.02 * height


def test_a_place_is_found_again_at_another_width() -> None:
    document = document_of(chat(40))
    top = document.settle(300, HEIGHT)
    first = texts(document, top)[2]
    place = document.place_of(top)
    document.width = 33
    top = document.settle(document.row_at(place), HEIGHT)
    assert first.startswith("you")
    assert first in texts(document, top)[:4]
    assert texts(document, top)[3] == "Question 7"


def test_an_answer_that_grows_does_not_move_the_window_above_its_end() -> None:
    turns = chat(4)
    document = document_of(turns)
    top = document.settle(20, HEIGHT)
    before = texts(document, top)
    entry = document.entries[-1]
    assert isinstance(entry, Answer)
    entry.end(answer(turns[-1].content + "more\n\n" * 50), None, 0.0)
    entry._sections = None  # as when another turn comes in its place
    document.lay(entry)
    top = document.settle(top, HEIGHT)
    assert texts(document, top) == before


def test_text_between_two_rows_is_what_stands_there() -> None:
    document = document_of([question("one two"), answer("three\n\nfour")])
    top = document.settle(0, HEIGHT)
    rows = document.rows(top, HEIGHT)
    start = next(row.id for row in rows if "one" in row.line.content.plain)
    end = next(row.id for row in rows if "four" in row.line.content.plain)
    between = document.text_between((start, 4), (end, 2))
    assert between.splitlines()[0] == "two"
    assert between.splitlines()[-2:] == ["", "fo"]
    assert "three" in between
    assert "four" in document.text_between(None, None)


@pytest.mark.parametrize("width", [20, 70, 150])
def test_guessed_heights_are_near_enough_for_a_scroll_bar(width: int) -> None:
    document = document_of(chat(60), width)
    guessed = document.height
    assert 0.5 < guessed / len(all_rows(document_of(chat(60), width))) < 2


def test_the_parts_of_a_text_that_grows_stay_as_they_are() -> None:
    text = "".join(f"line {number}\n" for number in range(500)) + "x" * 9000
    parts = plain_parts(text)
    assert "".join(parts).replace("\n", "") == text.replace("\n", "")
    assert plain_parts(text + "more\nand more")[: len(parts) - 1] == parts[:-1]
    assert max(about_rows(part, 80) for part in parts) < 120


def test_an_entry_shows_the_same_however_its_pieces_were_made() -> None:
    entry: Entry = entry_of(1, 1, answer("# a\ntext\n\n- b\n"))
    look = Look(now=0.0, clock=0.0)
    first = entry.lay(look)
    assert all(before is after for before, after in zip(first, entry.lay(look), strict=True))
