"""What is inside of a paragraph: emphasis, code, links and pictures, as Textual content that holds no live markup.

A link opens nothing: the style of its text carries the address as "link", for the widget to find on a click. It knows
no widget.
"""

from __future__ import annotations

from collections.abc import Sequence

from markdown_it.token import Token
from textual.content import Content, Span
from textual.style import Style

from runner.tui.markdown.drafted import Source
from runner.tui.markdown.styles import INLINE_CODE, LINK

_STYLES = {"em_open": "italic", "strong_open": "bold", "s_open": "strike"}


def inline_content(tokens: Sequence[Token], source: Source) -> Content:
    """The inline tokens of a block as content; `source` is at their beginning and is gone through to their end."""
    parts: list[str] = []
    spans: list[Span] = []
    drafted: list[Span] = []
    open_at: list[tuple[int, str, Style | None]] = []
    length = 0
    for token in tokens:
        text = _text(token)
        if token.type == "code_inline":
            spans.append(Span(length, length + len(text), INLINE_CODE))
            drafted += source.spans(text, length)
        elif token.type == "image":
            end = length + len(text)
            spans += [Span(length, end, LINK), Span(length, end, _click(_address(token, "src")))]
        elif token.type == "link_open":
            open_at.append((length, LINK, _click(_address(token, "href"))))
        elif token.type in _STYLES:
            open_at.append((length, _STYLES[token.type], None))
        elif token.type.endswith("_close") and open_at:
            start, style, click = open_at.pop()
            spans.append(Span(start, length, style))
            if click is not None:
                spans.append(Span(start, length, click))
        elif token.type == "text":
            drafted += source.spans(text, length)
        parts.append(text)
        length += len(text)
    return Content("".join(parts), spans=drafted + spans)


def _text(token: Token) -> str:
    if token.type == "image":
        return f"[image: {token.content or _address(token, 'src')}]"
    return "\n" if token.type in ("softbreak", "hardbreak") else token.content


def _address(token: Token, name: str) -> str:
    return str(token.attrs.get(name, ""))


def _click(address: str) -> Style:
    return Style.from_meta({"link": address})
