"""A grammar as a user gives it, on the command line or in a chat: the text itself, a file, or a word for any JSON.

It reads the file, tells the languages apart, and has what it found compiled once, so that a mistake is told before a
model is loaded. What a grammar means is grammar.py's.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from runner.config import LARGEST_GRAMMAR, Grammar, GrammarKind
from runner.errors import UsageError
from runner.grammar import check
from runner.message_files import path_of

ANY_JSON: Final = Grammar(kind="json_schema", text='{"type": "object"}')
_ANY: Final = "json"
_NONE: Final = ("off", "none")
_SCHEMA_OR_FILE: Final = "Give the name of a file; a JSON schema may be given itself."
_FILE: Final = "Give the name of a file with the grammar; a JSON schema is given with --json-schema."
_GBNF_RULE: Final = re.compile(r"(?m)^\s*[\w-]+\s*::=")


def json_schema_of(words: str) -> Grammar:
    """The schema that `words` are, where they begin with a brace; any object for "json"; else the one in that file.

    Raises UsageError for what is no schema, or a file that cannot be read.
    """
    if words.strip().lower() == _ANY:
        return ANY_JSON
    text = words if words.lstrip().startswith("{") else _read(words.strip(), _SCHEMA_OR_FILE)
    if not text.lstrip().startswith("{") and _GBNF_RULE.search(text):
        raise UsageError(f"{words.strip()} holds a grammar, which is no JSON schema.", hint="Give it with --grammar.")
    return _checked("json_schema", text)


def grammar_file(path: Path, hint: str = _FILE) -> Grammar:
    """The grammar in a file: GBNF where it has a rule such as `root ::= ...`, else Lark. Raises as json_schema_of.

    hint: what may be given in place of what is no file.
    """
    text = _read(str(path), hint)
    if text.lstrip().startswith("{"):
        raise UsageError(f"{path} holds JSON, which is no grammar.", hint="Give a JSON schema with --json-schema.")
    return _checked("gbnf" if _GBNF_RULE.search(text) else "lark", text)


def named(words: str, directory: Path) -> Grammar | None:
    """What is meant in a chat: a schema as json_schema_of takes it (its file ends in .json), another file, "off"."""
    if words.lstrip().startswith("{"):
        return json_schema_of(words)
    name = words.strip("'\"")
    if name.lower() in _NONE:
        return None
    if name.lower() == _ANY:
        return ANY_JSON
    path = path_of(name, directory)
    return json_schema_of(str(path)) if path.suffix.lower() == ".json" else grammar_file(path, _SCHEMA_OR_FILE)


def _checked(kind: GrammarKind, text: str) -> Grammar:
    grammar = Grammar(kind=kind, text=text)
    check(grammar)
    return grammar


def _read(name: str, hint: str) -> str:
    try:
        with Path(name).expanduser().open("rb") as file:
            raw = file.read(4 * LARGEST_GRAMMAR + 1)  # more bytes are more characters than there may be
    except (OSError, RuntimeError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).rstrip(".")
        raise UsageError(f"{name} cannot be read: {reason}.", hint=hint) from error
    if len(raw) > 4 * LARGEST_GRAMMAR:
        raise UsageError(
            f"{name} is longer than the {LARGEST_GRAMMAR:,} characters that a grammar may have.",
            hint="Give a smaller grammar.",
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text.", hint="A grammar is a text file.") from error
