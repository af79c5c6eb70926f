"""The filters and tests of chat templates, each bounded before it runs.

What is not listed here does not exist for a template. The bounds themselves are in budget.py.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import markupsafe
from jinja2 import filters as jinja_filters
from jinja2 import pass_environment
from jinja2.environment import Environment
from jinja2.filters import make_attrgetter
from jinja2.tests import TESTS

from runner.templates.budget import LimitExceeded, current_budget
from runner.templates.operations import (
    MAX_WIDTH,
    check_replace,
    check_strip,
    format_percent,
    joined,
    made,
    names,
    operate,
    text_of,
    weighed,
)


@pass_environment
def _join(environment: Environment, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return joined(value, text_of(d))


def _replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = text_of(value), text_of(old), text_of(new)
    count = -1 if count is None else count
    check_replace(text, old, new, count)
    return text.replace(old, new, count)


def _indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = text_of(value)
    size = width if isinstance(width, int) else len(width)
    if size > MAX_WIDTH:
        raise LimitExceeded(f"it indents by more than {MAX_WIDTH} characters")
    current_budget().make_text(len(text) + len(text.splitlines()) * max(0, size))
    return str(jinja_filters.do_indent(text, width, first, blank))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: no HTML escapes, keys in their order."""
    items, chars = current_budget().measure(value)
    step = indent if isinstance(indent, int) else len(indent or "")
    if step > 16 or len("".join(separators or ())) > 16:
        raise LimitExceeded("it indents JSON by more than 16 characters")
    # An element costs its separators and, on a line of its own, the indentation of its level (64 at most).
    current_budget().make_text(2 * chars + items * (8 + 16 * max(0, step)))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@pass_environment
def _sum(environment: Environment, iterable: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    """Numbers only: the sum of lists or texts takes quadratic time."""
    if attribute is not None:
        iterable = map(make_attrgetter(environment, attribute), iterable)
    for item in iterable:
        if not (isinstance(item, (int, float)) and isinstance(start, (int, float))):
            raise TypeError("sum takes numbers")
        start = operate("+", start, item)
    return start


def _round(value: Any, precision: int = 0, method: str = "common") -> float:
    if not -20 <= precision <= 20:
        raise LimitExceeded("it rounds to more than 20 digits")
    return jinja_filters.do_round(value, precision, method)  # type: ignore[arg-type]


def _trim(value: Any, chars: str | None = None) -> str:
    check_strip(chars)
    return text_of(value).strip(chars)


def _list(value: Any) -> list[Any]:
    if hasattr(value, "__len__"):
        current_budget().make_items(len(value))
    return list(value)


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    return format_percent(text_of(value), kwargs or args)


def _escape(value: Any) -> str:
    text = text_of(value)
    current_budget().make_text(6 * len(text))
    return str(markupsafe.escape(text))


def _glance(_: Any) -> None:
    """For filters that look at the ends of a value, or read it lazily, one element at a time."""
    current_budget().spend(1)


def _on_text(function: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(function)
    def run(value: Any, *args: Any, **kwargs: Any) -> str:
        return function(text_of(value), *args, **kwargs)

    return run


def _bounded(function: Callable[..., Any], check: Callable[[Any], object]) -> Callable[..., Any]:
    """`function` with `check` before it, on every argument, and its result paid for.

    functools.wraps keeps Jinja's mark of what the function wants passed (environment, context).
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        for arg in (*args, *kwargs.values()):
            check(arg)
        return made(function(*args, **kwargs))

    return run


_JINJA: Mapping[str, Callable[..., Any]] = jinja_filters.FILTERS
_LAZY = names(
    """first last length count default d abs float int items reverse map select reject selectattr rejectattr"""
)
_WHOLE = names("dictsort sort unique min max")
_TEXT = names("capitalize lower upper title")
_OWN: dict[str, Callable[..., Any]] = {
    "join": _join,
    "replace": _replace,
    "indent": _indent,
    "tojson": _tojson,
    "sum": _sum,
    "round": _round,
    "list": _list,
    "format": _format,
    "string": text_of,
    "trim": _trim,
    "safe": text_of,
    "e": _escape,
    "escape": _escape,
}

FILTERS: dict[str, Callable[..., Any]] = {
    **{name: _bounded(_JINJA[name], _glance) for name in _LAZY},
    **{name: _bounded(_JINJA[name], weighed) for name in _WHOLE},
    **{name: _bounded(_on_text(_JINJA[name]), weighed) for name in _TEXT},
    **{name: _bounded(function, _glance) for name, function in _OWN.items()},
}

_JINJA_TESTS: Mapping[str, Callable[..., Any]] = TESTS  # type: ignore[assignment]
_CHEAP_TESTS = names(
    """boolean callable defined divisibleby escaped even false float integer iterable mapping none number odd sameas
    sequence string true undefined"""
)


def bounded_tests() -> dict[str, Callable[..., Any]]:
    """Jinja's tests, less "filter" and "test", which ask about the environment."""
    return {
        name: _bounded(test, _glance if name in _CHEAP_TESTS else weighed)
        for name, test in _JINJA_TESTS.items()
        if name not in ("filter", "test")
    }
