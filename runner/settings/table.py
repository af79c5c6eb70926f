"""The one table of settings: name, type, default, flag, help. Files, variables, `runner config` and the docs follow it.

A value is checked by building the configuration that it belongs to, so a range is written once, in config.py. This file
reads no file and no variable.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from runner.config import BACKENDS, LONGEST_DRAFT, ChatOptions, LoadOptions, SamplingParams, Speculation, objection
from runner.errors import ConfigError, UsageError, nearest_hint
from runner.list_text import LIST_HINT, is_listed, listed

Kind = Literal["text", "number", "integer", "yes/no", "texts", "layers"]
Owner = type[LoadOptions] | type[SamplingParams] | type[ChatOptions]

_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_EXPECTED: dict[Kind, str] = {
    "text": "It must be text; put quotes around several words.",
    "number": "It must be a number.",
    "integer": "It must be a whole number.",
    "yes/no": "It must be true or false.",
    "texts": "It must be a list of texts.",
    "layers": "It must be auto, all, or a number of layers.",
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting.

    owner, field: the configuration and its field that the value becomes, if any. flag: the command line's name for it.
    default None: nothing is set, and the help says what happens then. is_needed: an empty text is no value.
    """

    key: str
    kind: Kind
    default: Any
    flag: str
    help: str
    owner: Owner | None = None
    field: str = ""
    is_needed: bool = False

    @property
    def variable(self) -> str:
        return f"RUNNER_{self.key.upper()}"

    @property
    def words(self) -> tuple[str, ...]:
        """The words that the value can be, where it is one of a few."""
        if self.kind == "yes/no":
            return ("true", "false")
        if self.key == "backend":
            return BACKENDS
        return _literals(get_type_hints(self.owner)[self.field]) if self.owner is not None else ()

    def parse(self, *texts: str) -> Any:
        """The value that `texts` of a variable or command line mean; only a list takes several, or one that lists them.

        Raises ConfigError.
        """
        if self.kind == "texts":
            return self.check(self._listed(texts[0]) if len(texts) == 1 and is_listed(texts[0]) else texts)
        if len(texts) != 1:
            raise ConfigError(f"{self.key} takes one value, not {len(texts)}.", hint=_EXPECTED[self.kind])
        text = texts[0]
        text = text.strip() if self.kind != "text" else text
        if self.kind == "yes/no" and text.lower() in (*_YES, *_NO):
            return text.lower() in _YES
        if self.kind in ("integer", "number", "layers"):
            for number in (int, float):
                try:
                    return self.check(number(text))
                except ValueError:
                    continue
        return self.check(text)

    def _listed(self, text: str) -> list[str]:
        try:
            return listed(text)
        except ValueError as error:
            raise ConfigError(f"{self.key} is {text!r}: {error}.", hint=LIST_HINT) from None

    def check(self, value: Any) -> Any:
        """`value` as it is used, or ConfigError when its type or range is wrong."""
        if not _has_kind(value, self.kind):
            raise ConfigError(f"{self.key} is {value!r}.", hint=_EXPECTED[self.kind])
        if self.is_needed and not value.strip():
            raise ConfigError(f"{self.key} is empty.", hint="Leave it unset for the default.")
        if self.kind == "number":
            is_huge = abs(value) >= 1e300  # an integer may be more than a float can be; refused below
            value = (math.inf if value > 0 else -math.inf) if is_huge else float(value)
        elif self.kind == "texts":
            value = tuple(value)
        self._refuse(self.key, value, ConfigError)
        return value

    def check_flag(self, value: Any) -> None:
        """Raise UsageError for what the flag cannot be."""
        self._refuse(self.flag or self.key, value, UsageError)

    def _refuse(self, name: str, value: Any, error: type[UsageError]) -> None:
        if self.owner is not None and (hint := objection(self.owner, self.field, value)):
            values = value if isinstance(value, tuple) else (value,)
            shown = ", ".join(repr(one).removesuffix(".0") for one in values)  # 1000, as it was written
            raise error(f"{name} is {shown}.", hint=hint)


def _literals(hint: Any) -> tuple[str, ...]:
    """The texts that a type allows by name, also as a part of a union."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(word for part in get_args(hint) for word in _literals(part))


def _has_kind(value: Any, kind: Kind) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    is_integer = is_number and isinstance(value, int)
    if kind == "texts":
        return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)
    if kind == "layers":
        return is_integer or value in ("auto", "all")
    if kind == "yes/no":
        return isinstance(value, bool)
    return {"text": isinstance(value, str), "number": is_number, "integer": is_integer}[kind]


def _fields(owner: Owner, *rows: tuple[str, Kind, str, str]) -> Iterator[Setting]:
    """Settings that are fields of a configuration, with its defaults: (field, kind, flag, help)."""
    defaults = {field.name: field.default for field in dataclasses.fields(owner)}
    for name, kind, flag, text in rows:
        key = "context_overflow" if name == "overflow" else name
        yield Setting(key=key, kind=kind, default=defaults[name], flag=flag, help=text, owner=owner, field=name)


SETTINGS: tuple[Setting, ...] = (
    Setting(
        key="model",
        kind="text",
        default="demo",
        flag="--model",
        help="The model, where none is named.",
        is_needed=True,
    ),
    Setting(key="system", kind="text", default="", flag="--system", help="The system prompt of new chats."),
    *_fields(
        LoadOptions,
        ("backend", "text", "--backend", "What runs the model: auto, native or llamacpp."),
        ("ctx_size", "integer", "--ctx-size", "Tokens of context; unset, the model's own up to 8192."),
        ("n_gpu_layers", "layers", "--n-gpu-layers", "Layers on the GPU: auto, all or a number; 0 is the CPU."),
        ("kv_type", "text", "--kv-type", "Type of the KV cache: f16, bf16, f32 or q8_0."),
        (
            "n_threads",
            "integer",
            "--threads",
            "CPU threads; unset, the physical cores, or fewer where others keep those busy.",
        ),
        (
            "batch_size",
            "integer",
            "",
            "Prompt tokens that are prefilled at once; unset, what the backend is fast with.",
        ),
        ("speculation", "text", "--spec", f"What drafts tokens: {', '.join(get_args(Speculation))}."),
        ("draft", "text", "--draft", "The model that drafts; unset, none but what needs no model."),
        ("draft_max", "integer", "--draft-max", f"Longest draft, in tokens: 1 to {LONGEST_DRAFT}."),
        (
            "draft_file",
            "texts",
            "--draft-file",
            "Text files that drafts may quote; a path is meant from the file that has it, or the working directory.",
        ),
    ),
    *_fields(
        SamplingParams,
        ("temperature", "number", "--temp", "Randomness; 0 is greedy."),
        ("top_k", "integer", "--top-k", "Keep the N likeliest tokens; 0 is off."),
        ("top_p", "number", "--top-p", "Keep the likeliest tokens up to this probability in all; 1 is off."),
        ("min_p", "number", "--min-p", "Drop tokens below this share of the likeliest; 0 is off."),
        ("repeat_penalty", "number", "--repeat-penalty", "Divides the logits of recent tokens; 1 is off."),
        ("presence_penalty", "number", "--presence-penalty", "Subtracted once for a recent token; 0 is off."),
        ("frequency_penalty", "number", "--frequency-penalty", "Subtracted for each recent use; 0 is off."),
        ("penalty_last_n", "integer", "", "How many tokens penalties look back; 0 is off, -1 the whole context."),
        ("seed", "integer", "--seed", "The same seed gives the same answer; unset, a new one each time."),
        ("max_tokens", "integer", "--max-tokens", "Longest answer, in tokens; unset, until the model ends it."),
        ("stop", "texts", "--stop", "Texts that end the answer."),
    ),
    *_fields(
        ChatOptions,
        ("overflow", "text", "--overflow", "When the context is full: stop, or drop the oldest turns."),
        ("think", "text", "--think", "Thinking: auto, on, off, low, medium or high."),
        ("think_budget", "integer", "--think-budget", "Longest thought, in tokens; unset, no limit."),
    ),
    Setting(key="show_thinking", kind="yes/no", default=True, flag="--hide-thinking", help="Show thoughts."),
    Setting(key="save_chats", kind="yes/no", default=True, flag="--no-log", help="Keep chats in the database."),
    Setting(key="offline", kind="yes/no", default=False, flag="--offline", help="Never use the network."),
)
_BY_KEY = {item.key: item for item in SETTINGS}


def setting(key: str) -> Setting:
    """The setting of that name. Raises ConfigError with the nearest names."""
    try:
        return _BY_KEY[key]
    except KeyError:
        raise ConfigError(f"There is no setting {key!r}.", hint=nearest_hint(key, _BY_KEY)) from None


def shown(value: Any) -> str:
    """A value as a settings file would spell it, without quotes; "" when nothing is set."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def reference() -> str:
    """The table as Markdown, for the documentation."""
    rows = ["| setting | type | default | variable | flag | meaning |", "|---|---|---|---|---|---|"]
    for item in SETTINGS:
        default = f"`{shown(item.default)}`" if shown(item.default) else ""
        flag = f"`{item.flag}`" if item.flag else ""
        rows.append(f"| `{item.key}` | {item.kind} | {default} | `{item.variable}` | {flag} | {item.help} |")
    return "\n".join(rows) + "\n"
