"""A paste with escape sequences in it is text, in however many pieces it comes."""

from __future__ import annotations

import pytest
from textual.drivers import linux_driver
from textual.events import Key, Paste
from textual.message import Message

from runner.tui.pacing import ANSWER
from runner.tui.pasting import PasteParser, install

PASTE = "\x1b[200~one \x1b[31m two\rthree\x1bOQ\x1b[201\x1b \x9b4mfour\u202e\r\n\x1b[201~x\x1b[A"


def heard(size: int) -> list[Message]:
    parser = PasteParser()
    pieces = [PASTE[start : start + size] for start in range(0, len(PASTE), size)]
    return [event for piece in pieces for event in parser.feed(piece)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 100])
def test_no_key_comes_out_of_a_paste_and_keys_after_it_do(size: int) -> None:
    events = heard(size)
    assert [event.text for event in events if isinstance(event, Paste)] == ["one [31m two\nthreeOQ[201 4mfour\n"]
    assert [event.key for event in events if isinstance(event, Key)] == ["x", "up"]


@pytest.mark.parametrize(
    ("piece", "pasted"),
    [
        ("first line\rsecond line", "first line\nsecond line"),
        ("first line\rsecond line\rthird\r", "first line\nsecond line\nthird\n"),
        ("what a program sends at once\r/exit and so on\r", ""),
        ("what a hand typed\rand n", ""),
        ("erste\r\n\tzweite Zeile ü", "erste\n\tzweite Zeile ü"),
        ("one\ntwo\nthree\nfour" + ANSWER, "one\ntwo\nthree\nfour"),
        ("what a hand typed while nobody read\r", ""),
        ("yes\rand then", ""),
        ("first line\rsecond\x01 line", ""),
        ("first line\rsecond\x1b[A line", ""),
    ],
)
def test_lines_that_come_in_one_piece_are_a_paste_that_the_terminal_did_not_mark(
    piece: str, pasted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.unmarked_paste._PIECE_S", -1.0)  # what follows is typed, however soon it comes
    parser = PasteParser()
    events = [*parser.feed(piece), *parser.feed("\r")]
    assert "".join(event.text for event in events if isinstance(event, Paste)) == pasted
    enters = sum(isinstance(event, Key) and event.key == "enter" for event in events)
    assert enters == (1 if pasted else 1 + piece.count("\r"))


def test_of_such_a_paste_all_pieces_are_text_and_what_is_typed_later_is_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("runner.unmarked_paste.monotonic", lambda: now)
    parser = PasteParser()
    events = [event for piece in ("alpha\rbeta\rgamma\rd", "\r", "}\rx") for event in parser.feed(piece)]
    assert "".join(event.text for event in events if isinstance(event, Paste)) == "alpha\nbeta\ngamma\nd\n}\nx"
    assert not any(isinstance(event, Key) for event in events)
    now = 0.04
    assert not list(parser.feed(ANSWER))  # which the terminal gives at any time
    now = 0.08
    assert [event.key for event in parser.feed("\r") if isinstance(event, Key)] == ["enter"]


def test_an_esc_before_such_a_paste_makes_no_keys_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = PasteParser()
    list(parser.feed("\x1b"))
    monkeypatch.setattr(parser, "_timeout_time", 0.0)
    assert [event.key for event in parser.tick() if isinstance(event, Key)] == ["escape"]
    events = list(parser.feed("first line\rsecond line\rthird"))
    assert [event.text for event in events if isinstance(event, Paste)] == ["first line\nsecond line\nthird"]
    assert not any(isinstance(event, Key) for event in events)


@pytest.mark.parametrize("cut", range(1, 6))
def test_lines_behind_a_mark_that_came_in_two_pieces_are_of_the_marked_paste(cut: int) -> None:
    marked, end = "\x1b[200~first line\rsecond line\rthird", "\x1b[201~"
    parser = PasteParser()
    events = [event for piece in (marked[:cut], marked[cut:], " line" + end) for event in parser.feed(piece)]
    assert [event.text for event in events if isinstance(event, Paste)] == ["first line\nsecond line\nthird line"]
    assert not any(isinstance(event, Key) for event in events)


def test_the_driver_of_the_terminal_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux_driver, "XTermParser", object)
    install()
    assert isinstance(linux_driver.XTermParser(debug=False), PasteParser)


def test_an_answer_of_the_terminal_is_told_and_is_no_key() -> None:
    told: list[str] = []
    parser = PasteParser(answered=lambda: told.append("answered"))
    events = [event for piece in ("x\x1b[", "0n\x1b[A", ANSWER) for event in parser.feed(piece)]
    assert [event.key for event in events if isinstance(event, Key)] == ["x", "up"]
    assert len(told) == 2


def test_an_answer_behind_alt_and_a_letter_makes_no_text_of_it() -> None:
    parser = PasteParser(answered=lambda: None)
    events = [event for piece in ("\x1bk", ANSWER, "") for event in parser.feed(piece)]
    assert [event.key for event in events if isinstance(event, Key)] == ["alt+k"]


@pytest.mark.parametrize(
    "text", ["日本\u3000語", "10\xa0€", "می\u200cخواهم", "👩\u200d👩", "new: \U0001fae8 \U0001faea"]
)
def test_every_script_can_be_typed_also_what_python_calls_not_printable(text: str) -> None:
    parser = PasteParser()
    events = [event for character in text for event in parser.feed(character)]
    assert [event.text if isinstance(event, Paste) else event.character for event in events] == list(text)
    assert all(isinstance(event, Paste) or event.is_printable for event in events)
    assert [event.key for event in parser.feed("\x7f\t\x01")] == ["backspace", "tab", "ctrl+a"]


@pytest.mark.parametrize(("after_s", "keys"), [(0.03, ["escape", "x"]), (0.01, ["alt+x"])])
def test_esc_and_a_key_soon_after_it_are_two_keys(
    monkeypatch: pytest.MonkeyPatch, after_s: float, keys: list[str]
) -> None:
    now = 5.0
    monkeypatch.setattr("textual._parser.get_time", lambda: now)
    parser = PasteParser()
    events = [*parser.feed("\x1b")]
    now += after_s
    events += [*parser.feed("x"), *parser.feed("")]
    assert [event.key for event in events if isinstance(event, Key)] == keys


def test_a_sequence_that_comes_in_pieces_is_one_key_also_on_a_slow_line(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5.0
    monkeypatch.setattr("textual._parser.get_time", lambda: now)
    parser = PasteParser()
    events = [*parser.feed("\x1b[")]
    now += 0.15
    events += parser.feed("A")
    assert [event.key for event in events if isinstance(event, Key)] == ["up"]


@pytest.mark.parametrize("pasted", ["a\rb", ""])
def test_a_sequence_whose_esc_comes_before_it_is_one_key_also_on_a_slow_line(
    monkeypatch: pytest.MonkeyPatch, pasted: str
) -> None:
    now = 5.0
    monkeypatch.setattr("textual._parser.get_time", lambda: now)
    parser = PasteParser()
    events = [*parser.feed("\x1b")]
    now += 0.09
    events += parser.feed(f"[200~{pasted}\x1b[201~" if pasted else "[A")
    assert [event.text if isinstance(event, Paste) else event.key for event in events] == [
        pasted.replace("\r", "\n") or "up"
    ]


def test_alt_and_enter_are_no_enter() -> None:
    events = list(PasteParser().feed("a\x1b\rb"))
    assert [event.key for event in events if isinstance(event, Key)] == ["a", "alt+enter", "b"]
