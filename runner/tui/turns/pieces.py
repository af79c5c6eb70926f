"""The pieces that turns are shown as: each gives its rows for a width, and guesses how many they are before that.

Text in them is safe, and literal but for sections of Markdown. What can be clicked carries a "do" in the style of its
text. They know nothing of turns or of where they stand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from textual.content import Content
from textual.style import Style

from runner.safe_text import safe_line, safe_text
from runner.tui.markdown.blocks import parse_section
from runner.tui.markdown.lines import BLANK, Line, block_lines, code_lines, wrapped
from runner.tui.markdown.sections import LIMIT, Section
from runner.tui.markdown.styles import FAINT, GROUND, MUTED

GUTTER = 2
Level = Literal["info", "warning", "error"]
_MARKS: dict[Level, tuple[str, str]] = {
    "info": ("○ ", MUTED),
    "warning": ("! ", "bold $text-warning"),
    "error": ("✗ ", "bold $text-error"),
}


class Piece(Protocol):
    """A frozen value: equal pieces have equal rows."""

    def lines(self, width: int) -> list[Line]:
        """Its rows, at `width` columns without the gutter."""

    def estimate(self, width: int) -> int:
        """About how many rows these are, in no time."""


def about_rows(text: str, width: int) -> int:
    """How many rows a text takes, roughly."""
    return len(text) // max(1, width) + text.count("\n") + 1


def button(text: str, do: str, *arguments: object) -> Content:
    """Text that can be clicked: the widget finds ("do", (do, *arguments)) in its style."""
    return Content(text).stylize(MUTED).stylize(Style.from_meta({"do": (do, *arguments)}))


@dataclass(frozen=True)
class Header:
    """Who speaks, when, and what can be done with it. is_chosen: marked, as where the keys act."""

    name: str
    style: str
    about: str
    tail: Content | None = None
    is_chosen: bool = False
    is_first: bool = False

    def lines(self, width: int) -> list[Line]:
        del width
        mark = Content.styled("▸ ", self.style) if self.is_chosen else None
        name = Content.styled(self.name, f"bold {self.style}")
        about = Content.styled(f"  {safe_line(self.about)}", MUTED) if self.about else Content()
        row = Line(name + about, tail=self.tail, gutter=mark)
        return [row] if self.is_first else [BLANK, row]

    def estimate(self, width: int) -> int:
        del width
        return 1 if self.is_first else 2


@dataclass(frozen=True)
class Prose:
    section: Section
    has_gap: bool = False

    def lines(self, width: int) -> list[Line]:
        return [BLANK] * self.has_gap + block_lines(parse_section(self.section), width)

    def estimate(self, width: int) -> int:
        return self.has_gap + about_rows(self.section.text, width - self.section.indent)


@dataclass(frozen=True)
class Code:
    """A part of a code block; the first one has the header. is_chosen: the key for copying code takes this one."""

    section: Section
    has_gap: bool = False
    is_chosen: bool = False

    def lines(self, width: int) -> list[Line]:
        section = self.section
        left = Content(" " * section.indent)
        lines = [BLANK] * self.has_gap
        if not section.is_more:
            mark = Content.styled("▸ " if self.is_chosen else "▎ ", MUTED)
            name = Content.styled(section.language or "text", f"bold {MUTED}" if self.is_chosen else MUTED)
            copy = button("[c] copy " if self.is_chosen else "copy ", "copy-code", section.fence)
            lines.append(Line(left + mark + name, len(left + mark + name), fill=GROUND, tail=copy))
        if section.text or section.is_more:
            code = section.text.removesuffix("\n")
            lines += code_lines(code, section.language, width, left, section.drafted[: len(code)])
        return lines

    def estimate(self, width: int) -> int:
        header = self.has_gap + (not self.section.is_more)
        return header + about_rows(self.section.text, width) - self.section.text.endswith("\n")


@dataclass(frozen=True)
class Plain:
    """Literal text with a bar to its left: in the gutter where it has a ground of its own.

    A part of a longer one: see `plain_parts`.
    """

    text: str
    style: str = ""
    bar: str = ""
    fill: str = ""

    def lines(self, width: int) -> list[Line]:
        content = Content.styled(self.text, self.style) if self.style else Content(self.text)
        if not self.fill:
            return wrapped(content, width, Content.styled(self.bar, FAINT), decoration=len(self.bar))
        bar = Content.styled(self.bar, "$text-primary")
        return [replace(row, fill=self.fill, gutter=bar) for row in wrapped(content, width)]

    def estimate(self, width: int) -> int:
        return about_rows(self.text, width)


@dataclass(frozen=True)
class Fold:
    """A row that shows or hides what follows: a thought, the rest of a long message."""

    label: str
    is_open: bool
    key: str = ""

    def lines(self, width: int) -> list[Line]:
        del width
        label = button(f"{'▾' if self.is_open else '▸'} {safe_line(self.label)}", "fold")
        tail = button(f"{self.key}{'hide' if self.is_open else 'show'}", "fold")
        return [Line(label, len(label), tail=tail)]

    def estimate(self, width: int) -> int:
        del width
        return 1


@dataclass(frozen=True)
class ThoughtWindow:
    """The end of a thought that is being thought."""

    label: str
    text: str
    height: int = 4

    def lines(self, width: int) -> list[Line]:
        label = Content.styled(f"◐ {safe_line(self.label)}", MUTED)
        tail = self.text[-self.height * max(20, width) :]
        rows = wrapped(Content.styled(tail.strip("\n"), f"italic {MUTED}"), width, Content.styled("│ ", FAINT), None, 2)
        return [Line(label, len(label)), *rows[-self.height :]]

    def estimate(self, width: int) -> int:
        return len(self.lines(width))


@dataclass(frozen=True)
class Note:
    """Something about the chat or an answer, with its remedy."""

    text: str
    hint: str = ""
    level: Level = "info"
    has_gap: bool = False

    def lines(self, width: int) -> list[Line]:
        mark, style = _MARKS[self.level]
        room = Content(" " * len(mark))
        text_style = style.removeprefix("bold ")
        text = Content.styled(safe_text(self.text).strip(), text_style)
        lines = [BLANK] * self.has_gap + wrapped(text, width, Content.styled(mark, style), room)
        if self.hint:
            lines += wrapped(Content.styled(safe_text(self.hint).strip(), MUTED), width, room)
        return lines

    def estimate(self, width: int) -> int:
        return self.has_gap + about_rows(self.text, width) + (about_rows(self.hint, width) if self.hint else 0)


@dataclass(frozen=True)
class Status:
    """What is going on before the first text. share: how much of it is done, None when that is not known."""

    text: str
    share: float | None = None

    def lines(self, width: int) -> list[Line]:
        row = Content.styled(f"◐ {safe_line(self.text)}", MUTED)
        room = min(24, width - row.cell_length - 2)
        if self.share is not None and room >= 6:
            done = round(self.share * room)
            bar = Content.styled("━" * done, "$accent") + Content.styled("─" * (room - done), FAINT)
            row = row + "  " + bar
        return [Line(row.truncate(width, ellipsis=True), len(row))]

    def estimate(self, width: int) -> int:
        del width
        return 1


@dataclass(frozen=True)
class Numbers:
    """What an answer took."""

    text: str
    tail: Content | None = None

    def lines(self, width: int) -> list[Line]:
        row = Content.styled(self.text, MUTED).truncate(width, ellipsis=True)
        return [BLANK, Line(row, len(row), tail=self.tail)]

    def estimate(self, width: int) -> int:
        del width
        return 2


def plain_parts(text: str, max_lines: int = 40) -> list[str]:
    """A text in parts that are shown on their own; the parts of its beginning stay when it grows."""
    parts: list[str] = []
    part: list[str] = []
    size = 0
    for line in text.split("\n"):
        for start in range(0, max(1, len(line)), LIMIT):
            piece = line[start : start + LIMIT]
            if part and (len(part) >= max_lines or size + len(piece) > LIMIT):
                parts.append("\n".join(part))
                part, size = [], 0
            part.append(piece)
            size += len(piece)
    return [*parts, "\n".join(part)]


def section_pieces(
    sections: Iterable[Section], chosen_fence: int | None, before: Section | None = None
) -> list[Prose | Code]:
    """Sections with the gaps between them: code stands apart from prose, wherever no list holds them together.

    before: the section before the first one.
    """
    pieces: list[Prose | Code] = []
    for section in sections:
        is_edge = before is not None and (section.kind != before.kind or section.fence != before.fence)
        has_gap = section.has_gap or (is_edge and not section.in_list)
        has_gap = has_gap and before is not None and not section.is_more
        if section.kind == "code":
            pieces.append(Code(section, has_gap, chosen_fence == section.fence))
        else:
            pieces.append(Prose(section, has_gap))
        before = section
    return pieces
