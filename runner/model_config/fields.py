"""Reads one key of a config.json as one type, and says what is wrong with it: the errors of the whole package.

It knows no key by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from runner.errors import BadModelFile, UnsupportedModel

_DIGITS: Final = 8  # of a layer's number

OTHER_BACKEND = "A GGUF of it may run with --backend llamacpp."


def is_off(value: object) -> bool:
    return value is None or value is False or (isinstance(value, (str, list, dict)) and not value)


def integer_or_none(
    source: Mapping[str, Any], key: str, default: int | None, low: int = 1, high: int = 2**26
) -> int | None:
    value = source.get(key, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise invalid(key, value, f"It must be a whole number from {low} to {high}.")
    return value


def number(source: Mapping[str, Any], key: str, default: float | None, low: float, high: float) -> float:
    value = source.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise invalid(key, value, f"It must be a number from {low:g} to {high:g}.")
    return float(value)


def flag(source: Mapping[str, Any], key: str) -> bool:
    value = source.get(key)
    if value is not None and not isinstance(value, bool):
        raise invalid(key, value, "It must be true or false.")
    return bool(value)


def numbers(source: Mapping[str, Any], key: str, count: int, low: float, high: float) -> tuple[float, ...]:
    value = source.get(key)
    if not isinstance(value, list) or len(value) != count:
        raise invalid(key, value, f"It must be a list of {count} numbers.")
    return tuple(number({key: item}, key, None, low, high) for item in value)


def objects_of_layers(source: Mapping[str, Any], key: str) -> dict[int, Mapping[str, Any]] | None:
    """What an object says of single layers, by their numbers, which may have zeros before them; None where it is not
    there."""
    value = source.get(key)
    if value is None:
        return None
    hint = "It must be an object of objects, by the numbers of layers."
    if not isinstance(value, Mapping):
        raise invalid(key, value, hint)
    for layer, one in value.items():
        if not isinstance(one, Mapping) or not layer.isdecimal() or len(layer) > _DIGITS:
            raise invalid(key, value, hint)
    return {int(layer): one for layer, one in value.items()}


def strings(source: Mapping[str, Any], key: str) -> list[str]:
    value = source.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise invalid(key, value, "It must be a list of names.")
    return value


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def invalid(key: str, value: object, hint: str) -> BadModelFile:
    return BadModelFile(f"config.json: {key} = {_shown(value)} is not valid.", hint=hint)


def unsupported(key: str, value: object, hint: str = OTHER_BACKEND) -> UnsupportedModel:
    return UnsupportedModel(f"config.json: {key} = {_shown(value)} is not supported.", hint=hint)
