"""Grammars to masks: which tokens keep a text to a JSON schema, or to a grammar as llama.cpp (GBNF) or Lark has it.

The languages and the masks are the work of llguidance, which is imported when the first grammar is used: 0.1 s that no
other answer pays. This file gives it a model's vocabulary, keeps what was compiled, and says in words of a user's what
is wrong with a grammar. It knows no prompt, no thought and no model.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Final

import numpy as np

from runner.backends.base import Tokenizer
from runner.backends.vocabulary import pieces
from runner.config import GRAMMAR_NAMES, Grammar, GrammarKind
from runner.errors import BackendUnavailable, BadGrammar, RunnerError, UnsupportedModel
from runner.gbnf import to_lark
from runner.sampling import Mask
from runner.schema_patterns import TooManyPartsError, has_more_patterns

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_KEPT: Final = 8  # compiled grammars of a model
# Between the parts of JSON, as llama.cpp has it: a model that may write space for ever sometimes does.
_JSON_SPACE: Final = r"( |\n[ \t]{0,20})"
# What must come may come in any tokens that spell it: which ones llguidance would choose, it asks of a tokenizer, and
# SentencePiece puts a space before every text.
_OPTIONS: Final = '\n%llguidance {"no_forcing": true}\n'
# Of names of properties, too: written otherwise, a name would be another property to the schema, and not to its reader.
_JSON_ESCAPES: Final = 'nrbtf\\"'
_LONGEST_ROW: Final = 20_000  # what may stand at one place: alternatives of a grammar of words, optional properties
_MOST_PATTERNS: Final = 8  # that hold for one string: as many take milliseconds; 13 took seconds, 16 would take minutes
_JSON_IN_LARK: Final = re.compile(r"%json\s*(?=\{)")
_AT: Final = re.compile(r"(?s)(?:at )?(\d+)\((\d+)\): (.*?)(?=\n +\d+ \| |$)")


def check(grammar: Grammar) -> None:
    """Raise BadGrammar for a grammar that means nothing, without a model: what a vocabulary lacks is found later."""
    is_error, messages = _library().LLMatcher.validate_grammar_with_warnings(_source(grammar), limits=_limits())
    if is_error:
        raise _refused(grammar, messages[0])


class Grammars:
    """The compiled grammars of one loaded model. Its vocabulary is read for the first: a second for 150,000 tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary: LLTokenizer | None = None
        self._compiled: dict[Grammar, LLMatcher] = {}

    def matcher(self, grammar: Grammar) -> Matcher:
        """A matcher at the beginning of a text.

        Raises BadGrammar for one that means nothing, or that no text of this vocabulary can match, and
        UnsupportedModel for a model that cannot end an answer.
        """
        compiled = self._compiled.get(grammar)
        if compiled is None:
            compiled = self._compile(grammar)
            if len(self._compiled) == _KEPT:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[grammar] = compiled
        return Matcher(compiled.deep_copy(), self._tokenizer, GRAMMAR_NAMES[grammar.kind])

    def _compile(self, grammar: Grammar) -> LLMatcher:
        source = _source(grammar)
        if self._vocabulary is None:
            self._vocabulary = _read_vocabulary(self._tokenizer)
        compiled: LLMatcher = _library().LLMatcher(self._vocabulary, source, log_level=0, limits=_limits())
        if compiled.is_error():
            raise _refused(grammar, compiled.get_error())
        compiled.compute_bitmask()
        if compiled.is_error():
            raise BadGrammar(
                f"The {GRAMMAR_NAMES[grammar.kind]} cannot be used: no text matches it.",
                hint="A rule may lead to itself without an end, or need characters that the model has no token for.",
            )
        return compiled


class Matcher:
    """One text on its way through a grammar, token by token."""

    def __init__(self, compiled: LLMatcher, tokenizer: Tokenizer, name: str) -> None:
        self._compiled = compiled
        self._vocab_size = tokenizer.vocab_size
        self._name = name

    def allowed(self) -> Mask:
        """The tokens [V] that may come next. Those that end an answer may where the text is whole.

        Raises RunnerError where nothing may.
        """
        bits = self._compiled.compute_bitmask()
        if self._compiled.is_error():
            raise self._failed(_first_line(self._compiled.get_error()))
        mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=self._vocab_size, bitorder="little").view(np.bool_)
        if not mask.any():
            raise self._failed("no token of the model can go on")
        return mask

    def take(self, token: int) -> bool:
        """Go on with `token`; False, and nothing happens, where it may not come next. After the end everything may.

        Raises RunnerError where the grammar is too much to go on with.
        """
        is_taken = self._compiled.is_stopped() or self._compiled.try_consume_tokens([token]) == 1
        if self._compiled.is_error():
            raise self._failed(_first_line(self._compiled.get_error()))
        return is_taken

    def reset(self) -> None:
        """Back to the beginning."""
        self._compiled.reset()

    def _failed(self, why: str) -> RunnerError:
        return RunnerError(
            f"The answer cannot go on by its {self._name}: {why}.",
            hint="Make it simpler: fewer alternatives, shorter repetitions, no nested ones.",
        )


class _Vocabulary:
    """A tokenizer as llguidance asks for it: the bytes of each token, and names for those that are no text."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        texts, names = pieces(tokenizer, special=False), pieces(tokenizer)
        self.tokens = [name.encode("latin-1") for name in names]
        # What ends an answer is never a part of it, even where its name is a text like others.
        self.special_token_ids = [
            token for token, text in enumerate(texts) if (not text and names[token]) or token in tokenizer.stop_ids
        ]
        self.eos_token_id = min(tokenizer.stop_ids)

    def __call__(self, _text: str) -> list[int]:
        """Which tokens a text that must come should come in is never asked: see _OPTIONS."""
        raise NotImplementedError


def _read_vocabulary(tokenizer: Tokenizer) -> LLTokenizer:
    if not tokenizer.stop_ids:
        raise UnsupportedModel(
            "The model has no token that ends an answer, so none could end where its grammar does.",
            hint='Write "eos_token_id" into its generation_config.json, or ask without a grammar.',
        )
    library = _library()
    wrapper = library.TokenizerWrapper(_Vocabulary(tokenizer))
    vocabulary: LLTokenizer = library.LLTokenizer(wrapper, eos_token=sorted(tokenizer.stop_ids))
    return vocabulary


def _limits() -> LLParserLimits:
    limits: LLParserLimits = _library().LLParserLimits(verbose_errors=False, max_items_in_row=_LONGEST_ROW)
    return limits


def _library() -> ModuleType:
    """llguidance. Raises BackendUnavailable."""
    try:
        import llguidance
    except ImportError as error:
        raise BackendUnavailable(
            f"Answers by a grammar need llguidance, which cannot be imported: {error}.",
            hint="Install it with: pip install llguidance",
        ) from error
    return llguidance


# --- the languages ---------------------------------------------------------------------------------------------------


def _source(grammar: Grammar) -> str:
    """A grammar in llguidance's own terms. Raises BadGrammar."""
    matcher = _library().LLMatcher
    match grammar.kind:
        case "json_schema":
            lark = f"start: %json {_schema(grammar)}"
        case "gbnf":
            try:
                lark = to_lark(grammar.text)
            except ValueError as error:
                raise _refused(grammar, str(error)) from error
        case "lark":
            lark = grammar.text
            for begin in _JSON_IN_LARK.finditer(lark):
                with suppress(ValueError, RecursionError):  # which llguidance tells with its line
                    _check_patterns(grammar, json.JSONDecoder().raw_decode(lark, begin.end())[0])
    return str(matcher.grammar_from_lark(lark + _OPTIONS))


def _schema(grammar: Grammar) -> str:
    """A JSON schema with our rule for space. Raises BadGrammar with the line and the column for what is no JSON."""
    try:
        plain = json.loads(grammar.text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise BadGrammar(
            f"The JSON schema is no JSON: {error.msg} ({where}).", hint='A schema is such as {"type": "object"}.'
        ) from error
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise _refused(grammar, why) from error
    if not isinstance(plain, dict):
        raise _refused(grammar, "it is no object")
    if _mixes_dialects(plain):
        raise _refused(grammar, "additionalItems beside prefixItems (items says what follows these)")
    _check_patterns(grammar, plain)
    own = plain.get("x-guidance", {})
    if not isinstance(own, dict):
        raise _refused(grammar, "x-guidance is no object")
    ours = {"whitespace_pattern": _JSON_SPACE, "json_allowed_escapes": _JSON_ESCAPES}
    return json.dumps({**plain, "x-guidance": {**ours, **own}})


def _check_patterns(grammar: Grammar, schema: object) -> None:
    """Raise BadGrammar for a schema of which it would take long to find out whether anything matches it."""
    try:
        is_too_much = isinstance(schema, dict) and has_more_patterns(schema, _MOST_PATTERNS)
    except (TooManyPartsError, RecursionError) as error:
        raise _refused(
            grammar, "it is too large" if isinstance(error, TooManyPartsError) else "it is nested too deeply"
        ) from error
    if is_too_much:
        raise BadGrammar(
            f"The {GRAMMAR_NAMES[grammar.kind]} cannot be used: more than {_MOST_PATTERNS} patterns and formats hold "
            "for one string.",
            hint="Write several of them as one pattern.",
        )


def _mixes_dialects(schema: object) -> bool:
    """Whether an array is described in the dialects of 2019 and 2020 at once, of which llguidance heeds the older."""
    if isinstance(schema, list):
        return any(map(_mixes_dialects, schema))
    if not isinstance(schema, dict):
        return False
    if "prefixItems" in schema and "additionalItems" in schema:
        return True
    parts = (
        list(part.values()) if key in _BY_NAME and isinstance(part, dict) else part
        for key, part in schema.items()
        if key not in _VALUES
    )
    return any(map(_mixes_dialects, parts))


_BY_NAME: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_VALUES: Final = frozenset({"const", "enum", "default", "examples"})


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _refused(grammar: Grammar, message: str) -> BadGrammar:
    """The error for a grammar that llguidance refuses: its first sentence, with line and column where they are ours."""
    at = _AT.match(message)
    why = _first_line(message if at is None else at[3]).removeprefix("failed to compile JSON schema: ")
    where = f" (line {at[1]}, column {at[2]})" if at is not None and grammar.kind == "lark" else ""
    return BadGrammar(
        f"The {GRAMMAR_NAMES[grammar.kind]} cannot be used: {why.rstrip('.')}{where}.", hint=_HINTS[grammar.kind]
    )


def _first_line(message: str) -> str:
    if message.startswith("panic:"):  # an assertion of llguidance about its own limits
        return "it is too large"
    return " ".join(message.removesuffix("<non-verbose/>").split())[:300]


_HINTS: Final[dict[GrammarKind, str]] = {
    "json_schema": "docs/GRAMMARS.md lists what a schema may say.",
    "gbnf": 'A GBNF grammar begins at its rule root, such as: root ::= "yes" | "no"',
    "lark": 'A Lark grammar begins at its rule start, such as: start: "yes" | "no"',
}
