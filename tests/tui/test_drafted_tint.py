"""Which characters of an answer are tinted: what a drafter had guessed, through Markdown, code, wraps and the end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from textual.pilot import Pilot
from transcript_stage import Stage, answer, question, shown, staged

from runner.events import TextDelta
from runner.tui.markdown.code import highlighted
from runner.tui.markdown.drafted import expanded
from runner.tui.markdown.lines import Line
from runner.tui.markdown.sections import DRAFTED as MARK
from runner.tui.markdown.sections import WRITTEN, Sections, sections_of
from runner.tui.markdown.styles import DRAFTED
from runner.tui.themes import ANSI, LIGHT
from runner.tui.turns.live import joined, marked
from runner.tui.turns.pieces import section_pieces


def marks_of(text: str, *guessed: str) -> str:
    """Marks of a text in which a drafter had guessed these pieces, each the next after the one before."""
    marks, place = "", 0
    for piece in guessed:
        start = text.index(piece, place)
        place = start + len(piece)
        marks = marks.ljust(start) + MARK * len(piece)
    return marks.ljust(len(text), WRITTEN)


def tinted(lines: Sequence[Line]) -> str:
    """What is tinted of rows, row by row."""
    return "|".join(
        line.content.plain[span.start : span.end]
        for line in lines
        for span in line.content.spans
        if span.style == DRAFTED
    )


def shown_tint(text: str, *guessed: str, width: int = 60) -> str:
    """What is tinted of an answer."""
    pieces = section_pieces(sections_of(text, marks_of(text, *guessed)), None)
    return "|".join(found for piece in pieces if (found := tinted(piece.lines(width))))


@pytest.mark.parametrize(
    ("text", "guessed", "expected"),
    [
        ("The epilogue adds bias.", (" epilogue", " bias"), " epilogue| bias"),
        ("The **epilogue** adds.", ("e **epilogue** a",), "e |epilogue| a"),
        ("A `code` and *that*.", ("`code`", "*that*"), "code|that"),
        ("a \\* b &amp; c", (" c",), " c"),
        ("See [the docs](https://example.org/docs) docs", (" docs",), " docs"),
        ("# Heading here", ("here",), "here"),
        ("> A quote\n> goes on", ("goes",), "goes"),
        ("- one\n- two words", ("two",), "two"),
        ("1. one\n1. two", ("two",), "two"),
        ("first\n\n   indented text", ("text",), "text"),
        ("\tfirst\n\n\tsecond", (), ""),
        ("| a | b |\n|---|---|\n| one | two |", ("two",), "two"),
        ("above\n| a | b |\n|---|---|\n| one | two |", ("b", "one"), "b|one"),
        ("```py\nx = 1\n\ty = 2\n```\nafter", ("x", "y = ", "after"), "x|y = |after"),
        ("```\nplain text\n```", ("text",), "text"),
        ("one two", (), ""),
    ],
)
def test_what_was_guessed_is_tinted_and_nothing_else(text: str, guessed: tuple[str, ...], expected: str) -> None:
    assert shown_tint(text, *guessed) == expected


def test_a_run_that_is_wrapped_is_tinted_in_both_rows() -> None:
    assert shown_tint("aaaa bbbb cccc dddd", "bbbb cccc", width=10) == "bbbb|cccc"


def test_a_long_line_that_is_cut_into_sections_keeps_its_tint() -> None:
    text = "word " * 900 + "here it ends"
    assert shown_tint(text, "here").replace("|", "") == "here"


def test_the_rows_of_a_table_that_goes_on_in_another_section_are_tinted() -> None:
    rows = "".join(f"| {number} | cell{number} |\n" for number in range(90))
    assert shown_tint("| a | b |\n|---|---|\n" + rows, "cell3", "cell88 ") == "cell3|cell88"


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_the_pieces_in_which_a_text_comes_make_no_difference(size: int) -> None:
    text = "Some **bold** words\n\n- an item\n\n```py\n\tx = 'y'\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n" * 3
    marks = "".join(MARK if number % 5 < 3 else WRITTEN for number in range(len(text)))
    streamed = Sections()
    for start in range(0, len(text), size):
        streamed.feed(text[start : start + size], marks[start : start + size])
        streamed.tail()
    assert streamed.done + streamed.tail() == sections_of(text, marks)


def test_sections_without_a_guess_say_nothing_of_it() -> None:
    assert all(section.drafted == "" for section in sections_of("a\n\n```\nb\n```\n", WRITTEN * 12))


def test_marks_follow_the_columns_of_tabs() -> None:
    code = "a\tb\n\tc"
    assert expanded("+ + ++", code, 4) == "+   + +++++"


def test_tabs_in_code_keep_the_tint_on_its_characters() -> None:
    content = highlighted("\tx = 1\n\ty", "", marks_of("\tx = 1\n\ty", "x", "y"))
    assert [content.plain[span.start : span.end] for span in content.spans] == ["x", "y"]


def test_joined_pieces_move_their_ranges() -> None:
    both = joined([TextDelta("The ", ((0, 3),)), TextDelta("cat", ((1, 3),))])
    assert both == [TextDelta("The cat", ((0, 3), (5, 7)))]


def test_characters_that_are_dropped_take_their_marks_with_them() -> None:
    assert marked(TextDelta("a\x1b[31mb\u202ec", ((0, 2), (6, 7)))) == ("a[31mbc", "+    + ")


# --- on the screen -------------------------------------------------------------------------------------------------


def grounds(stage: Stage, word: str) -> set[object]:
    """The colours behind a word, wherever it is on the screen."""
    transcript = stage.transcript
    found = set()
    for y in range(transcript.size.height):
        strip = transcript.render_line(y)
        if (x := strip.text.find(word)) >= 0:
            found |= {segment.style.bgcolor for segment in strip.crop(x, x + len(word)) if segment.style}
    return found


def colours(stage: Stage, word: str) -> set[object]:
    """The colours of the letters of a word."""
    strip = next(strip for y in range(24) if word in (strip := stage.transcript.render_line(y)).text)
    x = strip.text.index(word)
    return {part.style.color for part in strip.crop(x, x + len(word)) if part.style}


async def streamed(pilot: Pilot[None], stage: Stage) -> None:
    stage.transcript.ask(question())
    stage.transcript.begin_answer("demo")
    stage.transcript.take(TextDelta("alone guessed `inline` here", ((6, 22),)))
    await shown(pilot)


def test_a_guess_has_a_ground_of_its_own_while_it_streams_and_after() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        await streamed(pilot, stage)
        assert grounds(stage, "guessed") != grounds(stage, "alone") == grounds(stage, "here")
        assert colours(stage, "guessed") == colours(stage, "alone"), "a quiet tint leaves the letters as they are"
        stage.transcript.end_answer(answer("alone guessed `inline` here"), None)
        await pilot.pause()
        assert grounds(stage, "guessed") != grounds(stage, "alone")

    staged(body)


def test_a_kept_answer_has_no_tint() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        await streamed(pilot, stage)
        stage.transcript.end_answer(answer("alone guessed `inline` here"), None)
        stage.transcript.show([question(), answer("alone guessed `inline` here")])
        await pilot.pause()
        assert grounds(stage, "guessed") == grounds(stage, "alone")

    staged(body)


def test_the_tint_goes_and_comes_at_once() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        await streamed(pilot, stage)
        stage.transcript.set_class(True, "-plain")
        await pilot.pause()
        assert grounds(stage, "guessed") == grounds(stage, "alone")
        stage.transcript.set_class(False, "-plain")
        await pilot.pause()
        assert grounds(stage, "guessed") != grounds(stage, "alone")

    staged(body)


def test_every_theme_tells_a_guess_apart_and_ansi_does_it_without_a_ground() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        await streamed(pilot, stage)
        stage.theme = LIGHT
        await pilot.pause()
        assert grounds(stage, "guessed") != grounds(stage, "alone")
        stage.theme = ANSI
        await pilot.pause()
        assert grounds(stage, "guessed") == grounds(stage, "alone")
        row = next(strip for y in range(24) if "guessed" in (strip := stage.transcript.render_line(y)).text)
        assert {str(part.style.color.name) for part in row.crop(8, 15) if part.style and part.style.color} == {
            "color(6)"
        }

    staged(body)
