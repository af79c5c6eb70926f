"""Grammars against what they mean: walks through the masks by chance, llama.cpp's own grammars, kinds of mistakes."""

from __future__ import annotations

import ctypes
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.backends.base import Tokenizer
from runner.backends.llamacpp.backend import LlamaCppBackend
from runner.backends.native.tokenizer import HuggingFaceTokenizer
from runner.config import LARGEST_GRAMMAR, Grammar
from runner.errors import BackendUnavailable, RunnerError, UnsupportedModel, UsageError
from runner.grammar import Grammars, Matcher, check
from runner.grammar_text import ANY_JSON, grammar_file, json_schema_of, named
from tests.backends.test_llamacpp import load
from tests.byte_tokenizer import ByteTokenizer


def schema(plain: object) -> Grammar:
    return Grammar(kind="json_schema", text=json.dumps(plain))


def gbnf(text: str) -> Grammar:
    return Grammar(kind="gbnf", text=text)


def lark(text: str) -> Grammar:
    return Grammar(kind="lark", text=text)


def matcher(grammar: Grammar, tokenizer: Tokenizer | None = None) -> Matcher:
    return Grammars(tokenizer or ByteTokenizer()).matcher(grammar)


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether the grammar takes the whole text, byte by byte, and may end there."""
    tokenizer = ByteTokenizer()
    found = matcher(grammar, tokenizer)
    for byte in text.encode():
        if not found.allowed()[byte]:
            return False
        assert found.take(byte)
    return bool(found.allowed()[list(tokenizer.stop_ids)].all())


@pytest.fixture(scope="module")
def demo_tokenizer(demo_directory: Path) -> HuggingFaceTokenizer:
    vocab_size = json.loads((demo_directory / "config.json").read_text())["vocab_size"]
    return HuggingFaceTokenizer(demo_directory / "tokenizer.json", vocab_size)


@pytest.fixture(scope="module")
def demo(demo_directory: Path) -> Iterator[LlamaCppBackend]:
    backend = load(demo_directory / "demo-q8_0.gguf")
    assert isinstance(backend, LlamaCppBackend)
    yield backend
    backend.close()


def walk(tokenizer: Tokenizer, grammars: Grammars, grammar: Grammar, seed: int) -> str:
    """A text of a model that has no idea: every token is any that may come, until one ends the text."""
    random = np.random.default_rng(seed)
    found, data = grammars.matcher(grammar), b""
    for _ in range(2000):
        ids = found.allowed().nonzero()[0]
        token = int(random.choice(ids))
        if token in tokenizer.stop_ids:
            return data.decode()
        assert found.take(token)
        data += tokenizer.token_bytes(token)
    raise AssertionError("it did not end")


# --- JSON ------------------------------------------------------------------------------------------------------------

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "é", "東京"]}, "minItems": 1, "maxItems": 3},
        "born": {"anyOf": [{"type": "null"}, {"type": "string", "format": "date"}]},
    },
    "required": ["name", "age", "tags", "born"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "leaf": {"const": 7},
        "tree": {
            "type": "array",
            "items": {"anyOf": [{"$ref": "#/$defs/leaf"}, {"$ref": "#/$defs/tree"}]},
            "minItems": 2,
            "maxItems": 2,
        },
    },
    "$ref": "#/$defs/tree",
}


def is_person(value: Any) -> bool:
    return (
        list(value) == ["name", "age", "tags", "born"]
        and 1 <= len(value["name"]) <= 12
        and type(value["age"]) is int
        and 0 <= value["age"] <= 150
        and 1 <= len(value["tags"]) <= 3
        and set(value["tags"]) <= {"a", "é", "東京"}
        and (value["born"] is None or re.fullmatch(r"\d{4}-\d\d-\d\d", value["born"]) is not None)
    )


def is_tree(value: Any) -> bool:
    return value == 7 or (isinstance(value, list) and len(value) == 2 and all(map(is_tree, value)))


@pytest.mark.parametrize(
    ("plain", "is_right"),
    [
        (PERSON, is_person),
        (TREE, is_tree),
        ({"enum": [1, "x", None, {"a": [True]}]}, lambda value: value in [1, "x", None, {"a": [True]}]),
        ({"type": "string", "pattern": "^[A-C]{2,4}-[0-9]$"}, lambda v: re.fullmatch(r"[A-C]{2,4}-[0-9]", v)),
        ({"type": "number", "minimum": -1, "exclusiveMaximum": 2}, lambda value: -1 <= value < 2),
        ({"type": "boolean"}, lambda value: isinstance(value, bool)),
    ],
    ids=["object", "recursive", "enum", "pattern", "number", "boolean"],
)
def test_whatever_is_chosen_the_text_is_json_of_its_schema(
    demo_tokenizer: HuggingFaceTokenizer, plain: object, is_right: Callable[[Any], object]
) -> None:
    grammars = Grammars(demo_tokenizer)
    texts = set()
    for seed in range(12):
        try:
            texts.add(text := walk(demo_tokenizer, grammars, schema(plain), seed))
        except AssertionError:
            assert plain in (
                TREE,
                {"type": "number", "minimum": -1, "exclusiveMaximum": 2},
            )  # without an end of its own
            continue
        assert is_right(json.loads(text)), text
    assert len(texts) > 1


def test_every_character_of_a_string_may_come_in_bytes() -> None:
    for text in ("é", "東京", "🙂", "\\n", " "):
        assert accepts(schema({"type": "string"}), f'"{text}"')
    assert not accepts(schema({"type": "string"}), '"\n"')


def test_space_between_the_parts_of_json_ends() -> None:
    one = schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    assert accepts(one, '{"a":1}')
    assert accepts(one, '{ "a" : 1 }')
    assert accepts(one, '{\n    "a": 1\n}')
    assert not accepts(one, '{  "a": 1}')
    assert not accepts(one, "{" + "\n" + 21 * " " + '"a": 1}')
    assert not accepts(one, "{\n\n")


def test_the_name_of_a_property_is_written_in_one_way() -> None:
    """Its reader would take the other way for the same property, and the schema for one that it does not know."""
    number = schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})

    def is_taken(text: str) -> bool:
        found = matcher(number)
        return all(found.take(byte) for byte in text.encode())

    assert is_taken('{"a":1,"b":"x\\n\\"y"}')
    assert not is_taken('{"a":1,"\\u0061":"x"}')


def test_a_schema_may_say_how_it_is_read() -> None:
    either = {"oneOf": [{"type": "string"}, {"enum": ["a"]}], "x-guidance": {"coerce_one_of": True}}
    assert accepts(schema(either), '"a"')
    spaced = {"type": "array", "maxItems": 0, "x-guidance": {"whitespace_pattern": "_{2}"}}
    assert accepts(schema(spaced), "[__]")
    assert not accepts(schema(spaced), "[ ]")


def test_any_object_is_json_and_nothing_else() -> None:
    assert accepts(ANY_JSON, '{"a": [1, null, {"b": "x"}]}')
    assert accepts(ANY_JSON, "{}")
    assert not accepts(ANY_JSON, "[1]")
    assert not accepts(ANY_JSON, '{"a": 1} and more')


# --- GBNF and Lark ---------------------------------------------------------------------------------------------------

# llama.cpp's grammars/arithmetic.gbnf and json.gbnf, and what its converters stumble over.
ARITHMETIC = r"""root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
JSON = r"""root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws # as they are
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
GBNFS = {
    "arithmetic": ARITHMETIC,
    "json": JSON,
    "words that end like what follows": 'root ::= Any-Word "a"\nAny-Word ::= [a-z]+',
    "any character": 'root ::= . "X" | "/" . "//" ["/]?',
    "names that are alike": 'root ::= start a-b ab A-b\nstart ::= "<"\na-b ::= "x"\nab ::= "y"\nA-b ::= [z-]',
    "repetitions of repetitions": 'root ::= ("a"+)? (("b"{1,2}){2} "c"*)* (("d"?)+ | ("e"* "f")? "g")',
    "escapes": r'root ::= "\\ \" [/] \x41\t" [\]\\/^-]+ [^\x00-\x1f"-]{2} "/" "\u00e9"?',
    "classes": r'root ::= [&&~] [a&&b~~d] [+--] [--/] [a-] [-b] [^\]^] [(){}*+?.|$] [\x5b\x2d-\x2f] "."',
    "more escapes": r'root ::= "\u0041\u00e9a\u0022" [\u00e9a\U0000005d] [\u00e0-\u00ff]+ "[\]\["',
    "counts": 'root ::= "a"{2,4} ("b" | "") [cd]{3}',
    "names in capitals": 'root ::= A b\nA ::= "A"\nb ::= "a A \\" A" | [A]',
}


class LlamaCppGrammar:
    """llama.cpp's own walk through a grammar, over a model's vocabulary."""

    def __init__(self, backend: LlamaCppBackend, text: str) -> None:
        import llama_cpp

        self._llama = llama_cpp
        self._vocab_size = backend.info.vocab_size
        vocab = llama_cpp.llama_model_get_vocab(backend._model)
        self._sampler = llama_cpp.llama_sampler_init_grammar(vocab, text.encode(), b"root")
        assert self._sampler
        self._tokens = (llama_cpp.llama_token_data * self._vocab_size)()

    def allowed(self) -> np.ndarray:
        for i, entry in enumerate(self._tokens):
            entry.id, entry.logit = i, 0.0
        array = self._llama.llama_token_data_array(data=self._tokens, size=self._vocab_size, selected=-1, sorted=False)
        self._llama.llama_sampler_apply(self._sampler, ctypes.byref(array))
        return np.array([entry.logit == 0.0 for entry in self._tokens])

    def take(self, token: int) -> None:
        self._llama.llama_sampler_accept(self._sampler, token)

    def close(self) -> None:
        self._llama.llama_sampler_free(self._sampler)


def is_text(data: bytes) -> bool:
    try:
        return bool(data.decode()) and data != b"\0"
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize("name", GBNFS)
def test_gbnf_allows_what_llama_cpp_allows(demo: LlamaCppBackend, name: str) -> None:
    """But for parts of characters, of which llama.cpp lets some through that become none."""
    tokenizer = demo.tokenizer
    compared = np.array([is_text(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)])
    compared[list(tokenizer.stop_ids)] = True
    grammars = Grammars(tokenizer)
    for seed in range(2):
        random = np.random.default_rng(seed)
        theirs, ours = LlamaCppGrammar(demo, GBNFS[name]), grammars.matcher(gbnf(GBNFS[name]))
        text = b""
        for _ in range(16):
            mask = ours.allowed()
            differs = ((theirs.allowed() != mask) & compared).nonzero()[0]
            assert not differs.size, (text, [tokenizer.token_bytes(int(token)) for token in differs[:5]])
            token = int(random.choice((mask & compared).nonzero()[0]))
            if token in tokenizer.stop_ids:
                break
            text += tokenizer.token_bytes(token)
            theirs.take(token)
            assert ours.take(token)
        theirs.close()


def test_what_follows_a_rule_of_characters_is_not_swallowed_by_it() -> None:
    assert accepts(gbnf(ARITHMETIC), "x = 1\n")
    assert accepts(gbnf(ARITHMETIC), "(a+b) *12=\n  c2 \ny= z\n")
    assert not accepts(gbnf(ARITHMETIC), "x = 1")
    assert accepts(gbnf(GBNFS["words that end like what follows"]), "banana")


def test_a_hyphen_may_be_escaped() -> None:
    for text in ("a-", "b-", "--"):
        found = matcher(gbnf(r'root ::= [a\-b] "\-"'))
        assert all(found.take(byte) for byte in text.encode())
    assert not matcher(gbnf(r"root ::= [a\-c]")).take(ord("b")), "no range"


def test_a_hyphen_behind_a_range_is_itself() -> None:
    allowed = matcher(gbnf("root ::= [a-c-e]")).allowed()
    assert [chr(byte) for byte in range(128) if allowed[byte]] == ["-", "a", "b", "c", "e"]


def test_characters_beside_those_that_are_none_are_characters() -> None:
    assert accepts(gbnf(r'root ::= "\ud7ff\ue000"'), "\ud7ff\ue000")


def test_a_list_of_thousands_of_words_is_a_grammar() -> None:
    found = matcher(gbnf("root ::= " + " | ".join(f'"w{i}"' for i in range(5000))))
    assert all(found.take(byte) for byte in b"w4999")


def test_a_line_end_is_any_character_too() -> None:
    assert accepts(gbnf('root ::= . "x"'), "\nx")
    assert accepts(gbnf('root ::= . "x"'), "東x")


def test_what_must_come_may_come_in_any_tokens() -> None:
    tokenizer = ByteTokenizer(texts=("hello", "he"))
    for source in ('start: "hello"', '%llguidance {"no_forcing": false}\nstart: "hello"'):
        assert matcher(lark(source), tokenizer).allowed().nonzero()[0].tolist() == [ord("h"), 256, 257]


def test_lark_may_ask_for_a_control_token_and_nothing_else_allows_one() -> None:
    tokenizer = ByteTokenizer()
    start = tokenizer.encode("<|start|>")[0]
    assert matcher(lark('start: <|start|> "x"'), tokenizer).allowed().nonzero()[0].tolist() == [start]
    for other in (lark("start: /(?s:.)*/"), gbnf("root ::= .*"), ANY_JSON):
        assert not matcher(other, tokenizer).allowed()[start]


# --- vocabularies ----------------------------------------------------------------------------------------------------


def test_a_grammar_that_becomes_too_much_says_so() -> None:
    found = matcher(gbnf("root ::= " + " | ".join(f'"x" [a-z] "{i}"' for i in range(21_000))))
    with pytest.raises(RunnerError) as caught:
        for _ in range(2):
            found.allowed()
            found.take(ord("x"))
    assert "cannot go on" in caught.value.message
    assert caught.value.hint


def test_what_ends_an_answer_is_no_part_of_one_and_padding_is_no_token() -> None:
    """Some vocabularies name what ends an answer like a text."""
    tokenizer = ByteTokenizer(stops=("<|end|>", "</s>"), texts=("</s>", "ab"))
    found = matcher(gbnf('root ::= [ab</s>]* "."'), tokenizer)
    end_of_text, ab = 256, 257
    assert found.allowed()[ab]
    assert not found.allowed()[end_of_text]
    assert found.take(ab)
    assert found.take(ord("."))
    assert set(found.allowed().nonzero()[0].tolist()) == tokenizer.stop_ids
    assert not matcher(gbnf("root ::= .*"), tokenizer).allowed()[-3:].any()


def test_after_the_end_there_are_only_ends() -> None:
    tokenizer = ByteTokenizer()
    found = matcher(gbnf('root ::= "x"'), tokenizer)
    (end,) = tokenizer.stop_ids
    assert not found.allowed()[end]
    assert found.take(ord("x"))
    for _ in range(3):
        assert found.allowed().nonzero()[0].tolist() == [end]
        assert found.take(end)
    assert found.take(ord("y")), "a backend goes on past the end, and nobody reads it"
    assert found.allowed().nonzero()[0].tolist() == [end]


def test_two_texts_by_one_grammar_know_nothing_of_each_other() -> None:
    grammars = Grammars(ByteTokenizer())
    one, other = grammars.matcher(gbnf('root ::= "ab"')), grammars.matcher(gbnf('root ::= "ab"'))
    assert one.take(ord("a"))
    assert other.allowed()[ord("a")]
    assert not one.take(ord("a")), "and nothing happened"
    assert one.take(ord("b"))
    one.reset()
    assert one.allowed().nonzero()[0].tolist() == [ord("a")]


def test_old_grammars_give_way_and_come_again() -> None:
    grammars = Grammars(ByteTokenizer())
    for letter in "abcdefghijklmnop" * 2:
        assert grammars.matcher(gbnf(f'root ::= "{letter}"')).allowed()[ord(letter)]


def test_the_vocabularies_of_both_backends_give_the_same_masks(
    demo: LlamaCppBackend, demo_tokenizer: HuggingFaceTokenizer
) -> None:
    grammar = schema(PERSON)
    gguf, hf = Grammars(demo.tokenizer).matcher(grammar), Grammars(demo_tokenizer).matcher(grammar)
    for token in demo_tokenizer.encode('{"name": "Zoë 🙂", "age": 31, "tags": ["東京"], "born": null}'):
        assert np.array_equal(gguf.allowed(), hf.allowed())
        assert gguf.take(token)
        assert hf.take(token)


def test_a_sentencepiece_vocabulary_writes_json(shared_data: Path) -> None:
    backend = load(shared_data / "stories260K" / "gguf" / "stories260K-f32.gguf", kv_type="f32")
    grammars = Grammars(backend.tokenizer)
    for seed in range(5):
        assert is_person(json.loads(walk(backend.tokenizer, grammars, schema(PERSON), seed)))
    backend.close()


def test_a_model_that_cannot_end_an_answer_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="no token that ends an answer"):
        matcher(ANY_JSON, ByteTokenizer(stops=()))


# --- mistakes --------------------------------------------------------------------------------------------------------


PATTERNS = [f".*a{i}.*" for i in range(9)]


def nine_patterns() -> list[Grammar]:
    """Schemas that ask of one string to match all of PATTERNS: twice as many would take an hour to be read."""
    strings: list[Any] = [{"type": "string", "pattern": pattern} for pattern in PATTERNS]
    chain = [strings[0], *({**one, "$ref": f"#/$defs/s/{i}"} for i, one in enumerate(strings[1:]))]
    choice = [{"anyOf": [{"type": "integer"}, one]} for one in strings]
    first, *others = strings
    lark_of = lark(f"start: %json {json.dumps({'allOf': strings})}")
    plain = [
        {"allOf": strings},
        {**first, "allOf": others},
        {"allOf": [{"type": "object", "properties": {"x": one}} for one in strings]},
        {"allOf": [{"properties": {"x": first}}, *({"additionalProperties": one} for one in others)]},
        {"items": {"allOf": choice}},
        {"$ref": "#/$defs/s/8", "$defs": {"s": chain}},
        {"allOf": [*strings[1:], {"type": "string", "format": "uri"}]},
        {"$ref": "#s", "$defs": {"s": {"$anchor": "s", "allOf": strings}}},
        {"properties": {"x": {"allOf": others}}, "patternProperties": {"^x": first}},
    ]
    return [*map(schema, plain), lark_of]


def test_patterns_that_hold_for_different_strings_may_be_many() -> None:
    strings: list[Any] = [{"type": "string", "pattern": pattern} for pattern in PATTERNS]
    check(schema({"anyOf": strings}))
    check(schema({"allOf": [{"type": "object", "properties": {f"x{i}": one}} for i, one in enumerate(strings)]}))
    check(schema({"anyOf": [{"type": "object", "properties": {"x": one}} for one in strings]}))
    check(schema({"allOf": [{"$ref": "#/$defs/s"}] * 20, "$defs": {"s": strings[0]}}))
    check(
        schema(
            {"properties": {"x": strings[0]}, "patternProperties": {f"^y{i}$": one for i, one in enumerate(strings)}}
        )
    )
    words = [{"type": "string", "pattern": f"^[a-z{i}]+$"} for i in range(8)]
    assert accepts(schema({"allOf": words}), '"abc"')


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (Grammar(kind="json_schema", text='{"type": foo}'), r"line 1, column 10"),
        (Grammar(kind="json_schema", text='{\n  "type": "object",\n}'), r"line 3, column 1|line 2, column (19|22)"),
        (Grammar(kind="json_schema", text="[1]"), "no object"),
        (Grammar(kind="json_schema", text='{"a":' * 300 + "1" + "}" * 300), "recursion limit"),
        (Grammar(kind="json_schema", text='{"a":' * 100_000), "nested too deeply"),
        (schema({"type": "strnig"}), "strnig"),
        (schema({"type": "string", "pattern": "("}), "unclosed group"),
        (schema({"type": "string", "x-guidance": 5}), "x-guidance"),
        (schema({"not": {"type": "string"}}), "not"),
        (schema({"type": "object", "unevaluatedProperties": False}), "unevaluatedProperties"),
        (schema({"anyOf": [{"prefixItems": [{}], "additionalItems": False}]}), "additionalItems beside prefixItems"),
        (schema({"anyOf": [{}, {"prefixItems": [], "additionalItems": {}}]}), "additionalItems beside prefixItems"),
        (
            schema({"properties": {"a": {"prefixItems": [], "additionalItems": {}}}}),
            "additionalItems beside prefixItems",
        ),
        (schema({"properties": [1]}), "."),
        (schema({"$ref": "#/$defs/nobody"}), "nobody"),
        (schema({"$ref": "https://example.com/schema.json"}), "example.com"),
        (schema({"type": "integer", "minimum": 3, "maximum": 2}), "minimum"),
        (Grammar(kind="json_schema", text='{"const": NaN}'), "NaN is no number"),
        *((grammar, "more than 8 patterns") for grammar in nine_patterns()),
        (gbnf('root ::= "yes" |\n  [a-z'), r"line 2"),
        (gbnf('root ::= "a" other\nthird ::= "b"'), r"no rule other \(line 1\)"),
        (gbnf('root ::= "a"\nthird ::= other'), r"no rule other \(line 2\)"),
        (gbnf('answer ::= "yes"'), "root"),
        (gbnf(r'root ::= "\ud800"'), "is no character"),
        (gbnf(r'root ::= "\udfff"'), "is no character"),
        (gbnf("root ::= [z-a]"), "z-a in .* is no range"),
        (gbnf("root ::= " + "(" * 100_000), "nested too deeply"),
        (lark('start: "yes" | no\n'), r"no.*line 1, column 8"),
        (lark('start: "x" y\ny: "a\n'), "line 2, column 6"),
        (lark("start: /[/"), "line 1, column 8"),
        (lark('begin: "x"'), "start"),
    ],
)
def test_a_grammar_that_means_nothing_is_refused_with_what_and_where(grammar: Grammar, said: str) -> None:
    for refuse in (lambda: check(grammar), lambda: matcher(grammar)):
        with pytest.raises(UsageError) as caught:
            refuse()
        assert re.search(said, caught.value.message), caught.value.message
        assert "\n" not in caught.value.message
        assert len(caught.value.message) < 400
        assert caught.value.hint


def test_an_array_may_be_described_in_either_dialect() -> None:
    check(schema({"type": "array", "prefixItems": [{"type": "string"}], "items": False}))
    check(schema({"type": "array", "items": [{"type": "string"}], "additionalItems": False}))


def test_names_and_values_are_no_dialect() -> None:
    both = {"prefixItems": {"type": "string"}, "additionalItems": {"type": "string"}}
    check(schema({"type": "object", "properties": both}))
    check(schema({"const": {"prefixItems": 1, "additionalItems": 2}}))


@pytest.mark.parametrize(
    "grammar",
    [gbnf('root ::= root "a"'), schema({"$ref": "#"}), gbnf('root ::= "a" | <|nobody|>'), lark("start: <|nobody|>")],
)
def test_a_grammar_that_nothing_matches_is_refused(grammar: Grammar) -> None:
    with pytest.raises(UsageError, match=r"no text matches it|nobody|cannot be used"):
        matcher(grammar)


def test_a_grammar_that_the_vocabulary_cannot_go_on_with_says_so() -> None:
    class NoDigits(ByteTokenizer):
        def token_bytes(self, token: int, *, special: bool = False) -> bytes:
            return b"" if token in range(ord("0"), ord("9") + 1) else super().token_bytes(token, special=special)

    found = matcher(gbnf('root ::= "x" [0-9]'), NoDigits())
    with pytest.raises(RunnerError) as caught:
        for byte in b"x5":
            found.allowed()
            assert found.take(byte)
    assert "cannot go on" in caught.value.message


def test_without_llguidance_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "llguidance"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    for grammar in (ANY_JSON, gbnf('root ::= "a"'), lark('start: "a"')):
        for refuse in (lambda one=grammar: check(one), lambda one=grammar: matcher(one)):
            with pytest.raises(BackendUnavailable) as caught:
                refuse()
            assert "pip install llguidance" in caught.value.hint


def test_what_llguidance_has_no_room_for_is_said_in_our_words() -> None:
    with pytest.raises(UsageError) as caught:
        matcher(gbnf('root ::= "a"' + ' | "a"' * 70_000))
    assert "too large" in caught.value.message
    assert "panic" not in caught.value.message


@pytest.mark.parametrize("text", ["", " \n", "x" * (LARGEST_GRAMMAR + 1)])
def test_an_empty_or_huge_grammar_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        gbnf(text)


# --- as users give them ----------------------------------------------------------------------------------------------


def test_a_schema_given_as_a_grammar_and_a_grammar_as_a_schema_are_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"type": "string"}')
    (tmp_path / "a.gbnf").write_text('root ::= "yes"')
    with pytest.raises(UsageError) as caught:
        grammar_file(tmp_path / "a.json")
    assert "--json-schema" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        json_schema_of(str(tmp_path / "a.gbnf"))
    assert "--grammar" in caught.value.hint


def test_a_file_that_is_too_long_is_refused_for_its_length(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes("aé".encode() * (2 * LARGEST_GRAMMAR))  # cut in the middle of a character
    with pytest.raises(UsageError, match="longer than"):
        grammar_file(tmp_path / "long")


def test_a_grammar_is_told_by_its_looks_and_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('\ufeff{"type": "string"}')
    (tmp_path / "schema").write_text('{"type": "string"}')
    (tmp_path / "a.gbnf").write_text('# answers\nroot ::= start-of-it\nstart-of-it ::= "yes"')
    (tmp_path / "a.lark").write_text('start: "::=" x\nx: "y"')
    of_string = Grammar(kind="json_schema", text='{"type": "string"}')
    assert named('{"type": "string"}', tmp_path) == of_string
    assert named("a.json", tmp_path) == json_schema_of(str(tmp_path / "a.json")) == of_string
    assert json_schema_of(str(tmp_path / "schema")) == of_string
    assert named("json", tmp_path) == json_schema_of("JSON") == ANY_JSON
    assert named("'a.gbnf'", tmp_path) == grammar_file(tmp_path / "a.gbnf")
    assert grammar_file(tmp_path / "a.gbnf").kind == "gbnf"
    assert grammar_file(tmp_path / "a.lark").kind == "lark"
    assert named("off", tmp_path) is named("None", tmp_path) is None


def test_where_no_file_is_the_remedy_is_one_that_is_taken_there(tmp_path: Path) -> None:
    for given in ('{"type": "integer"}', 'root ::= "yes"'):
        with pytest.raises(UsageError, match="cannot be read") as raised:
            grammar_file(Path(given))
        assert raised.value.hint.endswith("a JSON schema is given with --json-schema.")
    for refused in (lambda: named("missing", tmp_path), lambda: json_schema_of("missing")):
        with pytest.raises(UsageError, match="cannot be read") as raised:
            refused()
        assert raised.value.hint.endswith("a JSON schema may be given itself.")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b'root ::= "\xe9"')
    with pytest.raises(UsageError, match=r"nowhere\.json cannot be read"):
        named("nowhere.json", tmp_path)
    with pytest.raises(UsageError, match="cannot be read"):
        grammar_file(tmp_path)
    with pytest.raises(UsageError, match="not UTF-8"):
        grammar_file(tmp_path / "latin")
    with pytest.raises(UsageError, match="is no path"):
        named("~nobody-here/x", tmp_path)
    with pytest.raises(UsageError, match="no JSON"):
        json_schema_of("{")
