"""Triton's interpreter without what it computes again and again, and what it computes and never looks at.

These are three quarters of its time. What kernels compute is the same. Run as a program with another program's path and
arguments, it runs that one with it. It knows no kernels.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any


def quicken(interpreter: ModuleType) -> None:
    """interpreter: triton.runtime.interpreter. One without what is changed here (3.9 has it) is left as it is."""
    if hasattr(interpreter, "_LangPatchScope") and not hasattr(interpreter._patch_lang, "is_quick"):
        _patch_language_once_a_launch(interpreter)
        _look_types_up_once(interpreter)
        _describe_types_once(interpreter.tl.core)
        _leave_alike_operands_as_they_are(interpreter.tl.semantic.TritonSemantic)
        _leave_unread_checks_out(interpreter)


def _patch_language_once_a_launch(interpreter: ModuleType) -> None:
    """A launch patches triton.language and puts it back at its end; in between, every call of a function that has
    @triton.jit, such as tl.sum, goes through all of the language again and finds it patched."""
    patch, scope = interpreter._patch_lang, interpreter._LangPatchScope
    languages = (interpreter.tl, interpreter.tl.core)
    seen_by: dict[int, frozenset[int]] = {}  # by the identity of a function's globals, which live as long as its module
    patched: set[int] = set()

    def patch_once(fn: Any) -> Any:
        place = id(fn.__globals__)
        if place not in seen_by:
            seen_by[place] = frozenset(id(one) for one in languages if any(one is x for x in fn.__globals__.values()))
        if seen_by[place] and seen_by[place] <= patched:
            return scope()  # with nothing to put back
        patched.update(seen_by[place])
        return patch(fn)

    put_back = scope.restore

    def put_back_and_forget(self: Any) -> None:
        put_back(self)
        patched.clear()

    patch_once.is_quick = True  # type: ignore[attr-defined]
    interpreter._patch_lang = patch_once  # type: ignore[attr-defined]
    scope.restore = put_back_and_forget


def _look_types_up_once(interpreter: ModuleType) -> None:
    """The numpy type of a Triton type is looked for in a table that is built for each look."""
    look_up, found = interpreter._get_np_dtype, {}

    def look_up_once(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in found:
            found[name] = look_up(kind)
        return found[name]

    interpreter._get_np_dtype = look_up_once  # type: ignore[attr-defined]


def _describe_types_once(core: ModuleType) -> None:
    """Every value describes its type and shape anew. Here those of the same name share one description."""
    describe, make, equal = core.block_type.__init__, core.tensor.__init__, core.tuple.__eq__
    types: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
    values: dict[str, dict[str, Any]] = {}
    yes = core.constexpr(True)

    def describe_once(self: Any, element_ty: Any, shape: Any) -> None:
        key = element_ty.name, tuple(getattr(size, "value", size) for size in shape)
        if key not in types:
            describe(self, element_ty, shape)
            types[key] = {**vars(self), "sizes": key[1]}
        vars(self).update(types[key])

    def make_alike(self: Any, handle: Any, type: Any) -> None:
        if type.name not in values:
            make(self, handle, type)
            values[type.name] = {name: value for name, value in vars(self).items() if name != "handle"}
        vars(self).update(values[type.name], handle=handle)

    core.block_type.__init__ = describe_once
    core.tensor.__init__ = make_alike
    core.tuple.__eq__ = lambda self, other: yes if self is other else equal(self, other)


def _leave_alike_operands_as_they_are(semantic: Any) -> None:
    """What two operands have to be cast to and spread over is worked out for those of one type and shape as well."""
    check, spread = semantic.binary_op_type_checking_impl, semantic.broadcast_impl_value
    stay = {"fp32", "int32", "int64"}  # such types of both are that of the result, whatever the operation

    def spread_unlike(self: Any, left: Any, right: Any) -> Any:
        sizes = getattr(left.type, "sizes", None)
        if sizes is not None and sizes == getattr(right.type, "sizes", None):
            return left, right
        return spread(self, left, right)

    def check_unlike(self: Any, left: Any, right: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(left, self.tensor) and isinstance(right, self.tensor):
            name = left.type.scalar.name
            if name in stay and name == right.type.scalar.name:
                return spread_unlike(self, left, right)
        return check(self, left, right, *arguments, **options)

    semantic.broadcast_impl_value = spread_unlike
    semantic.binary_op_type_checking_impl = check_unlike


def _leave_unread_checks_out(interpreter: ModuleType) -> None:
    """Sums and products of whole numbers are computed a second time, in 64 bits, for an assertion that exists in
    debugging alone."""
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=builder.options.debug)


def _run(program: str, *arguments: str) -> None:
    """As `python program arguments` does."""
    if os.environ.get("TRITON_INTERPRET"):
        quicken(importlib.import_module("triton.runtime.interpreter"))
    sys.argv, sys.path[0] = [program, *arguments], str(Path(program).parent)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    _run(*sys.argv[1:])
