"""What the terminal sends: a paste is text, of which no escape sequence becomes keys; an answer of its is no key;
Alt+Enter is a key of its own; Esc is one when nothing follows at once; what is typed is text in every script.

Textual's parser reads an ESC within a bracketed paste as a key's beginning, and gives what follows as keys: a line end
there would send a message that nobody has read. Some terminals hand such text through. Others do not mark pastes at
all: unmarked_paste.py tells them.

Esc sends what Alt and a key, and every escape sequence, begin with: only time tells them apart, where a terminal has no
protocol for it. Textual takes 0.1 s and looks after the next key has come, so that Esc and a key soon after it are Alt
and that key. Programs send the bytes of one key together, also through ssh and tmux: what comes in another piece, and
not at once, is another key, unless it is whole the rest of a sequence, which no hand types and a slow line may cut off.

For Textual's fields a key is text when Python calls it printable: not the ideographic space, the space that does not
break, the joiners of Persian and of emoji, nor emoji younger than Python's tables. As a paste they are text, too. It
knows nothing of the prompt.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from textual import constants
from textual._xterm_parser import XTermParser
from textual.drivers import linux_driver
from textual.events import Key, Paste
from textual.keys import Keys
from textual.message import Message

from runner.safe_text import safe_text
from runner.tui.pacing import ANSWER
from runner.unmarked_paste import END, START, UnmarkedPastes

_ESC: Final = "\x1b"
_ESC_DELAY_S: Final = constants.ESCAPE_DELAY if "ESCDELAY" in os.environ else 0.025  # the fastest hands take longer
_REST: Final = re.compile(r"\[[0-9;:<?]*[A-Za-z~]")  # of an escape sequence, without the Esc
_ALT_ENTER: Final = "\x1b\r"  # Enter alone for Textual
_FIRST_TEXT: Final = "\xa0"  # what is before and not printable are controls


class PasteParser(XTermParser):
    """Textual's parser of what the terminal sends, for which a paste has no ESC but the one that ends it.

    answered: called for each answer of the terminal to pacing.ASK.
    """

    def __init__(self, debug: bool = False, answered: Callable[[], object] | None = None) -> None:
        super().__init__(debug)
        self._answered = answered
        self._is_esc_last = False
        self._is_pasting = False
        self._unmarked = UnmarkedPastes()
        self._passed = ""  # the end of what came through: the marker of a paste may have begun there
        self._held = ""  # of a paste: may be the beginning of the marker of its end

    def feed(self, data: str) -> Iterable[Message]:
        if self._is_esc_last and not _REST.match(data):
            yield from self.tick()  # it may be Esc by now, before what comes is taken for the rest of it
        cleaned = self._cleaned(self._with_marks(self._without_answers(data))) if data else data
        if data and not cleaned:
            return
        yield from map(_as_text, super().feed(cleaned))
        self._is_esc_last = cleaned.endswith(_ESC)
        if self._is_esc_last and self._timeout_time is not None:
            self._timeout_time += _ESC_DELAY_S - constants.ESCAPE_DELAY

    def _with_marks(self, data: str) -> str:
        """Lines that are a paste without its marks, in them."""
        return data if self._is_pasting or START in self._passed + data else self._unmarked.marked(data)

    def _without_answers(self, data: str) -> str:
        """Textual takes Alt and a letter with an ESC behind it, as an answer's that comes at any time, for a "^"."""
        if self._answered is not None:
            for _ in range(data.count(ANSWER)):
                self._answered()
        return data.replace(ANSWER, "")

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[Key]:
        if sequence == ANSWER:  # it came in pieces
            self._without_answers(sequence)
            return (Key(Keys.Ignore, sequence),)
        if sequence == _ALT_ENTER:
            return (Key("alt+enter", None),)
        return super()._sequence_to_key_events(sequence, alt)

    def _cleaned(self, data: str) -> str:
        """The data without the ESC of pastes; of a paste, what may be the beginning of its end is held back."""
        data, self._held = self._held + data, ""
        parts: list[str] = []
        while data:
            part, data = self._pasted(data) if self._is_pasting else self._typed(data)
            parts.append(part)
        return "".join(parts)

    def _typed(self, data: str) -> tuple[str, str]:
        """What comes through up to the beginning of a paste, and what follows. Nothing of it may wait: it is keys."""
        seen = self._passed + data
        place = seen.find(START)
        if place < 0:
            self._passed = seen[1 - len(START) :]
            return data, ""
        self._is_pasting = True
        end = place + len(START) - len(self._passed)
        self._passed = ""
        return data[:end], data[end:]

    def _pasted(self, data: str) -> tuple[str, str]:
        """What comes through up to the end of a paste, and what follows."""
        text, marker, rest = data.partition(END)
        if not marker:
            text, self._held = _split_held(text)
        self._is_pasting = not marker
        return text.replace(_ESC, "") + marker, rest


def _as_text(event: Message) -> Message:
    """A key that is a character of some script as the paste of it, where a field would not take the key; a paste
    without what a terminal acts on: fields show what they hold."""
    if isinstance(event, Paste):
        return Paste(safe_text(event.text.replace("\r\n", "\n").replace("\r", "\n")))
    if not isinstance(event, Key) or event.is_printable or (event.character or "") < _FIRST_TEXT:
        return event
    return Paste(safe_text(event.character or ""))


def _split_held(text: str) -> tuple[str, str]:
    """A text, and what at its end may be the beginning of the end of the paste."""
    place = text.rfind(_ESC, -len(END))
    return (text[:place], text[place:]) if place >= 0 and END.startswith(text[place:]) else (text, "")


def install(answered: Callable[[], object] | None = None) -> None:
    """Have the terminal's driver use this parser: it makes its own, and takes none."""
    linux_driver.XTermParser = partial(PasteParser, answered=answered)  # type: ignore[assignment, attr-defined]
