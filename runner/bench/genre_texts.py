"""The texts that a model writes on when speculation is measured: real prompts by genre, from files beside this one.

How much of a text can be guessed is a property of the text: code that is edited repeats its prompt, a novel does not.
It turns prompts into token ids and knows nothing of measuring. genres/SOURCES.md says where the texts are from.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

import numpy as np

from runner.backends.base import Tokenizer
from runner.bench.record import Genre
from runner.config import ChatOptions
from runner.prompt import build_prompt
from runner.types import Message, ModelInfo

_RAW: Final = ChatOptions(raw=True)


@dataclass(frozen=True, kw_only=True)
class GenrePrompt:
    """ask: what the model is given; a text that it is to continue, or a message to answer. answer: what a good model
    might write, for benchmarks in which none does."""

    name: str
    ask: str
    answer: str
    continues: bool = False


@cache
def genre_prompts(genre: Genre) -> tuple[GenrePrompt, ...]:
    """The prompts of a genre, without the line ends around them."""
    text = resources.files("runner.bench").joinpath("genres", f"{genre}.toml").read_text(encoding="utf-8")
    return tuple(
        GenrePrompt(
            name=plain["name"],
            ask=plain["ask"].strip(),
            answer=plain["answer"].strip(),
            continues=plain.get("continues", False),
        )
        for plain in tomllib.loads(text)["prompts"]
    )


def message_ids(ask: str, info: ModelInfo, tokenizer: Tokenizer, *, is_raw: bool = False) -> tuple[int, ...]:
    """A message as a chat gives it to the model; as it stands where the model has no chat template, or when is_raw.

    Raises ContextOverflow.
    """
    options = _RAW if is_raw or info.chat_template is None else ChatOptions(think="off")
    return build_prompt([Message(role="user", content=ask)], options, info, tokenizer, 1).ids


def prompt_ids(prompt: GenrePrompt, info: ModelInfo, tokenizer: Tokenizer) -> tuple[int, ...]:
    """What a model is given of a prompt. Raises ContextOverflow."""
    ask = f"{prompt.ask}\n" if prompt.continues else prompt.ask
    return message_ids(ask, info, tokenizer, is_raw=prompt.continues)


def md5_of(prompts: Sequence[Sequence[int]]) -> str:
    """Of the ids of all prompts, as little-endian 32-bit numbers."""
    data = b"".join(np.asarray(ids, "<i4").tobytes() for ids in prompts)
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
