"""Pastes of terminals that do not mark them: lines that come in one piece, and what comes right behind them, since
hands type key by key. If a slow line gathers what was typed this may be taken for one, and nothing of it is lost; two
lines that end with Enter are lines, as a program sends them, and so is one with a few keys behind it.

It knows no front end, and not what is done with a paste.
"""

from __future__ import annotations

import re
from time import monotonic
from typing import Final

START: Final = "\x1b[200~"
END: Final = "\x1b[201~"
_TEXT: Final = re.compile(r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*")
_BREAK: Final = re.compile(r"\r\n?|\n")
_MIN_CHARACTERS, _MIN_LAST = 16, 8  # of all, and behind the only break: fewer may be keys that came late
_PIECE_S: Final = 0.05  # from one piece of a paste to the next; no hand is so fast


class UnmarkedPastes:
    """Gives the pastes in what a terminal sends the marks that they lack."""

    def __init__(self) -> None:
        self._pasted_at = -_PIECE_S  # when lines last came that no mark said were a paste

    def marked(self, data: str) -> str:
        """`data`, which no marked paste is a part of, in marks where it is a paste or one's next piece."""
        is_text = data and _TEXT.fullmatch(data)
        if not is_text or (not _is_pasted(data) and monotonic() - self._pasted_at > _PIECE_S):
            return data
        self._pasted_at = monotonic()
        return f"{START}{data}{END}"


def _is_pasted(text: str) -> bool:
    """Whether it is several lines, and more of them than a slow line gathers of a hand's keys."""
    lines = _BREAK.split(text.strip())
    return len(text) >= _MIN_CHARACTERS and (len(lines) > 2 or (len(lines) == 2 and _is_open(text, lines[1])))


def _is_open(text: str, last: str) -> bool:
    """Whether it stops in a line of its own that was not ended."""
    return len(last) >= _MIN_LAST and not text.endswith(("\r", "\n"))
