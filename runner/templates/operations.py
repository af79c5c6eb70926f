"""The operators and string methods of chat templates, each bounded before it runs.

budget.py has the limits; how the calls get here is sandbox.py's business.
"""

from __future__ import annotations

import operator
import re
import string
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jinja2.runtime import Undefined

from runner.templates.budget import MAX_INT_BITS, MAX_ITEMS, Budget, LimitExceeded, check_int, current_budget

MAX_WIDTH = 1000
_MAX_FORMAT = 4096


def names(words: str) -> frozenset[str]:
    """The words of a text as a set."""
    return frozenset(words.split())


# repr() writes an unprintable character with up to ten others: "\U000e0001".
REPR_GROWTH = 10

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
        current_budget().make_text(REPR_GROWTH * chars + 8 * items)
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
    if not isinstance(owner, str):
        return made(method(*args, **kwargs))
    _check_text_method(owner, name, [*args, *kwargs.values()])
    if name == "join" and len(args) == 1:
        return joined(args[0], owner)
    if name in ("split", "rsplit"):
        return made(_split(method, *args, **kwargs))
    return made(method(*args, **kwargs))


def _check_text_method(owner: str, name: str, args: list[Any]) -> None:
    """Refuse a call of a method of str that would take or make too much."""
    first = args[0] if args else None
    if name == "replace":
        check_replace(owner, *args)
    elif name in _WIDTHS and isinstance(first, int) and first > MAX_WIDTH:
        raise LimitExceeded(f"it pads a text to more than {MAX_WIDTH} characters")
    elif name in _STRIPS:
        check_strip(first)
    elif name in _FROM_THE_RIGHT:
        wanted = next((part for part in args if isinstance(part, str)), "")
        current_budget().spend(len(owner) * len(wanted) >> 9)


def _split(method: Callable[..., list[str]], sep: str | None = None, maxsplit: int = -1) -> list[str]:
    limit = maxsplit if 0 <= maxsplit <= MAX_ITEMS else MAX_ITEMS + 1
    return method(sep, limit)


def check_strip(chars: Any) -> None:
    """Each character stripped is looked up in `chars` from its start."""
    if isinstance(chars, str) and len(chars) > MAX_WIDTH:
        raise LimitExceeded(f"it strips a set of more than {MAX_WIDTH} characters")


def check_replace(text: str, old: Any = "", new: Any = "", count: Any = -1) -> None:
    if isinstance(old, str) and isinstance(new, str):
        times = text.count(old)
        if isinstance(count, int) and count >= 0:
            times = min(times, count)
        current_budget().make_text(len(text) + times * max(0, len(new) - len(old)))


_PERCENT = re.compile(r"%(?:\([^)]*\))?([^a-zA-Z%]*)([a-zA-Z%])")


def format_percent(template: str, values: Any) -> str:
    """template % values, with bounded widths."""
    budget = current_budget()
    _check_format_length(template)
    specs = _PERCENT.findall(template)
    for flags, _ in specs:
        if "*" in flags or re.search(r"\d{4}", flags):
            raise LimitExceeded(f"it pads a text to more than {MAX_WIDTH} characters")
    items, chars = budget.measure(values)
    budget.make_text(len(template) + len(specs) * (MAX_WIDTH + 8 * items + REPR_GROWTH * chars))
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
            raise LimitExceeded(f"it pads a text to more than {MAX_WIDTH} characters")
    items, chars = current_budget().measure([*args, *kwargs.values()])
    each = MAX_WIDTH + 8 * items + REPR_GROWTH * chars
    current_budget().make_text(len(template) + len(fields) * each)
