"""How many patterns of a JSON schema hold for one and the same string.

llguidance looks whether any string matches them all. It counts what that costs by what it has built, and a single step
may build three times as much for each pattern more, so that none of its limits ends it. Pure; it knows no llguidance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

_MOST_MERGED: Final = 1_000_000  # parts of schemas that hold for the same value, each counted with each such value


class TooManyPartsError(Exception):
    """Schemas that speak of the same parts do so of too many."""


@dataclass(frozen=True, eq=False)
class _Value:
    """here: the patterns that hold for a value. parts: for its parts, by name or place; rest: for all others.

    most: the most that hold for it, or for a part of it.
    """

    here: frozenset[str]
    parts: Mapping[str, _Value]
    rest: _Value | None
    most: int


def _value(here: Iterable[str], parts: Mapping[str, _Value], rest: _Value | None) -> _Value:
    patterns = frozenset(here)
    most = max([len(patterns), *(value.most for value in parts.values()), rest.most if rest else 0])
    return _Value(patterns, parts, rest, most)


_FREE: Final = _value((), {}, None)


def has_more_patterns(schema: Mapping[str, Any], most: int) -> bool:
    """Whether more than `most` of `pattern` and `format` hold for one string. Raises TooManyPartsError, RecursionError.

    Counted are those that meet through `allOf`, `$ref` and what stands beside them, and of what `anyOf` and `oneOf`
    leave to choose the one with the most.
    """
    return len(_all_patterns(schema)) > most and _Count(schema).of(schema).most > most


class _Count:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._referred: dict[str, _Value] = {}
        self._merges: dict[tuple[object, ...], _Value] = {}
        self._n_merged = 0

    def of(self, schema: object) -> _Value:
        if not isinstance(schema, dict):
            return _FREE
        # Which names these are for is not looked at, and a name is taken to be for one of them at most.
        by_name = self._any_of(_dict(schema.get("patternProperties")).values())
        own = _value(
            _patterns(schema),
            {key: self._merged([self.of(part), by_name], is_both=True) for key, part in _named_parts(schema)},
            self._merged([by_name, *map(self.of, _other_parts(schema))], is_both=False),
        )
        also = [self.of(part) for part in _list(schema.get("allOf"))]
        also += [self._any_of(_list(schema.get(key))) for key in ("anyOf", "oneOf")]
        if isinstance(ref := schema.get("$ref"), str):
            also.append(self._target(ref))
        return self._merged([own, *also], is_both=True)

    def _any_of(self, schemas: Iterable[object]) -> _Value:
        return self._merged([self.of(schema) for schema in schemas], is_both=False)

    def _target(self, ref: str) -> _Value:
        """What a JSON pointer refers to; of any other reference, all patterns there are."""
        if ref not in self._referred:
            self._referred[ref] = _FREE  # a schema that is within itself says nothing new there
            is_pointer = ref == "#" or ref.startswith("#/")
            self._referred[ref] = self.of(_at(self._root, ref)) if is_pointer else self._anything()
        return self._referred[ref]

    def _anything(self) -> _Value:
        return _value(_all_patterns(self._root), {}, None)

    def _merged(self, values: Iterable[_Value], *, is_both: bool) -> _Value:
        """What holds where all of them do, or else the worst of them."""
        met = tuple(dict.fromkeys(value for value in values if value.most))
        if len(met) < 2:
            return met[0] if met else _FREE
        key = (is_both, *met)
        if key not in self._merges:
            here = frozenset[str]().union(*(v.here for v in met)) if is_both else max((v.here for v in met), key=len)
            with_rest = [value for value in met if value.rest and value.rest.most]
            parts: dict[str, list[_Value]] = {}
            for value in met:
                for name, part in value.parts.items():
                    parts.setdefault(name, []).append(part)
            for name, named in parts.items():
                named += [value.rest for value in with_rest if value.rest and name not in value.parts]
            self._n_merged += sum(map(len, parts.values()))
            if self._n_merged > _MOST_MERGED:
                raise TooManyPartsError
            rest = self._merged((value.rest for value in met if value.rest), is_both=is_both)
            self._merges[key] = _value(
                here, {name: self._merged(named, is_both=is_both) for name, named in parts.items()}, rest
            )
        return self._merges[key]


def _patterns(schema: Mapping[str, Any]) -> list[str]:
    return [f"{key} {schema[key]}" for key in ("pattern", "format") if isinstance(schema.get(key), str)]


def _all_patterns(schema: object) -> set[str]:
    """Those of a schema and all of its parts, wherever they are."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            found.update(_patterns(part))
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return found


def _named_parts(schema: Mapping[str, Any]) -> list[tuple[str, object]]:
    items = schema.get("prefixItems", schema.get("items"))
    return [*_dict(schema.get("properties")).items(), *((str(i), item) for i, item in enumerate(_list(items)))]


def _other_parts(schema: Mapping[str, Any]) -> list[object]:
    return [schema[key] for key in ("items", "additionalItems", "additionalProperties") if key in schema]


def _at(root: object, ref: str) -> object:
    """What a JSON pointer such as "#/$defs/a" points to; None where that is nothing, and for other references."""
    start, *names = unquote(ref).split("/")
    found = root if start == "#" else None
    for name in names:
        parts = {str(i): part for i, part in enumerate(found)} if isinstance(found, list) else _dict(found)
        found = parts.get(name.replace("~1", "/").replace("~0", "~"))
    return found


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
