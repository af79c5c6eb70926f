"""Pastes that the terminal does not mark, at the chat's prompt: text there as marked ones are, not a message a line.

What was typed before the prompt was there comes in one piece, too, and is keys. It knows how prompt_toolkit reads and
not what is done with a paste.
"""

from __future__ import annotations

import select

from prompt_toolkit.input import Input

from runner.unmarked_paste import START, UnmarkedPastes


class PromptPastes:
    """Stands before the parser of `source`, where there is one."""

    def __init__(self, source: Input) -> None:
        self._source = source
        self._pastes = UnmarkedPastes()
        self._is_typed_ahead = False
        self._passed = ""  # the end of what came through: the mark of a paste may have begun there
        self._parser = getattr(source, "vt100_parser", None)
        if self._parser is not None:
            self._feed, self._parser.feed = self._parser.feed, self.feed

    def begin(self) -> None:
        """A prompt begins to read: what waits was typed ahead."""
        if self._parser is not None:
            self._is_typed_ahead = bool(select.select([self._source.fileno()], [], [], 0)[0])

    def feed(self, data: str) -> None:
        assert self._parser is not None
        seen = self._passed + data
        self._passed = seen[1 - len(START) :]
        is_keys, self._is_typed_ahead = self._is_typed_ahead, False
        is_marked = self._parser._in_bracketed_paste or START in seen
        self._feed(data if is_keys or is_marked else self._pastes.marked(data))
