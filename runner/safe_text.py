"""One function that makes text from outside safe for a terminal: answers, model names, file metadata, errors, paths.

Control characters are dropped one by one, so the filter can be applied to a stream in any pieces. It knows nothing of
markup: front ends never parse outside text as markup. Raw text stays raw in the database and in --json.
"""

from __future__ import annotations

# Dropped: C0 without tab and newline, DEL, C1 (8-bit escape sequences), bidirectional overrides and isolates,
# invisible format characters that hide text (soft breaks and zero-width joiners stay), tags, lone surrogates.
_DROPPED = {
    code: None
    for span in (
        range(0x09),
        range(0x0B, 0x20),
        range(0x7F, 0xA0),
        (0x061C, 0x200E, 0x200F, 0x2028, 0x2029, 0xFEFF),
        range(0x202A, 0x202F),
        range(0x2066, 0x206A),
        range(0xFFF9, 0xFFFC),
        range(0xE0000, 0xE0080),
        range(0xD800, 0xE000),
    )
    for code in span
}
_ONE_LINE = {**_DROPPED, 0x09: " ", 0x0A: " "}


def safe_text(text: str) -> str:
    """`text` without anything that a terminal would act on; newline and tab stay.

    Stateless per character: safe_text(a + b) == safe_text(a) + safe_text(b) for every split.
    """
    return text.translate(_DROPPED)


def safe_line(text: str) -> str:
    """`safe_text` on one line: newlines and tabs become spaces. For names, titles, errors and table cells."""
    return text.translate(_ONE_LINE)
