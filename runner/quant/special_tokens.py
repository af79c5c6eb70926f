"""Which tokens have a role, and what goes around a text, by the small files beside a model's weights.

It knows neither how text becomes tokens nor what a GGUF keeps of it (vocabulary.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import UnsupportedModel
from runner.quant.json_file import read_json_if_there


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """The ids with a role, and whether BOS and EOS are put around a text. end_ids: every id that ends an answer."""

    bos_id: int | None
    eos_id: int
    unk_id: int | None
    pad_id: int | None
    end_ids: tuple[int, ...]
    add_bos: bool
    add_eos: bool


def read_special_tokens(
    directory: Path,
    ids: Mapping[str, int],
    vocab_size: int,
    *,
    first: str | None,
    last: str | None,
    adds_bos_unasked: bool,
) -> SpecialTokens:
    """The roles of tokens, from tokenizer_config.json, generation_config.json and config.json, in this order.

    ids: token text -> id. vocab_size: ids from there on are nobody's and are passed over. first, last: the tokens that
    tokenizer.json's post-processor puts around a text, which count where add_bos_token and add_eos_token are not
    given. adds_bos_unasked: what holds when no file says anything.

    Raises UnsupportedModel when no token ends an answer: a GGUF without one would end at a token of llama.cpp's choice.
    """
    config = read_json_if_there(directory / "config.json")
    generation = read_json_if_there(directory / "generation_config.json")
    tokenizer = read_json_if_there(directory / "tokenizer_config.json")

    def id_of(text: str | None) -> int | None:
        return ids.get(text) if text else None  # a vocabulary may have an empty piece

    def role(name: str) -> int | None:
        named = id_of(_token_text(tokenizer.get(f"{name}_token")))
        if named is not None:
            return named
        return _first_id(generation, config, key=f"{name}_token_id", vocab_size=vocab_size)

    bos, eos = role("bos"), role("eos")
    bos = bos if bos is not None else id_of(first)
    end_ids = _end_ids(eos, generation, config, vocab_size=vocab_size)
    if not end_ids:
        raise UnsupportedModel(
            "No file of the model says which token ends an answer.",
            hint='Write "eos_token_id" into its generation_config.json.',
        )
    return SpecialTokens(
        bos_id=bos,
        eos_id=end_ids[0],
        unk_id=role("unk"),
        pad_id=role("pad"),
        end_ids=end_ids,
        add_bos=_adds(tokenizer.get("add_bos_token"), bos, id_of(first), unasked=adds_bos_unasked),
        add_eos=_adds(tokenizer.get("add_eos_token"), eos, id_of(last), unasked=False),
    )


def around_text(tokenizer: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The special tokens that tokenizer.json's post-processor puts before and after a single text."""
    processor = tokenizer.get("post_processor")
    if not isinstance(processor, Mapping):
        return None, None
    for part in processor.get("processors") or [processor]:
        if part.get("type") == "TemplateProcessing":
            template = part.get("single") or []
            names = [entry.get("SpecialToken", {}).get("id") for entry in template]
            return (names[0], names[-1]) if len(names) > 1 else (None, None)
    return None, None


def _adds(said: object, role_id: int | None, around_id: int | None, *, unasked: bool) -> bool:
    """Whether a token goes around a text: the flag decides, then the post-processor, then what is usual."""
    if role_id is None:
        return False
    if isinstance(said, bool):
        return said
    return around_id == role_id or unasked


def _end_ids(eos: int | None, *sources: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    found = [] if eos is None else [eos]
    for source in sources:
        value = source.get("eos_token_id")
        found += [
            item
            for item in (value if isinstance(value, list) else [value])
            if type(item) is int and 0 <= item < vocab_size
        ]
    return tuple(dict.fromkeys(found))


def _token_text(value: object) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _first_id(*sources: Mapping[str, Any], key: str, vocab_size: int) -> int | None:
    for source in sources:
        value = source.get(key)
        if isinstance(value, list) and value:
            value = value[0]
        if type(value) is int and 0 <= value < vocab_size:
            return value
    return None
