"""Cuts Markdown into sections that are parsed and shown on their own, while the text is still arriving.

A section is a paragraph, a heading, one item of a list, a table or a part of a code block; none is longer than a few
screens, whatever the text is: that bounds what one more token costs. It knows nothing of what Markdown looks like.
"""

from __future__ import annotations

import re
from copy import copy
from dataclasses import dataclass, field
from typing import Literal

LIMIT = 2000  # characters of a section
MAX_CODE_LINES = 60
_GOOD_CODE_LINES = 30  # from here on, code is cut where it looks like a seam
MAX_ROWS = 40  # of a table
MAX_INDENT = 24

_ITEM = re.compile(r"( *)(?:[-*+]|(\d{1,9})[.)])(?: +|$)")
_FENCE = re.compile(r"((?: *(?:[-*+]|\d{1,9}[.)]) +)?)( *)(`{3,}|~{3,})(.*)$")
_HEADING = re.compile(r" {0,3}#{1,6}(?: |$)")
_RULE = re.compile(r" {0,3}(?:(?:- *){3,}|(?:\* *){3,}|(?:_ *){3,})$")
_UNDERLINE = re.compile(r" {0,3}(?:-+|=+) *$")
DRAFTED, WRITTEN = "+", " "  # marks of a character: a drafter had guessed it, or the model alone wrote it
_DELIMITER = re.compile(r" *\|?(?: *:?-+:? *\|)+(?: *:?-+:? *)?$| *\|? *:?-+:? *(?:\| *:?-+:? *)+\|?$")


@dataclass(frozen=True)
class Section:
    """kind "prose": `text` is Markdown; "code": the inside of a fence, or a part of it, with its line ends.

    indent: columns to its left. has_gap: a blank row stands before it. fence: the number of the code block in the
    text. is_more: it goes on where the section before ended. in_list: it belongs to an item of a list.
    drafted: DRAFTED in the place of each character of `text` that a drafter had guessed; "" when none was.
    """

    kind: Literal["prose", "code"]
    text: str
    indent: int = 0
    has_gap: bool = False
    language: str = ""
    fence: int = -1
    is_more: bool = False
    in_list: bool = False
    drafted: str = ""


@dataclass(frozen=True)
class _Fence:
    mark: str
    indent: int
    language: str
    number: int

    def is_closed_by(self, line: str) -> bool:
        shown = line.strip()
        return len(shown) >= len(self.mark) and not shown.strip(self.mark[0])


@dataclass
class Sections:
    """Takes safe text in any pieces. `done`: what can no more change; `tail()`: how the rest looks by now.

    n_fences: code blocks that were opened so far. marks: of all characters that were fed.
    """

    done: list[Section] = field(default_factory=list)
    marks: str = ""
    _partial: str = ""
    _is_mid_line: bool = False  # the beginning of this line is in a section already
    _lines: list[str] = field(default_factory=list)
    _marks: list[str] = field(default_factory=list)  # of the characters of these lines
    _n_taken: int = 0  # characters of what was fed that are in a section, or left out
    _size: int = 0
    _indent: int = 0
    _has_gap: bool = False
    _is_more: bool = False
    _in_list: bool = False
    _fence: _Fence | None = None
    n_fences: int = 0
    _table: tuple[str, str] | None = None
    _numbers: dict[int, int] = field(default_factory=dict)  # of the last item, by how far in it is

    def feed(self, text: str, drafted: str = "") -> None:
        """drafted: a mark for each character of `text`, or nothing."""
        self._partial += text
        self.marks += drafted or WRITTEN * len(text)
        *lines, self._partial = self._partial.split("\n")
        for line in lines:
            self._whole_line(self._cut(line))
        self._partial = self._cut(self._partial)

    def tail(self) -> list[Section]:
        """The sections after those that are done, as if the text ended here."""
        if not (self._partial or self._lines or self._fence):
            return []
        guess = copy(self)
        guess.done, guess._lines, guess._marks = [], list(self._lines), list(self._marks)
        guess._numbers = dict(self._numbers)
        if self._partial:
            guess._whole_line(self._partial)
        guess._end()
        return guess.done

    # --- lines -----------------------------------------------------------------------------------------------------

    def _cut(self, line: str) -> str:
        """Take what is too long for one section from the front of a line; returns the rest."""
        while len(line) >= LIMIT:
            end = LIMIT if self._fence else _good_end(line[:LIMIT])
            item = None if self._fence or self._is_mid_line else _ITEM.match(line)
            self._take(line[:end])
            self._end(is_whole=False)
            self._is_more = self._is_mid_line = True
            self._indent += len(item[0]) - len(item[1]) if item else 0
            again = "> " if line.startswith(">") and not self._fence else ""
            self._n_taken -= len(again)
            line = again + line[end:]
        return line

    def _whole_line(self, line: str) -> None:
        if not self._is_mid_line or line:
            self._take(line)
        self._n_taken += 1  # the end of the line
        self._is_mid_line = False
        if self._size > LIMIT and not self._table:
            self._end()
            self._is_more = True

    def _take(self, line: str) -> None:
        self._n_taken += len(line)
        if self._fence:
            self._take_code(line, self._fence)
        elif self._is_mid_line:
            self._add(line)
        elif not line.strip():
            self._end()
            self._has_gap = True
        else:
            self._take_prose(line.replace("\t", "    "))

    def _take_prose(self, line: str) -> None:
        if (found := _FENCE.match(line)) and not (found[3][0] == "`" and "`" in found[4]):
            self._open_fence(found[1], found[2], found[3], found[4])
        elif self._table and "|" in line:
            self._add_row(line, self._table)
        elif self._table:
            self._end()
            self._take_prose(line)
        elif _RULE.match(line) and not (self._lines and _UNDERLINE.match(line)):
            self._alone(line)
        elif (item := _ITEM.match(line)) and (self._in_list or len(item[1]) < 4):
            self._end()
            self._in_list = True
            self._begin(self._numbered(line, item))
        elif _HEADING.match(line):
            self._alone(line)
        elif self._lines and "|" in self._lines[-1] and "|" in line and _DELIMITER.match(line):
            self._begin_table(line)
        else:
            self._begin(line)

    def _begin(self, line: str) -> None:
        """Add a line to the section, which begins with it if there is none; it is as far in as its first line."""
        if not self._lines:
            indent = len(line) - len(line.lstrip(" "))
            self._in_list = self._in_list and (indent > 0 or bool(_ITEM.match(line)))
            self._numbers = self._numbers if self._in_list else {}
            is_code = indent >= 4 and not self._in_list
            self._indent = 0 if is_code else indent
        self._add(line)

    def _numbered(self, line: str, item: re.Match[str]) -> str:
        """The item with its number: models like to write "1." before all of them, which Markdown allows."""
        depth = len(item[1])
        self._numbers = {place: last for place, last in self._numbers.items() if place <= depth}
        if item[2] is None:
            self._numbers.pop(depth, None)
            return line
        number = max(int(item[2]), self._numbers.get(depth, -1) + 1)
        self._numbers[depth] = number
        return f"{item[1]}{number}{line[item.end(2) :]}"

    def _alone(self, line: str) -> None:
        self._end()
        self._in_list = False
        self._begin(line.lstrip(" "))
        self._end()

    def _add(self, line: str, marks: str | None = None) -> None:
        """marks: of a line that is not the one that is being taken."""
        room = len(line) - len(line.lstrip(" "))
        line = line[min(room, self._indent) :]
        if marks is None:  # whatever a line loses or gets is at its beginning: the end is where it was
            marks = self.marks[max(0, self._n_taken - len(line)) : self._n_taken]
        self._lines.append(line)
        self._marks.append(marks[-len(line) :].rjust(len(line)) if line else "")
        self._size += len(line) + 1

    # --- tables ----------------------------------------------------------------------------------------------------

    def _begin_table(self, delimiter: str) -> None:
        head, marks = self._lines.pop(), self._marks.pop()
        indent = self._indent
        if self._lines:
            self._end()
        self._lines, self._marks, self._size, self._indent = [], [], 0, indent
        self._table = (head, delimiter.strip())
        self._add(head, marks)
        self._add(delimiter.strip())

    def _add_row(self, line: str, table: tuple[str, str]) -> None:
        if len(self._lines) > 2 and (len(self._lines) >= MAX_ROWS + 2 or self._size + len(line) > LIMIT):
            indent, in_list = self._indent, self._in_list
            self._end()
            self._table, self._indent, self._in_list, self._is_more = table, indent, in_list, True
            self._add(table[0], "")
            self._add(table[1], "")
        self._add(line.lstrip())

    # --- code ------------------------------------------------------------------------------------------------------

    def _open_fence(self, marker: str, room: str, mark: str, about: str) -> None:
        """A fence opens, perhaps behind the marker of an item; its contents are sections of their own."""
        if marker:
            self._end()
            self._in_list = True
            self._begin(marker)
        self._end()
        indent = len(marker) + len(room)
        self._in_list = self._in_list and indent > 0
        self._fence = _Fence(mark, indent, _language(about), self.n_fences)
        self.n_fences += 1
        self._indent = indent
        self._is_more = False

    def _take_code(self, line: str, fence: _Fence) -> None:
        if not self._is_mid_line and fence.is_closed_by(line):
            if self._lines or not self._is_more:
                self._end()
            self._fence, self._is_more = None, False
            return
        is_seam = len(self._lines) >= _GOOD_CODE_LINES and not self._lines[-1].strip() and line[:1].strip() != ""
        if self._lines and (is_seam or len(self._lines) >= MAX_CODE_LINES or self._size + len(line) > LIMIT):
            self._end()
            self._is_more = True
        self._indent = fence.indent
        self._add(line)

    def _end(self, *, is_whole: bool = True) -> None:
        """End the section, if there is something in it. is_whole: its last line ends too."""
        fence = self._fence
        if self._lines or (fence and not self._is_more):
            section = Section(
                kind="code" if fence else "prose",
                text="\n".join(self._lines) + ("\n" if fence and self._lines and is_whole else ""),
                indent=min(self._indent, MAX_INDENT),
                has_gap=self._has_gap,
                language=fence.language if fence else "",
                fence=fence.number if fence else -1,
                is_more=self._is_more,
                in_list=self._in_list,
                drafted="\n".join(self._marks) if any(DRAFTED in marks for marks in self._marks) else "",
            )
            self.done.append(section)
            self._has_gap = False
        self._lines, self._marks, self._size, self._table, self._is_more = [], [], 0, None, False


def sections_of(text: str, drafted: str = "") -> list[Section]:
    """All sections of a whole safe text. drafted: a mark for each of its characters, or nothing."""
    sections = Sections()
    sections.feed(text, drafted)
    return sections.done + sections.tail()


def code_of(sections: list[Section], fence: int) -> str:
    """The contents of a code block, from its sections."""
    return "".join(section.text for section in sections if section.fence == fence)


def _good_end(line: str) -> int:
    """Where to cut a line that is too long: after a sentence, else after a word, else anywhere."""
    half = len(line) // 2
    for mark in (". ", "。", " "):
        if (place := line.rfind(mark, half)) >= 0:
            return place + len(mark)
    return len(line)


def _language(about: str) -> str:
    """The first word behind a fence: python of ```python title="x"."""
    words = about.replace(",", " ").replace("{", " ").replace("}", " ").split()
    return words[0].lstrip(".").lower()[:24] if words else ""
