"""One function that makes text from outside safe for a terminal: answers, model names, file metadata, errors, paths.

Control characters are dropped one by one, so the filter can be applied to a stream in any pieces. It knows nothing of
markup: front ends never parse outside text as markup. Raw text stays raw in the database and in --json.
"""

from __future__ import annotations

# Dropped: C0 without tab and newline, DEL, C1 (8-bit escape sequences), bidirectional marks, overrides and isolates
# with their deprecated kin, annotation and musical format characters, lone surrogates, and the plane of invisible tags,
# which hides whole texts (the flags of England, Scotland and Wales lose their country to it: a filter without memory
# cannot tell). What scripts and emoji are written with stays: joiners, soft breaks, fillers, variation selectors.
_DROPPED: dict[int, str | None] = {
    code: None
    for span in (
        range(0x09),
        range(0x0B, 0x20),
        range(0x7F, 0xA0),
        (0x061C, 0x200E, 0x200F, 0xFEFF),
        range(0x202A, 0x202F),
        range(0x2066, 0x2070),
        range(0xFFF9, 0xFFFC),
        range(0x1D173, 0x1D17B),
        range(0xE0000, 0xE0100),
        range(0xE01F0, 0xE1000),
        range(0xD800, 0xE000),
    )
    for code in span
}
# Other line ends part words as a newline does. CR does not: it is half of CR LF, and alone it overwrites a line.
_LINE_ENDS: dict[int, str | None] = dict.fromkeys((0x0B, 0x0C, 0x85, 0x2028, 0x2029), "\n")
_SAFE = {**_DROPPED, **_LINE_ENDS}
_ONE_LINE = {**_DROPPED, **dict.fromkeys((0x09, 0x0A, *_LINE_ENDS), " ")}


def safe_text(text: str) -> str:
    """`text` without anything that a terminal would act on; newline and tab stay.

    Stateless per character: safe_text(a + b) == safe_text(a) + safe_text(b) for every split.
    """
    return text.translate(_SAFE)


def safe_line(text: str) -> str:
    """`safe_text` on one line: newlines and tabs become spaces. For names, titles, errors and table cells."""
    return text.translate(_ONE_LINE)
