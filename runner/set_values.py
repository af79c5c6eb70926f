"""`/set NAME VALUE`: the names that can be set in a chat, and how their values are written.

The names are the fields of SamplingParams, ChatOptions and LoadOptions, and the flags' short spellings of them. The
classes themselves check the values. A remedy that names a flag is said in a chat with /set. Pure functions, but that
paths are meant from the working directory.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import shlex
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from runner.attachments import absolute
from runner.config import GRAMMAR_NAMES, ChatOptions, Grammar, LoadOptions, SamplingParams, objection
from runner.errors import UsageError, nearest_hint
from runner.list_text import LIST_HINT, is_listed, listed

ALIASES = {
    "temp": "temperature",
    "ctx": "ctx_size",
    "ngl": "n_gpu_layers",
    "threads": "n_threads",
    "spec": "speculation",
    "context_overflow": "overflow",  # as settings files have it
}
_OWNERS: Final = (SamplingParams, ChatOptions, LoadOptions)
_NONE = ("none", "default", "off")
_NOT_HERE = ("raw", "force", "warmup")  # they make no sense in the middle of a chat
_BY_COMMAND = {  # what is set by a command of its own: grammar, which is shown with the others, and settings
    "grammar": "/grammar PATH, or /grammar off",
    "system": "/system TEXT, or /system none",
    "model": "/model NAME",
    "show_thinking": "/think show, or /think hide",
}
# A command; what the user wrote, which may have any sign; a value as Python shows it, and no apostrophe.
_QUOTED: Final = re.compile(
    r"""(`[^`]*`|“.*”|(?<!\w)'(?:\\.|[^'\\])*'(?!\w)|(?<!\w)"(?:\\.|[^"\\])*"(?!\w))""", re.DOTALL
)
_FLAG: Final = re.compile(r"(?<![^\s(])--?([a-z][a-z-]*)(?![\w=/-]|\.\w)( \d+| all\b)?")  # no part of a path
_SHORT_FLAGS: Final = {"c": "ctx_size"}
_COMMAND_FLAGS: Final = {"json-schema": "/grammar", "grammar": "/grammar"}
_SHELL_FLAGS: Final = {"force": "`runner chat MODEL --force`", "raw": "`runner run MODEL --raw`"}  # no chat takes them
_NUMBERED_FLAGS: Final = ("ctx_size", "n_gpu_layers")  # of which a hint does not always say a number


def names() -> list[str]:
    """Every name that /set knows."""
    return [name for name in shown_names() if name not in _BY_COMMAND]


def shown_names() -> list[str]:
    """Every name that belongs to a chat's parameters."""
    fields = [f.name for cls in _OWNERS for f in dataclasses.fields(cls)]
    return [name for name in fields if name not in _NOT_HERE]


def field_name(name: str) -> str:
    """The field that a name means, with dashes or underscores. Raises UsageError with the nearest names."""
    plain = name.lstrip("-").replace("-", "_").lower()
    plain = ALIASES.get(plain, plain)
    if plain in _BY_COMMAND:
        raise UsageError(f"/set does not set {plain}.", hint=f"It is: {_BY_COMMAND[plain]}")
    if plain not in names():
        raise UsageError(f"There is nothing to set that is called {name!r}.", hint=nearest_hint(plain, names()))
    return plain


def parsed(name: str, text: str) -> Any:
    """The value of field `name` that `text` writes. Raises UsageError, with what it can be."""
    value = _read(name, text)
    owner = next(cls for cls in _OWNERS if any(field.name == name for field in dataclasses.fields(cls)))
    if hint := objection(owner, name, value):
        raise UsageError(f"{name} cannot be {text!r}.", hint=hint)
    return value


def _read(name: str, text: str) -> Any:
    kind = _kinds()[name]
    if get_origin(kind) is Literal:
        return text.lower()
    if name in _LISTS:
        return () if text.lower() in _NONE else _items(name, text)
    if name == "n_gpu_layers" and text in ("auto", "all"):
        return text
    if text.lower() in _NONE and name in _optional():
        return None
    if str in get_args(kind):
        return text
    is_whole = int in (kind, *get_args(kind))
    try:
        return int(text) if is_whole else float(text)
    except ValueError:
        others = "auto, all, or " if name == "n_gpu_layers" else "none, or " if name in _optional() else ""
        hint = f"It must be {others}a {'whole ' if is_whole else ''}number."
        raise UsageError(f"{name} cannot be {text!r}.", hint=hint) from None


def shown(value: Any) -> str:
    """A value as /set takes it; of a grammar, what it is."""
    if isinstance(value, Grammar):
        return f"{GRAMMAR_NAMES[value.kind]}, {len(value.text)} characters"
    if isinstance(value, tuple):
        return shlex.join(value) or "none"
    return "none" if value is None else str(value)


def in_chat(text: str) -> str:
    """A message or a remedy with "/set ctx_size N" for "-c", and for what no chat takes the command of a shell.

    What is quoted stays as it is, be it such a command or what the user wrote, and so does a path.
    """
    parts = _QUOTED.split(text)
    parts[::2] = [_FLAG.sub(_as_set, part) for part in parts[::2]]
    return "".join(parts)


def _as_set(flag: re.Match[str]) -> str:
    if command := _COMMAND_FLAGS.get(flag[1]):
        return command + (flag[2] or "")
    try:
        field = field_name(_SHORT_FLAGS.get(flag[1], flag[1]))
    except UsageError:
        return _SHELL_FLAGS.get(flag[1], flag[0])
    return f"/set {field}" + (flag[2] or (" N" if field in _NUMBERED_FLAGS else ""))


def _optional() -> list[str]:
    return [f.name for cls in _OWNERS for f in dataclasses.fields(cls) if f.default is None]


@functools.cache
def _kinds() -> Mapping[str, Any]:
    """The type of each field."""
    return {name: kind for cls in _OWNERS for name, kind in get_type_hints(cls).items()}


def _items(name: str, text: str) -> tuple[str, ...]:
    try:
        if is_listed(text):  # which says itself what its escapes stand for
            texts = listed(text)
        else:
            texts = [_unescaped(one) if name == "stop" else one for one in shlex.split(text)]
        return tuple(map(absolute, texts) if name == "draft_file" else texts)
    except ValueError as error:
        hint = LIST_HINT if is_listed(text) else "Put each text in quotes."
        raise UsageError(f"{name} cannot be {text!r}: {error}.", hint=hint) from None


def _unescaped(text: str) -> str:
    r"""`text` with \n and the like as what they stand for."""
    # unicode_escape reads Latin-1: what lies beyond it is made an escape first.
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape") if "\\" in text else text


_LISTS: Final = ("stop", "draft_file")
