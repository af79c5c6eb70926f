r"""llama.cpp's grammars (GBNF) as Lark grammars that match the same texts.

llguidance has a parser of GBNF, which is used, and a printer of Lark, which is not. That makes a lexeme of every rule
that is characters alone, and lexemes are read as long as they go: `[ \t\n]*` would swallow the line end that the file
arithmetic.gbnf of llama.cpp asks for next, and the text could never end. Here each character is one. It also writes
`("a"+)?` without its brackets, and `[a&&b]` so that it is an intersection. This file knows nothing of vocabularies.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from llguidance.gbnf_to_lark import ASTNode

_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)
_CHARACTER: Final = re.compile(r"\\x([0-9a-fA-F]{2})|\\(.)|.", re.DOTALL)
_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t"}


def to_lark(text: str) -> str:
    """A GBNF grammar in Lark. Raises ValueError for what is none, with the line where that is known."""
    from llguidance.gbnf_to_lark import GbnfToLarkError, GrammarParser

    try:
        rules = GrammarParser().parse(_ESCAPE.sub(_character, text))
        names = {name: "start" if name == "root" else f"rule_{i}" for i, name in enumerate(rules)}
        lines = [f"{names[name]}: {_lark(rule.alternatives, names)}" for name, rule in rules.items()]
    except _NoRuleError as error:
        raise ValueError(f"there is no rule {error.name}{_line_of(error.name, text)}") from error
    except GbnfToLarkError as error:
        raise ValueError(str(error)) from error
    except (RecursionError, IndexError) as error:  # at the text's end the parser reads on
        raise ValueError(
            "it is nested too deeply" if isinstance(error, RecursionError) else "it ends too early"
        ) from error
    if "root" not in rules:
        raise ValueError("there is no rule root")
    return "\n".join(lines)


class _NoRuleError(Exception):
    """A rule is named that there is not."""

    def __init__(self, name: str) -> None:
        self.name = name


def _lark(node: ASTNode, names: Mapping[str, str]) -> str:
    """A part of a GBNF rule in Lark. names: of the rules, in Lark."""
    from llguidance import gbnf_to_lark as gbnf

    match node:
        case gbnf.AlternativeNode():
            alternatives = [_lark(one, names) for one in node.alternatives]
            return alternatives[0] if len(alternatives) == 1 else f"({' | '.join(alternatives)})"
        case gbnf.SequenceNode():
            return " ".join(_lark(one, names) for one in node.nodes) or '""'
        case gbnf.RepetitionNode():
            most = "" if node.max_times is None else node.max_times
            return f"({_lark(node.node, names)}){{{node.min_times},{most}}}"
        case gbnf.RuleRefNode():
            if node.name not in names:
                raise _NoRuleError(node.name)
            return names[node.name]
        case gbnf.RegexNode():
            return "/(?s:.)/" if node.rx == "." else f"/{_class(node.rx)}/"  # a line end is a character too
        case gbnf.LiteralNode():
            codes = (_code(found) for found in _CHARACTER.finditer(node.value))
            return '"' + "".join(f"\\x{code:02x}" if code < 128 else chr(code) for code in codes) + '"'
    raise ValueError(f"{type(node).__name__} is no part of a rule")


def _character(found: re.Match[str]) -> str:
    """The character of an escape that llguidance's parser would shorten; other escapes as they stand."""
    digits = found[1] or found[2]
    if found[0] == "\\-":  # an escape of llama.cpp's that the parser does not know
        return "\\x2d"
    if digits is None:
        return found[0]
    code = int(digits, 16)
    if code > sys.maxunicode or 0xD800 <= code < 0xE000:
        raise ValueError(f"{found[0]} is no character")
    return chr(code) if code >= 128 else f"\\x{code:02x}"


def _code(found: re.Match[str]) -> int:
    """The code point of a character of a text or class, escaped or not."""
    if found[1] is not None:
        return int(found[1], 16)
    return ord(_CONTROLS.get(found[2], found[2]) if found[2] is not None else found[0])


def _class(text: str) -> str:
    """A class of characters as a regular expression of ranges, in which no character means anything else."""
    is_negated = text.startswith("[^")
    found = list(_CHARACTER.finditer(text[2 if is_negated else 1 : -1]))
    ranges: list[str] = []
    at = 0
    while at < len(found):
        is_range = at + 2 < len(found) and found[at + 1][0] == "-"
        low, high = _code(found[at]), _code(found[at + 2 if is_range else at])
        if low > high:
            raise ValueError(f"{chr(low)}-{chr(high)} in {text} is no range")
        ranges.append(f"\\x{{{low:x}}}-\\x{{{high:x}}}")
        at += 3 if is_range else 1
    return f"[{'^' if is_negated else ''}{''.join(ranges)}]"


def _line_of(name: str, text: str) -> str:
    at = re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)
    return f" (line {text.count(chr(10), 0, at.start()) + 1})" if at else ""
