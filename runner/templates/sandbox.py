"""Compiles a chat template into something that can be run although nobody trusts it.

Jinja's immutable sandbox, narrowed: plain data in, listed operations only (operations.py, filters.py), and the syntax
tree rewritten before it is compiled, so that whatever takes time or memory spends from the budget (budget.py) first:

    loops, macros           each round or call pays for the size of its body before it runs; so does a loop's filter
    + - * / // % **         intercepted; ~, comparisons and slices are rewritten into checked operations
    lists, dicts, tuples    measured as a whole when they are made
    calls, filters, tests   pay for what they get and what they give
    output                  pays for its length
    recursion               Python's own limit
    size                    MAX_SOURCE_CHARS of text, MAX_NODES of syntax, no include, import, extends or blocks

It knows nothing of messages and tokens.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, ext, nodes
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from runner.templates import filters, operations
from runner.templates.budget import MAX_INT_BITS, Budget, LimitExceeded, current_budget, spending

MAX_SOURCE_CHARS = 256 * 2**10
MAX_NODES = 20_000

# Names with a space: no template can write them.
_TICK, _JOINED, _WEIGHED, _MADE, _SLICED = " tick", " joined", " weighed", " made", " sliced"

_ALLOWED_NODES = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Macro, nodes.CallBlock),
    *(nodes.FilterBlock, nodes.With, nodes.Scope, nodes.Assign, nodes.AssignBlock, nodes.Break, nodes.Continue),
    *(nodes.Name, nodes.NSRef, nodes.Const, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword),
    *(nodes.CondExpr, nodes.Filter, nodes.Test, nodes.Call, nodes.Getitem, nodes.Getattr, nodes.Slice, nodes.Concat),
    *(nodes.Compare, nodes.Operand, nodes.BinExpr, nodes.UnaryExpr),
)

_ATTRIBUTES: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (str, operations.STR_METHODS),
    (dict, frozenset({"copy", "get", "items", "keys", "values"})),
    ((list, tuple), frozenset({"copy", "count", "index"})),
    (range, frozenset({"count", "index", "start", "step", "stop"})),
    (float, frozenset({"is_integer"})),
    (
        LoopContext,
        operations.names(
            """changed cycle depth depth0 first index index0 last length nextitem previtem revindex
            revindex0"""
        ),
    ),
    (Macro, frozenset({"arguments", "name"})),
    (Cycler, frozenset({"current", "next", "reset"})),
)


class Refused(TemplateRuntimeError):
    """The template called raise_exception."""


class TemplateNamespace(Namespace):
    """Jinja's namespace without private names, and with a fixed repr: it may hold itself."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_attribute_name(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


def _check_attribute_name(name: object) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a namespace has no attribute {name!r}")


class _GenerationTag(ext.Extension):
    """{% generation %}…{% endgeneration %}: marks what a model would write, for training; here only a scope."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=lineno)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(operations.OPERATORS)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # no constant folding: nothing of a template runs while it is compiled
            extensions=[_GenerationTag, ext.loopcontrols],
            finalize=_finalized,
        )
        self.filters = {
            **filters.FILTERS,
            _TICK: _tick,
            _JOINED: operations.joined,
            _WEIGHED: operations.weighed,
            _MADE: operations.made,
            _SLICED: operations.sliced,
        }
        self.tests = filters.bounded_tests()  # type: ignore[assignment]
        self.globals = {
            "range": self.globals["range"],
            "dict": _dict,
            "namespace": TemplateNamespace,
            "cycler": Cycler,
            "joiner": Joiner,
            "raise_exception": _raise_exception,
        }

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if not super().is_safe_attribute(obj, attr, value):
            return False
        if isinstance(obj, Namespace):
            return True
        return any(attr in names for kind, names in _ATTRIBUTES if isinstance(obj, kind))

    def getitem(self, obj: Any, argument: Any) -> Any:
        current_budget().spend(1)
        if isinstance(argument, tuple):
            operations.weighed(argument)
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ARG002
        return operations.operate(operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            operations.check_format(value.__self__, args, kwargs)
            return wrapped(*args, **kwargs)

        return bounded

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = current_budget()
        budget.spend(1)
        if isinstance(__obj, types.BuiltinMethodType):
            for name in ("_loop_vars", "_block_vars"):
                kwargs.pop(name, None)
            return operations.call_method(__obj, args, kwargs)
        if not isinstance(__obj, (Macro, LoopContext)):
            budget.measure(args)
            budget.measure(list(kwargs.values()))
        return operations.made(super().call(__context, __obj, *args, **kwargs))


def _tick(cost: int) -> bool:
    current_budget().spend(cost)
    return True


def _finalized(value: Any) -> Any:
    text = operations.text_of(value)
    current_budget().make_text(len(text))
    return text


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _raise_exception(message: object) -> None:
    raise Refused(operations.text_of(message)[:1000])


class _Bounding(NodeTransformer):
    """Rewrites a syntax tree so that it spends before it works."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        body_cost, test_cost = _cost(node.body), _cost([node.test]) if node.test else 0
        self.generic_visit(node)
        node.body.insert(0, _tick_statement(body_cost))
        if node.test is not None:
            node.test = nodes.And(_filtered(nodes.Const(test_cost), _TICK), node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        cost = _cost(node.body)
        self.generic_visit(node)
        node.body.insert(0, _tick_statement(cost))
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:
        cost = _cost(node.body)
        self.generic_visit(node)
        node.body.insert(0, _tick_statement(cost))
        return node

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        return self._literal(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        return self._literal(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        if node.ctx != "load":
            self.generic_visit(node)
            return node
        return self._literal(node)

    def _literal(self, node: nodes.Expr) -> nodes.Expr:
        self.generic_visit(node)
        return _filtered(node, _MADE)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _filtered(nodes.Tuple(node.nodes, "load", lineno=node.lineno), _JOINED)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        sides: list[nodes.Compare | nodes.Operand] = [node, *node.ops]
        for side in sides:
            if not isinstance(side.expr, nodes.Const):
                side.expr = _filtered(side.expr, _WEIGHED)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _filtered(node, _SLICED) if isinstance(node.arg, nodes.Slice) else node


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _tick_statement(cost: int) -> nodes.ExprStmt:
    return nodes.ExprStmt(_filtered(nodes.Const(cost), _TICK))


def _cost(body: Sequence[nodes.Node]) -> int:
    """Work that one pass over `body` takes beyond what its operations spend: its syntax and its constant text."""
    count = chars = 0
    stack = list(body)
    while stack:
        node = stack.pop()
        count += 1
        if isinstance(node, nodes.TemplateData):
            chars += len(node.data)
        stack.extend(node.iter_child_nodes())
    return 3 + (count >> 3) + (chars >> 4)


def _check_tree(tree: nodes.Template) -> None:
    """Refuse syntax that chat templates have no use for, and too much of it."""
    stack: list[nodes.Node] = [tree]
    count = 0
    while stack:
        node = stack.pop()
        count += 1
        if count > MAX_NODES:
            raise LimitExceeded(f"it has more than {MAX_NODES} parts of syntax")
        if not isinstance(node, _ALLOWED_NODES):
            what = type(node).__name__.lower()
            raise SecurityError(f"line {node.lineno}: {what!r} has no place in a chat template")
        if isinstance(node, nodes.Const) and isinstance(node.value, int) and node.value.bit_length() > MAX_INT_BITS:
            raise LimitExceeded(f"it makes a number of more than {MAX_INT_BITS} bits")
        stack.extend(node.iter_child_nodes())


class CompiledTemplate:
    """A template that is ready to run, as often and from as many threads as wanted."""

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE_CHARS:
            raise LimitExceeded(f"it has {len(source)} characters, more than {MAX_SOURCE_CHARS}")
        environment = _Environment()
        tree = environment.parse(source)
        _check_tree(tree)
        self._cost = _cost([tree])
        self._template: Template = environment.from_string(_Bounding().visit(tree))

    def render(self, variables: Mapping[str, Any], now: datetime | None, budget: Budget) -> str:
        """The text for `variables`, which must be plain data. `now` is what strftime_now shows, None the clock."""

        def strftime_now(pattern: str) -> str:
            return (now or datetime.now()).strftime(operations.text_of(pattern)[:200])

        with spending(budget):
            budget.spend(self._cost)
            return self._template.render({**variables, "strftime_now": strftime_now})


@lru_cache(maxsize=16)
def compile_template(source: str) -> CompiledTemplate:
    """Compile `source`, once. Raises LimitExceeded and what Jinja and Python raise for a broken template."""
    return CompiledTemplate(source)
