"""The live status line on an emulated terminal: it never changes what the answer looks like."""

from __future__ import annotations

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.cli.live import Live, column_after

ALPHABET = "abc defg,éß\n\t"  # no wide letters: the emulator cuts one in half where terminals wrap it


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 0.03
        return self.now


class Emulated:
    """A terminal, and a Live on it."""

    def __init__(self, columns: int, rows: int) -> None:
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.Stream(self.screen)
        self.screen.set_mode(pyte.modes.LNM)
        self.statuses = 0

        def write(sequence: str) -> None:
            self.statuses += "STATUS" in sequence
            self.stream.feed(sequence)

        self.live = Live(write=write, size=lambda: (self.screen.columns, self.screen.lines), clock=Clock())

    def answer(self, pieces: list[str]) -> None:
        with self.live as live:
            live.show("STATUS before")
            for piece in pieces:
                live.before_writing(piece)
                self.stream.feed(piece)
                live.wrote(piece)
                live.show("STATUS " * 20)

    @property
    def shown(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]


def plainly(pieces: list[str], columns: int, rows: int) -> list[str]:
    """What the screen shows without a status line."""
    screen = pyte.Screen(columns, rows)
    screen.set_mode(pyte.modes.LNM)
    pyte.Stream(screen).feed("".join(pieces))
    return [line.rstrip() for line in screen.display]


@settings(max_examples=150)
@given(
    st.lists(st.text(alphabet=ALPHABET, min_size=1, max_size=50), max_size=30),
    st.sampled_from([(80, 24), (20, 4), (33, 9)]),
)
def test_the_answer_looks_as_it_would_without_it(pieces: list[str], size: tuple[int, int]) -> None:
    terminal = Emulated(*size)
    terminal.answer(pieces)
    expected, shown = plainly(pieces, *size), terminal.shown
    # The line below the cursor makes the screen scroll one line earlier: the rest must be the same.
    if shown != expected:
        assert shown == [*expected[1:], ""]
    assert terminal.statuses > 0


def test_it_is_below_the_text_while_the_answer_streams() -> None:
    terminal = Emulated(40, 6)
    with terminal.live as live:
        for number in range(20):
            text = f"line {number}\nbegun"
            live.before_writing(text)
            terminal.stream.feed(text)
            live.wrote(text)
            live.show("STATUS")
            assert [line for line in terminal.shown if line][-2:] == ["begun", "STATUS"]
            assert terminal.screen.cursor.x == 5
            live.before_writing("\n")
            terminal.stream.feed("\n")
            live.wrote("\n")
    assert "STATUS" not in terminal.shown


def test_a_status_that_is_too_long_stays_one_line_also_when_the_terminal_shrank_unnoticed() -> None:
    terminal = Emulated(80, 6)
    with terminal.live as live:
        live.show("before")
        terminal.screen.resize(6, 30)
        live._size = lambda: (80, 6)  # the terminal has not told us yet
        terminal.stream.feed("text")
        live.wrote("text")
        live.clear()
        live.show("S" * 200)
        assert sum("S" in line for line in terminal.shown) == 1
    assert terminal.shown[0] == "text"
    assert not any("S" in line for line in terminal.shown)


@pytest.mark.parametrize("size", [(0, 0), (19, 24), (80, 3)])
def test_nothing_is_written_where_there_is_no_room(size: tuple[int, int]) -> None:
    written: list[str] = []
    with Live(write=written.append, size=lambda: size) as live:
        live.before_writing("x")
        live.wrote("x")
        live.show("STATUS")
    assert written == []


def test_nothing_is_written_when_it_is_not_wanted() -> None:
    written: list[str] = []
    with Live(is_wanted=False, write=written.append, size=lambda: (80, 24)) as live:
        live.before_writing("x")
        live.wrote("x")
        live.show("STATUS")
    assert written == []


def test_an_error_takes_the_line_away() -> None:
    terminal = Emulated(80, 24)
    with pytest.raises(ZeroDivisionError), terminal.live as live:
        live.show("STATUS")
        raise ZeroDivisionError
    assert "STATUS" not in "".join(terminal.shown)


@pytest.mark.parametrize(
    ("text", "start", "columns", "column"),
    [
        ("abc", 0, 10, 3),
        ("abc", 8, 10, 1),
        ("ab", 8, 10, 10),
        ("漢", 9, 10, 2),
        ("\t", 3, 10, 8),
        ("\t", 9, 10, 9),
        ("", 4, 10, 4),
    ],
)
def test_columns_are_counted_as_terminals_do(text: str, start: int, columns: int, column: int) -> None:
    assert column_after(text, start, columns) == column
