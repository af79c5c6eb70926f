"""Frozen dataclasses to JSON and back: how values cross a process boundary and reach files. No pickle.

It knows the types it is given and nothing of what they mean. Unknown types are a programming error (TypeError).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """`value` as JSON types: dataclasses become objects, tuples lists, paths strings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def from_plain(cls: type[T], plain: Any) -> T:
    """The value of type `cls` that `to_plain` wrote as `plain`. Raises TypeError or KeyError when it does not match."""
    return typing.cast(T, _read(cls, plain))


def _read(hint: Any, plain: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = _hints(hint)
        return hint(**{name: _read(hints[name], item) for name, item in plain.items()})
    if origin in (typing.Union, types.UnionType):
        if plain is None:
            return None
        return next((_read(arg, plain) for arg in args if _accepts(arg, plain)), plain)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return tuple(_read(args[0], item) for item in plain)
    if origin is tuple:
        return tuple(_read(arg, item) for arg, item in zip(args, plain, strict=True))
    if origin is list:
        return [_read(args[0], item) for item in plain]
    if hint is Path:
        return Path(plain)
    return plain


def fits(hint: Any, value: Any, is_sound: Callable[[float], bool] = lambda _: True) -> bool:
    """Whether a value is of the annotated type, down to the numbers of its lists: what `from_plain` leaves to the types
    that it is given. is_sound: what numbers are asked besides."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(arg, value, is_sound) for arg in args)
    if origin is typing.Literal:
        return value in args
    if origin is tuple:
        return isinstance(value, tuple) and all(fits(args[0], item, is_sound) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(args[1], item, is_sound) for item in value.values())
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = _hints(hint)
        return type(value) is hint and all(fits(hints[name], item, is_sound) for name, item in vars(value).items())
    if hint in (int, float):
        return type(value) in ({int} if hint is int else {int, float}) and is_sound(value)
    return isinstance(value, hint)


def _accepts(hint: Any, plain: Any) -> bool:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return isinstance(plain, dict)
    return hint is Path and isinstance(plain, str)
