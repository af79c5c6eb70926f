"""The operators, string methods and filters of chat templates, each bounded before it runs.

What a template can name is listed here; what is not listed does not exist for it. budget.py has the limits; how the
calls get here is sandbox.py's business.
"""

from __future__ import annotations

import functools
import json
import operator
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import markupsafe
from jinja2 import filters as jinja_filters
from jinja2 import pass_environment
from jinja2.environment import Environment
from jinja2.filters import make_attrgetter
from jinja2.runtime import Undefined
from jinja2.tests import TESTS

from runner.templates.budget import MAX_INT_BITS, MAX_ITEMS, Budget, LimitExceeded, check_int, current_budget

_MAX_WIDTH = 1000
_MAX_FORMAT = 4096


def names(words: str) -> frozenset[str]:
    """The words of a text as a set."""
    return frozenset(words.split())


# repr() writes an unprintable character with up to ten others: "\U000e0001".
_REPR_GROWTH = 10

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}


def operate(symbol: str, left: Any, right: Any) -> Any:
    """`left symbol right`, refused when the result would be too large."""
    budget = current_budget()
    if isinstance(left, str) and symbol == "%":
        return format_percent(left, right)
    if isinstance(left, str) and isinstance(right, str):
        budget.make_text(len(left) + len(right))
    elif symbol == "*":
        _check_product(budget, left, right)
    elif symbol == "**" and isinstance(left, int) and isinstance(right, int):
        if right > 0 and left.bit_length() * right > MAX_INT_BITS:
            raise LimitExceeded(f"it makes a number of more than {MAX_INT_BITS} bits")
    elif hasattr(left, "__len__") and hasattr(right, "__len__"):
        budget.make_items(len(left) + len(right))
    result = OPERATORS[symbol](left, right)
    return weighed(result)


def _check_product(budget: Budget, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_INT_BITS:
            raise LimitExceeded(f"it makes a number of more than {MAX_INT_BITS} bits")
        return
    sequence, times = (right, left) if isinstance(left, int) else (left, right)
    if isinstance(times, int) and isinstance(sequence, str):
        budget.make_text(len(sequence) * max(times, 0))
    elif isinstance(times, int) and hasattr(sequence, "__len__"):
        budget.make_items(len(sequence) * max(times, 0))


def weighed(value: Any) -> Any:
    """`value`, once it is known not to be too large."""
    if type(value) is int:
        check_int(value)
        current_budget().spend(1)
    else:
        current_budget().measure(value)
    return value


def made(value: Any) -> Any:
    """The result of a call: a text is paid for, a container measured, an iterator counted as it is read."""
    if isinstance(value, str):
        current_budget().make_text(len(value))
        return value
    return _counted(value) if isinstance(value, Iterator) else weighed(value)


def sliced(value: Any) -> Any:
    """The result of a slice: a part of something that has been measured."""
    if isinstance(value, str):
        current_budget().make_text(len(value))
    else:
        current_budget().spend(1 + (len(value) >> 3))
    return value


def _counted(iterator: Iterator[Any]) -> Iterator[Any]:
    for item in iterator:
        current_budget().spend(1)
        yield item


def text_of(value: Any) -> str:
    """str(value), refused when it would be too long."""
    if type(value) is str:
        return value
    if not isinstance(value, Undefined):
        items, chars = current_budget().measure(value)
        current_budget().make_text(_REPR_GROWTH * chars + 8 * items)
    return str(value)


def joined(parts: Iterable[Any], separator: str = "") -> str:
    """separator.join of the texts of `parts`, refused when it would be too long."""
    budget = current_budget()
    texts: list[str] = []
    total = 0
    for part in parts:
        texts.append(text_of(part))
        total += len(texts[-1]) + len(separator)
        budget.spend(1)
        if len(texts) > MAX_ITEMS:
            raise LimitExceeded(f"it joins more than {MAX_ITEMS} texts")
    budget.make_text(total)
    return separator.join(texts)


# --- methods ---

STR_METHODS = names(
    """capitalize casefold center count endswith find format index isalnum isalpha isascii isdecimal isdigit
    isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition removeprefix
    removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title
    upper zfill format_map"""
)
_WIDTHS = names("center ljust rjust zfill")
_STRIPS = names("strip lstrip rstrip")
# Python searches from the right, unlike from the left, in time that grows with the product of the lengths.
_FROM_THE_RIGHT = names("rfind rindex rpartition rsplit")


def call_method(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a bound method of a built-in value, bounded."""
    budget = current_budget()
    owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    budget.measure(args)
    budget.measure(list(kwargs.values()))
    if isinstance(owner, str) or name in ("index", "count"):
        budget.measure(owner)
    if isinstance(owner, str):
        if name == "join":
            return joined(args[0] if len(args) == 1 else method(*args), owner)
        if name in ("split", "rsplit"):
            return made(_split(method, *args, **kwargs))
        if name == "replace":
            _check_replace(budget, owner, *args)
        if name in _WIDTHS and args and isinstance(args[0], int) and args[0] > _MAX_WIDTH:
            raise LimitExceeded(f"it pads a text to more than {_MAX_WIDTH} characters")
        if name in _STRIPS and args:
            _check_strip(args[0])
        if name in _FROM_THE_RIGHT:
            wanted = next((part for part in (*args, *kwargs.values()) if isinstance(part, str)), "")
            budget.spend(len(owner) * len(wanted) >> 9)
    return made(method(*args, **kwargs))


def _split(method: Callable[..., list[str]], sep: str | None = None, maxsplit: int = -1) -> list[str]:
    limit = maxsplit if 0 <= maxsplit <= MAX_ITEMS else MAX_ITEMS + 1
    return method(sep, limit)


def _check_strip(chars: Any) -> None:
    """Each character stripped is looked up in `chars` from its start."""
    if isinstance(chars, str) and len(chars) > _MAX_WIDTH:
        raise LimitExceeded(f"it strips a set of more than {_MAX_WIDTH} characters")


def _check_replace(budget: Budget, text: str, old: Any = "", new: Any = "", count: Any = -1) -> None:
    if isinstance(old, str) and isinstance(new, str):
        times = text.count(old)
        if isinstance(count, int) and count >= 0:
            times = min(times, count)
        budget.make_text(len(text) + times * max(0, len(new) - len(old)))


_PERCENT = re.compile(r"%(?:\([^)]*\))?([^a-zA-Z%]*)([a-zA-Z%])")


def format_percent(template: str, values: Any) -> str:
    """template % values, with bounded widths."""
    budget = current_budget()
    _check_format_length(template)
    specs = _PERCENT.findall(template)
    for flags, _ in specs:
        if "*" in flags or re.search(r"\d{4}", flags):
            raise LimitExceeded(f"it pads a text to more than {_MAX_WIDTH} characters")
    items, chars = budget.measure(values)
    budget.make_text(len(template) + len(specs) * (_MAX_WIDTH + 8 * items + _REPR_GROWTH * chars))
    return str(template % values)


def _check_format_length(template: str) -> None:
    """Reading a long one for its fields would take quadratic time."""
    if len(template) > _MAX_FORMAT:
        raise LimitExceeded(f"it formats by a pattern of more than {_MAX_FORMAT} characters")


def check_format(template: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a str.format call with wide fields, fields within fields, or a result that would be too long."""
    _check_format_length(template)
    fields = [field for field in string.Formatter().parse(template) if field[1] is not None]
    for _, _, spec, _ in fields:
        if "{" in (spec or "") or re.search(r"\d{4}", spec or ""):
            raise LimitExceeded(f"it pads a text to more than {_MAX_WIDTH} characters")
    items, chars = current_budget().measure([*args, *kwargs.values()])
    each = _MAX_WIDTH + 8 * items + _REPR_GROWTH * chars
    current_budget().make_text(len(template) + len(fields) * each)


# --- filters ---


@pass_environment
def _join(environment: Environment, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return joined(value, text_of(d))


def _replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = text_of(value), text_of(old), text_of(new)
    count = -1 if count is None else count
    _check_replace(current_budget(), text, old, new, count)
    return text.replace(old, new, count)


def _indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = text_of(value)
    size = width if isinstance(width, int) else len(width)
    if size > _MAX_WIDTH:
        raise LimitExceeded(f"it indents by more than {_MAX_WIDTH} characters")
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
    _check_strip(chars)
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
