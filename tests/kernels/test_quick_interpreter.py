"""What Triton's interpreter computes quickly in tests is what it computes slowly."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from kernel_data import DEVICE
from quick_interpreter import OPERATORS

pytestmark = pytest.mark.skipif(DEVICE.type == "cuda", reason="kernels are compiled where there is a GPU")
TYPES = {
    "fp32": np.float32,
    "fp16": np.float16,
    "int32": np.int32,
    "int64": np.int64,
    "int8": np.int8,
    "int1": np.bool_,
}
SHAPES = ((), (4, 1), (1, 8), (4, 8))
NUMBERS = (3, -2, 2**40, True, 0.0, -0.0, 1.5, float("nan"))


@triton.jit
def _nothing(x):
    tl.store(x, tl.load(x))


@pytest.fixture(scope="module")
def values() -> dict[tuple[str, tuple[int, ...]], Any]:
    """A value of each type and shape, as a kernel has it."""
    _nothing[(1,)](torch.zeros(1))  # the language is patched at the first launch
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    random = np.random.default_rng(1)
    found = {}
    for name, dtype in TYPES.items():
        for shape in SHAPES:
            kind = tl.str_to_ty(
                {"fp32": "fp32", "fp16": "fp16", "int1": "i1"}.get(name, name.replace("int", "i")), None
            )
            data = random.integers(0, 2 if name == "int1" else 5, shape or (1,)).astype(dtype)
            block = tl.block_type(kind, list(shape)) if shape else kind
            found[name, shape] = tl.tensor(interpreter.TensorHandle(data, kind), block)
    return found


def told(compute: Any, *operands: Any, **options: Any) -> Any:
    """The type, the numbers and their numpy type; or that it is refused."""
    try:
        found = compute(*operands, **options)
    except Exception as error:
        return type(error)
    if isinstance(found, tuple):
        return [told(lambda part=part: part) for part in found]
    if not isinstance(found, tl.tensor):
        return found
    data = found.handle.data
    return found.type.name, found.handle.dtype.name, data.dtype, data.shape, data.tobytes(), str(found.shape)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_give_what_they_give_slowly(name: str, values: dict[tuple[str, tuple[int, ...]], Any]) -> None:
    quick = getattr(tl.tensor, f"__{name}__")
    with np.errstate(all="ignore"):
        for left, right in itertools.product(values.values(), [*values.values(), *NUMBERS]):
            wanted = told(quick.slow, left, right)
            assert [told(quick, left, right) for _ in range(2)] == [wanted, wanted], (left, right)


def test_offsets_of_pointers_are_in_bytes_of_what_they_point_to(values: dict[tuple[str, tuple[int, ...]], Any]) -> None:
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    kind = tl.pointer_type(tl.float32)
    pointer = tl.tensor(interpreter.TensorHandle(np.array([4096], np.uint64), kind), kind)
    for offset in (values["int32", (4, 8)], values["int64", (1, 8)], values["int8", (4, 1)], 5):
        for _ in range(2):
            found = tl.tensor.__add__(pointer, offset)
            assert told(lambda: found) == told(tl.tensor.__add__.slow, pointer, offset)  # noqa: B023
    assert (
        tl.tensor.__add__(pointer, values["int32", (4, 8)]).handle.data - 4096
        == 4 * values["int32", (4, 8)].handle.data
    ).all()


@pytest.mark.parametrize(
    "slices", [(slice(None), slice(None), None), (None, slice(None), slice(None)), (slice(1, 2), None)]
)
def test_axes_are_added_as_they_are_slowly(slices: Any, values: dict[tuple[str, tuple[int, ...]], Any]) -> None:
    quick = tl.tensor.__getitem__
    for value in values.values():
        assert [told(quick, value, slices) for _ in range(2)] == [told(quick.slow, value, slices)] * 2


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        *(
            ("reshape", sizes)
            for sizes in [(32,), (8, 4), ([2, 2, 8],), (tl.constexpr(8), 1), (tl.constexpr(2),), (5,)]
        ),
        *(("permute", axes) for axes in [(1, 0), ((0, 1),), (tl.constexpr(1), 0), (0, 0), (0, 2, 1), (2, 1, 0)]),
        ("reshape", ()),
        ("split", ()),
    ],
)
def test_shapes_are_what_they_are_slowly(name: str, sizes: Any, values: dict[tuple[str, tuple[int, ...]], Any]) -> None:
    quick, semantic = getattr(tl, name), pytest.importorskip("triton.runtime.interpreter").interpreter_semantic
    pairs = [tl.join(value, tl.zeros_like(value)) for (_, shape), value in values.items() if shape]
    for value in [*values.values(), *pairs, tl.join(pairs[0], pairs[0])]:
        wanted = told(quick.unpatched, value, *sizes, _semantic=semantic)
        assert [told(quick, value, *sizes) for _ in range(2)] == [wanted, wanted], value


def test_casts_give_what_they_give_slowly(values: dict[tuple[str, tuple[int, ...]], Any]) -> None:
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    semantic = interpreter.interpreter_semantic
    kinds = (tl.float32, tl.float16, tl.bfloat16, tl.int8, tl.uint8, tl.int32, tl.int64, tl.int1)
    for value, kind in itertools.product(values.values(), kinds):
        wanted = told(semantic.cast.slow, semantic, value, kind)
        assert told(semantic.cast, value, kind) == wanted, (value, kind)
