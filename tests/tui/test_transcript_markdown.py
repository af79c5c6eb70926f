"""Markdown as rows of a terminal: sections that do not depend on how the text arrives, blocks, tables, code."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.content import Content

from runner.safe_text import safe_text
from runner.transcript import code_blocks
from runner.tui.markdown.blocks import parse_section
from runner.tui.markdown.code import highlighted
from runner.tui.markdown.lines import Line, block_lines, code_lines, text_of, wrapped
from runner.tui.markdown.sections import LIMIT, MAX_CODE_LINES, MAX_ROWS, Section, Sections, code_of, sections_of

HOSTILE = "a[/]b [@click=app.quit]x[/] \x1b]52;c;eA==\x07 \x9b31m"
MIXED = """# Title
Some **bold** words, `code`, [a link](http://x.y) and ![a picture](p.png).
A second line with <b>html</b>

- one
- two
  goes on
  1. inner
     ```python
     def f(x):

         return x
     ```
  after the code
- [x] done

> quoted
> - in a quote

| a | b |
|---|--:|
| x | 1 |
| y | 22 |

Setext
------
~~~
open to the end
"""


def rows_of(text: str, width: int = 60) -> list[str]:
    """The rows that a text is shown as, sections without gaps between them."""
    rows: list[Line] = []
    for section in sections_of(safe_text(text)):
        if section.kind == "code":
            rows += code_lines(section.text.removesuffix("\n"), section.language, width, Content(" " * section.indent))
        else:
            rows += block_lines(parse_section(section), width)
    return [row.content.plain for row in rows]


def streamed(pieces: list[str]) -> list[Section]:
    sections = Sections()
    for piece in pieces:
        sections.feed(piece)
        sections.tail()  # looking at what is there changes nothing
    return sections.done + sections.tail()


def test_sections_are_the_same_wherever_the_stream_is_split() -> None:
    whole = sections_of(MIXED)
    assert len(whole) > 10
    for place in range(len(MIXED) + 1):
        assert streamed([MIXED[:place], MIXED[place:]]) == whole, MIXED[:place]
    assert streamed(list(MIXED)) == whole


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(["- a\n", "```\n", "    x\n", "\n", "1. b", " ", "|a|\n", "|-|\n", "# h\n", "z" * 700])),
    st.integers(1, 9),
)
def test_sections_of_any_text_do_not_depend_on_its_pieces(parts: list[str], step: int) -> None:
    text = "".join(parts)
    pieces = [text[start : start + step] for start in range(0, len(text), step)]
    assert streamed(pieces) == sections_of(text)


def test_control_characters_are_gone_wherever_the_stream_is_split() -> None:
    shown = sections_of(safe_text(HOSTILE))
    for place in range(len(HOSTILE) + 1):
        pieces = [safe_text(HOSTILE[:place]), safe_text(HOSTILE[place:])]
        assert streamed(pieces) == shown
    assert rows_of(HOSTILE) == ["a[/]b [@click=app.quit]x[/] ]52;c;eA== 31m"]


def test_finished_sections_never_change_while_more_text_comes() -> None:
    sections, seen = Sections(), 0
    kept: list[Section] = []
    for character in MIXED * 3:
        sections.feed(character)
        assert sections.done[:seen] == kept
        kept, seen = list(sections.done), len(sections.done)


@pytest.mark.parametrize(
    "text",
    [
        "words without any line end, and more of them; " * 4000,
        "x" * 200_000,
        "```python\n" + "value = compute(1)\n" * 9000,
        "```json\n" + '{"a": 1, ' * 30_000,
        "| a | b |\n|---|---|\n" + "| some | cells |\n" * 9000,
        "- an item of a list\n" * 9000,
        "> a quote\n" * 9000,
        "line without a blank one\n" * 9000,
        "- text\n  ```\n" + "  nested code\n" * 9000,
        "> " * 5000 + "deep",
        "- " * 5000 + "deep",
        "[" * 50_000,
        "*a " * 50_000,
    ],
)
def test_no_section_is_long_whatever_the_text_is(text: str) -> None:
    started = time.process_time()
    sections = sections_of(text)
    assert max(len(section.text) for section in sections) <= 2 * LIMIT
    assert max(section.text.count("\n") for section in sections) <= LIMIT // 5
    for section in sections[-2:]:
        if section.kind == "prose":
            block_lines(parse_section(section), 80)
        else:
            code_lines(section.text, section.language, 80)
    assert time.process_time() - started < 20  # 0.5 s where nothing is quadratic


def test_long_code_is_cut_at_seams_and_copied_whole() -> None:
    function = "def f(x):\n    y = x\n\n    return y\n\n\n"
    code = function * 40 + "z" * 5000 + "\nlast\n"
    sections = sections_of(f"Before\n```python\n{code}```\nAfter")
    parts = [section for section in sections if section.kind == "code"]
    assert len(parts) > 5
    assert all(part.text.count("\n") <= MAX_CODE_LINES for part in parts)
    assert parts[1].text.startswith("def f")
    assert code_of(sections, 0) == code == code_blocks(f"Before\n```python\n{code}```\nAfter")[0]


def test_code_in_an_item_of_a_list_is_copied_without_its_indent() -> None:
    text = "1. Do this:\n\n   ```sh\n   ls -l\n     two in\n   ```\n\n2. And that:\n   ~~~\n   cd\n   ~~~\n"
    assert [code_of(sections_of(text), fence) for fence in (0, 1)] == code_blocks(text) == ["ls -l\n  two in\n", "cd\n"]


def test_a_long_table_goes_on_under_its_header() -> None:
    rows = [f"| {number} | x |" for number in range(MAX_ROWS * 2)]
    sections = sections_of("Text before\n| number | b |\n|---|---|\n" + "\n".join(rows) + "\nText after")
    tables = [section for section in sections if "|---|" in section.text]
    assert [table.is_more for table in tables] == [False, True]
    assert all(table.text.startswith("| number | b |\n") for table in tables)
    assert (sections[0].text, sections[-1].text) == ("Text before", "Text after")


def test_blocks_show_as_people_expect_them() -> None:
    assert rows_of(MIXED) == [
        "Title",
        "Some bold words, code, a link and [image: a picture].",
        "A second line with <b>html</b>",
        "• one",
        "• two",
        "  goes on",
        "  1. inner",
        "     ▎ def f(x):",
        "     ▎ ",
        "     ▎     return x",
        "  after the code",
        "✓ done",
        "▎ quoted",
        "▎ • in a quote",
        "a   b",
        "─  ──",
        "x   1",
        "y  22",
        "Setext",
        "▎ open to the end",
    ]


def test_items_that_all_say_one_are_numbered_as_markdown_numbers_them() -> None:
    assert rows_of("1. a\n1. b\n   1. inner\n1. c\n\ntext\n\n1. new\n7. eight") == [
        "1. a",
        "2. b",
        "   1. inner",
        "3. c",
        "text",
        "1. new",
        "7. eight",
    ]


def test_a_definition_of_a_link_stays_to_be_seen() -> None:
    assert rows_of("[a]: http://evil.example") == ["[a]: http://evil.example"]


def test_a_link_carries_its_address_and_no_action() -> None:
    (block,) = parse_section(sections_of("see [here](https://x.y/?a='b')")[0])
    metas = [span.style.meta for span in block.content.spans if not isinstance(span.style, str)]
    assert metas == [{"link": "https://x.y/?a='b'"}]


@pytest.mark.parametrize("width", [12, 40, 76, 156])
def test_no_row_is_wider_than_the_window(width: int) -> None:
    text = (
        MIXED
        + "\n```\n~~~\n"
        + "wide 漢字 text " * 30
        + "\n\n| "
        + "column | " * 9
        + "\n|"
        + "---|" * 9
        + "\n| 漢字 | b |"
    )
    widest = max(Content(row).cell_length for row in rows_of(text, width))
    assert widest <= max(width, 16)  # eight columns of text are kept, however deep it is nested


def test_a_table_without_room_for_its_columns_becomes_a_list_of_its_cells() -> None:
    rows = rows_of("| name | size | licence |\n|---|---|---|\n| Qwen3 | 5.2 GB | apache-2.0 |", 14)
    assert rows == ["name: Qwen3", "size: 5.2 GB", "licence:", "apache-2.0"]


def test_wide_cells_are_wrapped_in_their_columns() -> None:
    rows = rows_of("| a | b |\n|---|---|\n| short | " + "many words " * 6 + "|", 30)
    assert rows[2].startswith("short  many words")
    assert rows[3].startswith("       words") or rows[3].startswith("       many")


def test_code_is_highlighted_only_in_languages_that_there_are() -> None:
    assert highlighted("def f(): pass", "python").spans
    assert not highlighted("def f(): pass", "no-such-language").spans
    assert not highlighted("def f(): pass", "").spans
    assert highlighted("\tx", "python").plain == "    x"


@pytest.mark.parametrize(
    "part", ["\u0915\u093f\u0902", "e\u0301", "\U0001f469\u200d\U0001f4bb", "\u0e17\u0e35\u0e48", "\u65e5", "x"]
)
def test_a_line_of_code_that_is_too_long_is_shown_whole_whatever_its_characters_take(part: str) -> None:
    code = f"s = {part * 40} # end"
    lines = code_lines(code, "python", 30)
    assert text_of(lines) == code
    assert all(line.content.cell_length <= 30 for line in lines)


def test_copied_rows_are_the_text_and_not_what_is_drawn_around_it() -> None:
    rows = wrapped(Content("one two three"), 12, Content("▎ "), decoration=2)
    assert [row.content.plain for row in rows] == ["▎ one two", "▎ three"]
    assert text_of(rows) == "one two three"
    code = code_lines("abcdefghijklmnop\nq", "", 14)
    assert text_of(code) == "abcdefghijklmnop\nq"
    assert text_of(rows, 4, 4) == "e two th"
