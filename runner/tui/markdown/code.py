"""Highlights code with Pygments, in colours of the theme. It knows no width and no widget."""

from __future__ import annotations

from functools import lru_cache

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Token
from pygments.util import ClassNotFound
from textual.content import Content, Span

from runner.tui.markdown.drafted import expanded, spans_of
from runner.tui.markdown.styles import MUTED

_TAB = 4
_STYLES = {
    Token.Comment: f"italic {MUTED}",
    Token.Keyword: "$text-accent",
    Token.Keyword.Constant: "$text-warning",
    Token.Operator.Word: "$text-accent",
    Token.Name.Builtin: "$text-secondary",
    Token.Name.Class: "bold $text-warning",
    Token.Name.Decorator: "$text-secondary",
    Token.Name.Function: "$text-primary",
    Token.Name.Attribute: "$text-primary",
    Token.Name.Tag: "$text-accent",
    Token.Literal.Number: "$text-warning",
    Token.Literal.String: "$text-success",
    Token.Generic.Heading: "bold",
    Token.Generic.Inserted: "$text-success",
    Token.Generic.Deleted: "$text-error",
}


@lru_cache(maxsize=64)
def _lexer(language: str) -> Lexer | None:
    """The lexer of a language, or None. Looking for one that does not exist is slow, so that is kept too."""
    if not language:
        return None
    try:
        return get_lexer_by_name(language, stripnl=False, stripall=False, ensurenl=False)
    except ClassNotFound:
        return None


@lru_cache(maxsize=256)
def _style(token_type: object) -> str:
    while token_type is not None:
        if style := _STYLES.get(token_type):
            return str(style)
        token_type = getattr(token_type, "parent", None)
    return ""


def highlighted(code: str, language: str, drafted: str = "") -> Content:
    """Safe code as content, tabs as four columns. drafted: the mark of each character; see Section."""
    spans = spans_of(expanded(drafted, code, _TAB) if "\t" in code else drafted)
    code = code.expandtabs(_TAB)
    lexer = _lexer(language)
    if lexer is None:
        return Content(code, spans=spans)
    for start, token_type, text in lexer.get_tokens_unprocessed(code):
        if style := _style(token_type):
            spans.append(Span(start, start + len(text), style))
    return Content(code, spans=spans)
