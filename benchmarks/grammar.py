"""What an answer by a grammar costs on the CPU: `python benchmarks/grammar.py [TOKENIZER...]` prints two tables.

TOKENIZER: a directory with a tokenizer.json and what else says which token ends an answer; the demo's where none is
given. First what is paid once: the import, the vocabulary, and the grammar, each to the first mask. Then what a token
of a text costs, median and worst: the mask, going on with the token, and what the mask adds to choosing it. The text is
JSON of one object, once by a schema and once by llama.cpp's json.gbnf, which says the same of JSON without a schema.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from arguments import existing, positive
from sampling import SETTINGS, make_logits

from runner.backends.native.tokenizer import HuggingFaceTokenizer
from runner.config import Grammar
from runner.grammar import Grammars
from runner.sampling import sample

DEMO = Path(__file__).parent.parent / "models" / "demo"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "tags"],
}
JSON_GBNF = r"""root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
GRAMMARS = {
    "schema": Grammar(kind="json_schema", text=json.dumps(SCHEMA)),
    "json.gbnf": Grammar(kind="gbnf", text=JSON_GBNF),
}
TEXT = json.dumps(
    {
        "name": "Somebody with a long name who lives in 東京 and writes\nlong letters",
        "age": 44,
        "tags": ["one", "two words"],
    },
    ensure_ascii=False,
)


def timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def shown(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e6:9.0f}{max(seconds) * 1e6:9.0f}"


def per_token(tokenizer: HuggingFaceTokenizer, grammars: Grammars, grammar: Grammar) -> str:
    """The costs of a token of TEXT in us, median and worst of each."""
    logits = make_logits("peaked", tokenizer.vocab_size)
    masks, takes = list[float](), list[float]()
    added: dict[str, list[float]] = {"greedy": [], "top_k 40, top_p 0.95, min_p 0.05": []}
    matcher = grammars.matcher(grammar)
    for token in tokenizer.encode(TEXT):
        masks.append(timed(matcher.allowed))
        allowed = matcher.allowed()
        for name, found in added.items():
            params = SETTINGS[name]
            masked = min(timed(lambda p=params, a=allowed: sample(logits, p, [], 0, a)) for _ in range(3))
            found.append(masked - min(timed(lambda p=params: sample(logits, p, [], 0)) for _ in range(3)))
        takes.append(timed(lambda t=token: matcher.take(t)))
    return "".join(map(shown, (masks, takes, *added.values())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "tokenizers", nargs="*", type=existing, default=[DEMO], help="directories with a tokenizer.json"
    )
    parser.add_argument("--vocab", type=positive, nargs="*", help="vocabulary sizes, where config.json does not say")
    arguments = parser.parse_args()
    print(f"{'import of llguidance':34s}{timed(lambda: __import__('llguidance')) * 1e3:9.0f} ms")
    rows = []
    for i, directory in enumerate(arguments.tokenizers):
        config = directory / "config.json"
        n = arguments.vocab[i] if arguments.vocab else json.loads(config.read_text())["vocab_size"]
        tokenizer = HuggingFaceTokenizer(directory / "tokenizer.json", n)
        grammars = Grammars(tokenizer)
        first = timed(lambda g=grammars: g.matcher(Grammar(kind="gbnf", text='root ::= "x"')).allowed())
        print(f"{f'vocabulary of {n}':34s}{first * 1e3:9.0f} ms")
        for name, grammar in GRAMMARS.items():
            once = timed(lambda g=grammars, one=grammar: g.matcher(one).allowed())
            print(f"{f'  {name}':34s}{once * 1e3:9.1f} ms")
            rows.append(f"{n:8d}  {name:10s}{per_token(tokenizer, grammars, grammar)}")
    heads = "".join(f"{head:>18s}" for head in ("mask", "going on", "+ greedy", "+ sampled"))
    print(f"\n{'us a token, median and worst':20s}{heads}\n" + "\n".join(rows))


if __name__ == "__main__":
    sys.exit(main())
