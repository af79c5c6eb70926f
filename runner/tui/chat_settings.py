"""What the settings panel edits: the system prompt, sampling, chat options and speculation as texts, made into values.

Pure functions of values; the ranges are config.py's, the words settings' table's. It knows no widget.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from runner import set_values
from runner.config import ChatOptions, LoadOptions, OverflowPolicy, SamplingParams, Speculation, Think, build
from runner.errors import UsageError
from runner.settings import SETTINGS

CHOICES: Mapping[str, tuple[str, ...]] = {
    "think": get_args(Think),
    "overflow": get_args(OverflowPolicy),
    "speculation": get_args(Speculation),
}
_ELSEWHERE = ("grammar",)  # what no line holds: a command sets it
_SAMPLING = tuple(field.name for field in dataclasses.fields(SamplingParams) if field.name not in _ELSEWHERE)
_OPTIONS = ("think", "think_budget", "overflow")
LOADING = ("speculation", "draft", "draft_max", "draft_file")
FIELDS = (*_OPTIONS, *_SAMPLING, *LOADING)
HELP = {item.field: item.help for item in SETTINGS if item.field in FIELDS}
KEYS = {item.field: item.key for item in SETTINGS if item.field in FIELDS}
_OWNERS: Mapping[str, type[SamplingParams | ChatOptions | LoadOptions]] = {
    **dict.fromkeys(_SAMPLING, SamplingParams),
    **dict.fromkeys(_OPTIONS, ChatOptions),
    **dict.fromkeys(LOADING, LoadOptions),
}


@dataclass(frozen=True)
class ChatSettings:
    """How the next answers are made. own_params: the sampling that differs from what the model has by default.

    loading: fields of LoadOptions, which hold once the model is loaded again.
    """

    system: str
    own_params: Mapping[str, Any]
    options: ChatOptions
    loading: Mapping[str, Any]


def texts(params: SamplingParams, options: ChatOptions, loading: LoadOptions) -> dict[str, str]:
    """Every field as it is typed; "none" where nothing is set."""
    given = {SamplingParams: params, ChatOptions: options, LoadOptions: loading}
    return {name: set_values.shown(getattr(given[_OWNERS[name]], name)) for name in FIELDS}


def value_of(name: str, text: str) -> Any:
    """The value that a field's text means. Raises UsageError with the range."""
    return set_values.parsed(name, text.strip())


def read(system: str, typed: Mapping[str, str], defaults: Mapping[str, str]) -> ChatSettings:
    """What was typed, as values; an empty field means its default. Raises UsageError.

    defaults: the fields as they are without what the user set in this chat.
    """
    values = {name: value_of(name, text.strip() or defaults[name] or "none") for name, text in typed.items()}
    own = {name: values[name] for name in _SAMPLING if is_changed(name, typed[name], defaults[name])}
    options = build(ChatOptions, {name: values[name] for name in _OPTIONS})
    return ChatSettings(system.strip("\n"), own, options, {name: values[name] for name in LOADING})


def is_changed(name: str, text: str, default: str) -> bool:
    """Whether a field's text means something else than its default. A text that means nothing is a change."""
    if not text.strip():
        return False
    try:
        return bool(value_of(name, text) != value_of(name, default or "none"))
    except UsageError:
        return True
