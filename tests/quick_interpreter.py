"""Triton's interpreter without what it computes again and again, and what it computes and never looks at.

These are nine tenths of its time. What kernels compute is the same. Run as a program with another program's path and
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

import numpy as np


def quicken(interpreter: ModuleType) -> None:
    """interpreter: triton.runtime.interpreter of 3.7 or 3.9. One that lacks what is changed here is left as it is."""
    if hasattr(interpreter, "_LangPatchScope") and not hasattr(interpreter._patch_lang, "is_quick"):
        _patch_language_once(interpreter)
        _call_builtins_at_once(interpreter)
        _call_functions_at_once(interpreter)
        _check_sizes_once(interpreter)
        _look_types_up_once(interpreter)
        _describe_types_once(interpreter.tl.core)
        _cast_plain_numbers_at_once(interpreter)
        _unwrap_nothing_in_what_holds_nothing(interpreter.tl.core)
        _leave_alike_operands_as_they_are(interpreter.tl.core, interpreter.tl.semantic.TritonSemantic)
        _leave_unread_checks_out(interpreter)
        _load_at_once(interpreter)


def _patch_language_once(interpreter: ModuleType) -> None:
    """A launch patches triton.language and puts it back at its end; in between, every call of a function that has
    @triton.jit, such as tl.sum, goes through all of the language again and finds it patched. Here it stays patched:
    where kernels are interpreted nothing else is done with it."""
    patch, scope = interpreter._patch_lang, interpreter._LangPatchScope
    languages = (interpreter.tl, interpreter.tl.core)
    seen_by: dict[int, frozenset[int]] = {}  # by the identity of a function's globals, which live as long as its module
    patched: set[int] = set()

    def patch_once(fn: Any) -> Any:
        place = id(fn.__globals__)
        if place not in seen_by:
            seen_by[place] = frozenset(id(one) for one in languages if any(one is x for x in fn.__globals__.values()))
        if not seen_by[place] or not seen_by[place] <= patched:
            patched.update(seen_by[place])
            patch(fn)
            _compute_alike_operands_at_once(interpreter)
        return scope()  # with nothing to put back

    patch_once.is_quick = True  # type: ignore[attr-defined]
    interpreter._patch_lang = patch_once  # type: ignore[attr-defined]


def _call_builtins_at_once(interpreter: ModuleType) -> None:
    """Between a kernel and a function of the language are two that hand the arguments on and copy them."""
    core, semantic = interpreter.tl.core, interpreter.interpreter_semantic
    checks = core.builtin(lambda: None).__code__  # that it was called with _semantic
    shaped = {name: _quick_shape(interpreter, getattr(core, name), change) for name, change in SHAPED.items()}

    def patch_attribute(obj: Any, name: str, member: Any, _builder: Any, scope: Any) -> None:
        called = member.__wrapped__ if getattr(member, "__code__", None) is checks else member
        called = shaped.get(name, called)

        def call(*arguments: Any, **options: Any) -> Any:
            options["_semantic"] = semantic
            return called(*arguments, **options)

        call.unpatched = member  # type: ignore[attr-defined]
        scope.set_attr(obj, name, call)

    interpreter._patch_attr = patch_attribute  # type: ignore[attr-defined]


# Operations that give their operand's elements another shape.
SHAPED = {
    "reshape": lambda data, sizes: (data.reshape(sizes),),
    "permute": lambda data, axes: (data.transpose(axes),),
    "split": lambda data, _: (data[..., 0], data[..., 1]),
}


def _quick_shape(interpreter: ModuleType, slow: Any, change: Any) -> Any:
    """Such an operation, which finds a result's type out once for each type and shape that it is given."""
    core, tensor, handle_type = interpreter.tl.core, interpreter.tl.core.tensor, interpreter.TensorHandle
    known: dict[tuple[Any, ...], list[dict[str, Any]]] = {}

    def shape(value: Any, *sizes: Any, **options: Any) -> Any:
        wanted = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (list, tuple, core.tuple)) else sizes
        wanted = [getattr(size, "value", size) for size in wanted]  # of constants
        if type(value) is not tensor or len(options) != 1 or not all(type(size) is int for size in wanted):
            return slow(value, *sizes, **options)
        key = value.type.name, *wanted
        if key not in known:
            found = slow(value, *sizes, **options)
            parts = found if change is SHAPED["split"] else (found,)
            if not all(part.type.is_block() for part in parts):
                return found
            known[key] = [{k: v for k, v in vars(part).items() if k != "handle"} for part in parts]
            return found
        handle, results = value.handle, []
        for data, described in zip(change(handle.data, wanted), known[key], strict=True):
            part, result = object.__new__(handle_type), object.__new__(tensor)
            part.__dict__ = {"data": data, "dtype": handle.dtype.scalar, "attr": {}}
            result.__dict__ = {**described, "handle": part}
            results.append(result)
        return results[0] if len(results) == 1 else tuple(results)

    return shape


def _call_functions_at_once(interpreter: ModuleType) -> None:
    """A function of a kernel's is looked for, and patched, whenever it is called."""
    function, failed = interpreter.InterpretedFunction, interpreter.InterpreterError

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        if "found" not in vars(self):
            interpreter._patch_lang(self.fn)
            self.found = self.rewrite()
        try:
            return self.found(*arguments, **options)
        except Exception as error:
            raise failed(repr(error)) from error

    function.__call__ = call


def _truncated(left: Any, right: Any) -> Any:
    return (left - np.fmod(left, right)) // right


# Of operands of one of these types the result is numpy's, in the same type or bool.
_ALIKE = {"fp32": np.float32, "int32": np.int32, "int64": np.int64, "int1": np.bool_}
_COMPARED = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal}
_NUMBERS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "ne": np.not_equal, **_COMPARED}
_NUMBERS |= {"radd": np.add, "rmul": np.multiply}
_BITS = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
_SHIFTS = {"lshift": np.left_shift, "rshift": np.right_shift}
_QUOTIENTS = {"floordiv": _truncated, "mod": np.fmod}
OPERATORS = {**_NUMBERS, **_BITS, **_SHIFTS, **_QUOTIENTS}
_KINDS = (
    {name: {"fp32", "int32", "int64"} for name in _NUMBERS}
    | {name: {"int32", "int64", "int1"} for name in _BITS}
    | {name: {"int32", "int64"} for name in (*_SHIFTS, *_QUOTIENTS)}
)


def _compute_alike_operands_at_once(interpreter: ModuleType) -> None:
    """What an operator does with two types is found out in a dozen calls, each time: here it is once, and then numpy
    is called. Offsets of pointers too."""
    tensor = interpreter.tl.core.tensor
    for name, compute in OPERATORS.items():
        slow = getattr(tensor, f"__{name}__")
        if not hasattr(slow, "slow"):
            setattr(tensor, f"__{name}__", _quick_operator(interpreter, slow, compute, _KINDS[name]))
    if not hasattr(tensor.__getitem__, "slow"):
        tensor.__getitem__ = _quick_axes(interpreter, tensor.__getitem__)


def _quick_operator(interpreter: ModuleType, slow: Any, compute: Any, kinds: set[str]) -> Any:
    tensor, handle_type = interpreter.tl.core.tensor, interpreter.TensorHandle
    operand = interpreter.interpreter_semantic.number_like
    known: dict[tuple[str, str], tuple[np.dtype[Any], np.dtype[Any], int, Any, dict[str, Any]] | None] = {}

    def learn(left: Any, right: Any) -> Any:
        """The result, found slowly, and for what follows how it is found at once."""
        found = slow(left, right)
        name, other, width = left.type.scalar.name, right.type.scalar.name, 0
        if name in kinds and (
            name == other or ({name, other} == {"int32", "int64"} and compute not in _SHIFTS.values())
        ):
            dtype = np.dtype(_ALIKE[name])
        elif compute is np.add and left.type.scalar.is_ptr() and other in ("int32", "int64"):
            dtype, width = np.dtype(np.uint64), max(1, left.type.scalar.element_ty.primitive_bitwidth // 8)
        else:
            known[left.type.name, right.type.name] = None
            return found
        shared = {name: value for name, value in vars(found).items() if name != "handle"}
        kind = None if width or name == other else found.handle.dtype  # else it is that of the left operand
        known[left.type.name, right.type.name] = dtype, np.dtype(_ALIKE[other]), width, kind, shared
        return found

    def operator(self: Any, other: Any) -> Any:
        if type(other) is not tensor:
            other = operand(self, other)
            if type(other) is not tensor:
                return slow(self, other)
        key = self.type.name, other.type.name
        if key not in known:
            return learn(self, other)
        how = known[key]
        left, right = self.handle, other.handle
        if how is None or left.data.dtype is not how[0] or right.data.dtype is not how[1]:
            return slow(self, other)
        dtype, _, width, kind, shared = how
        data = left.data + width * right.data.astype(dtype) if width else compute(left.data, right.data)
        handle, value = object.__new__(handle_type), object.__new__(tensor)
        handle.__dict__ = {"data": data, "dtype": kind or (left.dtype if width else left.dtype.scalar), "attr": {}}
        value.__dict__ = {**shared, "handle": handle}
        return value

    operator.slow = slow  # type: ignore[attr-defined]
    return operator


def _quick_axes(interpreter: ModuleType, slow: Any) -> Any:
    """value[:, None] and the like, whose type is found out once."""
    tensor, handle_type = interpreter.tl.core.tensor, interpreter.TensorHandle
    known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def axes(self: Any, slices: Any) -> Any:
        if type(slices) is not tuple or not self.type.is_block():
            return slow(self, slices)
        key = self.type.name, *(one is None for one in slices)
        if key not in known:
            found = slow(self, slices)  # and refuses what is neither None nor all of an axis
            known[key] = {name: value for name, value in vars(found).items() if name != "handle"}
            return found
        left, handle, value = self.handle, object.__new__(handle_type), object.__new__(tensor)
        handle.__dict__ = {"data": left.data[slices], "dtype": left.dtype.scalar, "attr": {}}
        value.__dict__ = {**known[key], "handle": handle}
        return value

    axes.slow = slow  # type: ignore[attr-defined]
    return axes


def _check_sizes_once(interpreter: ModuleType) -> None:
    """That an element fits its type is checked of each value anew."""
    check, found = interpreter.TensorHandle.__post_init__, set()

    def check_once(self: Any) -> None:
        key = self.data.itemsize, self.dtype.name
        if key not in found:
            check(self)
            found.add(key)

    interpreter.TensorHandle.__post_init__ = check_once


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
    alike = core.dtype.__eq__
    types: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
    values: dict[str, dict[str, Any]] = {}
    blocks: dict[tuple[str, tuple[int, ...]], Any] = {}
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

    def with_element_once(self: Any, kind: Any) -> Any:
        key = kind.name, self.sizes
        if key not in blocks:
            blocks[key] = core.block_type(kind, self.shape)
        return blocks[key]

    core.block_type.with_element_ty = with_element_once
    core.block_type.to_ir = lambda self, _builder: self  # what it gives is a type like this one
    core.block_type.__init__ = describe_once
    core.tensor.__init__ = make_alike
    core.tuple.__eq__ = lambda self, other: yes if self is other else equal(self, other)
    core.dtype.__eq__ = lambda self, other: self is other or alike(self, other)


_SIGNED = {"int8": np.int8, "int32": np.int32, "int64": np.int64, "fp32": np.float32}


def _cast_plain_numbers_at_once(interpreter: ModuleType) -> None:
    """Which kind of cast it is, and whether it is one, is found out by asking two types everything that they may be."""
    core, semantic, handle_type = interpreter.tl.core, interpreter.tl.semantic.TritonSemantic, interpreter.TensorHandle
    slow = semantic.cast

    def cast(self: Any, value: Any, kind: Any, rounding: Any = None) -> Any:
        type_, wanted = value.type, kind.scalar
        name = type_.scalar.name
        if name == wanted.name:
            return value
        if rounding is not None or wanted.name not in _SIGNED or not (name in _SIGNED or name == "int1"):
            return slow(self, value, kind, rounding)
        handle = handle_type(value.handle.data.astype(_SIGNED[wanted.name]), wanted)
        return core.tensor(handle, type_.with_element_ty(wanted) if type_.is_block() else wanted)

    cast.slow = slow  # type: ignore[attr-defined]
    semantic.cast = cast


def _unwrap_nothing_in_what_holds_nothing(core: ModuleType) -> None:
    """Constants are looked for in all arguments of all operations, most of which are tensors and numbers."""
    unwrap, bare = core._unwrap_if_constexpr, {core.tensor, int, float, bool, str, type(None)}
    bare |= {core.dtype, core.block_type, core.pointer_type}
    core._unwrap_if_constexpr = lambda value: value if type(value) in bare else unwrap(value)  # type: ignore[attr-defined]


def _leave_alike_operands_as_they_are(core: ModuleType, semantic: Any) -> None:
    """What two operands have to be cast to and spread over is worked out anew for those of one type too, and a number
    is made a tensor wherever it is one of them."""
    check, spread = semantic.binary_op_type_checking_impl, semantic.broadcast_impl_value
    stay = {"fp32", "int32", "int64"}  # such types of both are that of the result, whatever the operation
    constants: dict[tuple[str, int | str], Any] = {}

    def spread_unlike(self: Any, left: Any, right: Any) -> Any:
        sizes, others = getattr(left.type, "sizes", None), getattr(right.type, "sizes", None)
        if sizes == others:
            return left, right
        if sizes is None or others is None or len(sizes) != len(others):
            return spread(self, left, right)
        shape = tuple(b if a == 1 else a for a, b in zip(sizes, others, strict=True))
        if any(b not in (1, size) for b, size in zip(others, shape, strict=True)):
            return spread(self, left, right)
        return spread_over(self, left, sizes, shape), spread_over(self, right, others, shape)

    def spread_over(self: Any, value: Any, sizes: tuple[int, ...], shape: tuple[int, ...]) -> Any:
        if sizes == shape:
            return value
        handle = self.builder.create_broadcast(value.handle, shape)
        return self.tensor(handle, core.block_type(value.type.scalar, list(shape)))

    def check_unlike(self: Any, left: Any, right: Any, *arguments: Any, **options: Any) -> Any:
        is_left, is_right = isinstance(left, self.tensor), isinstance(right, self.tensor)
        if is_left and is_right:
            name = left.type.scalar.name
            if name in stay and name == right.type.scalar.name:
                return spread_unlike(self, left, right)
        elif is_left and stays(left, right):
            return left, constant(self, right, left)
        elif is_right and stays(right, left):
            return constant(self, left, right), right
        return check(self, left, right, *arguments, **options)

    def stays(tensor: Any, number: Any) -> bool:
        """Whether a number takes the tensor's type, whatever the operation."""
        if type(number) is int:
            return tensor.type.scalar.name in stay and -(2**31) <= number < 2**31
        return type(number) is float and tensor.type.scalar.name == "fp32"

    def constant(self: Any, number: float, like: Any, kind: Any = None) -> Any:
        """One tensor for each number, type and shape: nothing changes what a tensor holds."""
        key = like.type.name, number if type(number) is int else repr(number)  # 0.0 equals -0.0, and NaN nothing
        if key not in constants:
            constants[key] = spread(self, like, self.scalar_constant(number, dtype=kind or like.type.scalar))[1]
        return constants[key]

    def number_like(self: Any, like: Any, number: Any) -> Any:
        """The number as a tensor, where it takes the other's type, or is added to a pointer; else itself."""
        if stays(like, number):
            return constant(self, number, like)
        if type(number) is int and like.type.scalar.is_ptr() and -(2**31) <= number < 2**31:
            return constant(self, number, like, core.int32)
        return number

    semantic.broadcast_impl_value = spread_unlike
    semantic.binary_op_type_checking_impl = check_unlike
    semantic.number_like = number_like


def _leave_unread_checks_out(interpreter: ModuleType) -> None:
    """Sums and products of whole numbers are computed a second time, in 64 bits, for an assertion that exists in
    debugging alone."""
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=builder.options.debug)


def _load_at_once(interpreter: ModuleType) -> None:
    """What a load that leaves nothing out leaves out, and what is there instead, are written anew for each."""
    builder, handle_type = type(interpreter.interpreter_builder), interpreter.TensorHandle
    filled: dict[tuple[tuple[int, ...], np.dtype[Any], int], Any] = {}

    def full_of(shape: tuple[int, ...], dtype: Any, number: int) -> Any:
        key = shape, np.dtype(dtype), number
        if key not in filled:
            filled[key] = np.full(shape, number, dtype)
        return filled[key]

    def load(self: Any, ptr: Any, cache_policy: Any, is_volatile: Any) -> Any:
        mask = handle_type(full_of(ptr.data.shape, np.bool_, 1), interpreter.tl.int1)
        return self.create_masked_load(ptr, mask, None, cache_policy, is_volatile)

    def load_masked(_self: Any, ptrs: Any, mask: Any, other: Any, *_how: Any, **_named: Any) -> Any:
        kind = ptrs.get_element_ty()
        dtype = interpreter._get_np_dtype(kind)
        others = full_of(ptrs.data.shape, dtype, 0) if other is None else other.data
        return handle_type(interpreter._interpreter.load(ptrs.data, mask.data, others, dtype), kind)

    builder.create_load = load
    builder.create_masked_load = load_masked


def _run(program: str, *arguments: str) -> None:
    """As `python program arguments` does."""
    if os.environ.get("TRITON_INTERPRET"):
        quicken(importlib.import_module("triton.runtime.interpreter"))
    sys.argv, sys.path[0] = [program, *arguments], str(Path(program).parent)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    _run(*sys.argv[1:])
