"""Which `tokenizer.ggml.pre` splits text as a tokenizer.json's pre-tokenizer does: a table of structures.

The match is on what the pre-tokenizer does (its regular expressions and steps), never on a model's name: llama.cpp's
own splitters are fixed in its source, and a wrong one changes token ids without any error. This file knows nothing of
vocabularies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from runner.errors import UnsupportedModel

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD: Final = r"[^\r\n\p{L}\p{N}]?"

_LLAMA3: Final = rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN2: Final = rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN35: Final = rf"{_CONTRACTIONS}|{_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_SEED_CODER: Final = rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_TEKKEN: Final = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT4O: Final = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_DEEPSEEK_WORDS: Final = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, kw_only=True)
class PreTokenizer:
    """A splitter of llama.cpp: the steps of a tokenizer.json that it equals.

    ignore_merges: whether llama.cpp, for this splitter, takes a word that is in the vocabulary without merging.
    limits: where llama.cpp's version is known to split otherwise, for people; "" when it is exact.
    """

    name: str
    steps: tuple[str, ...]
    ignore_merges: bool = False
    limits: str = ""


_MARKS: Final = (
    "llama.cpp splits words with combining marks (as in Khmer or Devanagari) and emoji with variation selectors "
    "otherwise than the tokenizer does; other text gets the same token ids."
)

# A step is "split:REGEX" (matches and the text between them are pieces), "digits" (each digit alone),
# "gpt2" (the splitting of GPT-2, built into ByteLevel) or "bytes" (ByteLevel without splitting).
PRE_TOKENIZERS: Final = (
    PreTokenizer(name="gpt-2", steps=("gpt2",)),
    PreTokenizer(name="smollm", steps=("digits", "gpt2")),
    PreTokenizer(name="llama-bpe", steps=("split:" + _LLAMA3, "bytes"), ignore_merges=True),
    PreTokenizer(name="smaug-bpe", steps=("split:" + _LLAMA3, "bytes")),
    PreTokenizer(name="qwen2", steps=("split:" + _QWEN2, "bytes")),
    PreTokenizer(name="qwen35", steps=("split:" + _QWEN35, "bytes")),
    PreTokenizer(name="seed-coder", steps=("split:" + _SEED_CODER, "bytes")),
    PreTokenizer(name="tekken", steps=("split:" + _TEKKEN, "bytes"), ignore_merges=True, limits=_MARKS),
    PreTokenizer(name="gpt-4o", steps=("split:" + _GPT4O, "bytes"), limits=_MARKS),
    PreTokenizer(
        name="deepseek-v3",
        steps=(r"split:\p{N}{1,3}", "split:[一-龥぀-ゟ゠-ヿ]+", "split:" + _DEEPSEEK_WORDS, "bytes"),
    ),
    PreTokenizer(
        name="deepseek-coder",
        steps=("split:[\r\n]", r"split:\s?\p{L}+", r"split:\s?\p{P}+", "split:[一-龥ࠀ-一가-퟿]+", "digits", "bytes"),
    ),
)


def find(pre_tokenizer: object, *, ignore_merges: bool) -> PreTokenizer:
    """The entry of PRE_TOKENIZERS that equals tokenizer.json's `pre_tokenizer` value.

    Raises UnsupportedModel, naming the steps, when there is none: a near match would give wrong token ids.
    """
    steps = tuple(_steps(pre_tokenizer))
    for known in PRE_TOKENIZERS:
        if known.steps == steps and known.ignore_merges == ignore_merges:
            return known
    described = " + ".join(f"'{step}'" for step in steps) or "none"
    raise UnsupportedModel(
        f"No pre-tokenizer of llama.cpp is known to equal this model's: {described}"
        f"{' with ignore_merges' if ignore_merges else ''}.",
        hint="Look for a ready GGUF of the model.",
    )


def _steps(value: object) -> Iterator[str]:
    if value is None:
        return
    if not isinstance(value, Mapping):
        yield f"unreadable:{value!r}"
        return
    kind = value.get("type")
    if kind == "Sequence":
        parts = value.get("pretokenizers")
        for part in parts if isinstance(parts, list) else [None]:
            yield from _steps(part)
    elif kind == "Split":
        yield _split_step(value)
    elif kind == "Digits" and value.get("individual_digits") is True:
        yield "digits"
    elif kind == "ByteLevel" and value.get("add_prefix_space") is False:
        yield "gpt2" if value.get("use_regex", True) else "bytes"
    else:
        options = {key: item for key, item in value.items() if key not in ("type", "trim_offsets")}
        yield f"{kind}:{options}"


def _split_step(value: Mapping[str, Any]) -> str:
    pattern = value.get("pattern")
    regex = pattern.get("Regex") if isinstance(pattern, Mapping) else None
    way = (value.get("behavior"), value.get("invert"))
    # Keeping the matches and dropping the rest is the same thing when the expression matches everything, as every
    # expression that ends by matching any run of spaces does.
    covers_all = isinstance(regex, str) and regex.endswith(r"|\s+")
    if isinstance(regex, str) and (way == ("Isolated", False) or (way == ("Removed", True) and covers_all)):
        return f"split:{regex}"
    return f"Split:{pattern}/{way[0]}/{way[1]}"
