"""Kernels to compile, one that spills, one that races and one that is wrong among them.

Run as a program it prints what came of each as JSON. It is a program since in a test's own process kernels may be for
the interpreter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

import triton
import triton.language as tl

from runner.kernels.compile import TARGETS, Variant, compile_variant


@triton.jit
def scaled(value, columns, args, CONFIG: tl.constexpr):
    out, scaling, bias = args  # not all at once: Triton 3.6 hashes no assignment to a tuple in a tuple
    scale, width = scaling
    if CONFIG[0] == "biased":
        value = value + tl.load(bias + columns)[None, :]
    rows = tl.arange(0, CONFIG[1])
    tl.store(out + rows[:, None] * width + columns[None, :], value * tl.load(scale))


@triton.jit
def product(x, w, args, K, N: tl.constexpr, EPILOGUE: tl.constexpr, CONFIG: tl.constexpr, NVIDIA: tl.constexpr):
    ROWS: tl.constexpr = CONFIG[1]
    rows, columns, k = tl.arange(0, ROWS), tl.arange(0, N), tl.arange(0, 32)
    total = tl.zeros((ROWS, N), tl.float32)
    for start in range(0, K, 32):
        left = tl.load(x + rows[:, None] * K + start + k[None, :])
        total = tl.dot(left, tl.load(w + columns[None, :] * K + start + k[:, None]), total)
    if NVIDIA:
        total = tl.inline_asm_elementwise("neg.f32 $0, $1;", "=f,f", [total], dtype=tl.float32, is_pure=True, pack=1)
    EPILOGUE(total, columns, args, CONFIG)


@triton.jit
def hoard(x, N: tl.constexpr):
    place = tl.arange(0, N)
    value = tl.load(x + place)
    tl.store(x + place, value * tl.sum(value))


@triton.jit
def overtaking(x, w, out, K, N: tl.constexpr):
    """Its left matrix is of this turn, and no load: on Hopper it stays in registers."""
    n, k = tl.arange(0, N), tl.arange(0, 64)
    total = tl.zeros((N, N), tl.float32)
    for start in range(0, K, 64):
        left = tl.load(w + n[:, None] * K + start + k[None, :]).to(tl.bfloat16) * 2.0
        total = tl.dot(left, tl.load(x + n[None, :] * K + start + k[:, None]), total)
    tl.store(out + n[:, None] * N + n[None, :], total)


@triton.jit
def misspelt(x):
    tl.store(x, tl.load(x).to(tl.float33))


def samples() -> Iterator[Variant]:
    for name, bias in (("plain", None), ("biased", "*fp32")):
        yield Variant(
            name=name,
            kernel=product,
            signature={"x": "*bf16", "w": "*bf16", "args": ("*fp32", ("*fp32", "i32:16"), bias), "K": "i32:16"},
            constants={"N": 32, "EPILOGUE": scaled, "CONFIG": (name, 16), "NVIDIA": False},
            nvidia_constants={"NVIDIA": True},
        )
    yield Variant(name="hoard", kernel=hoard, signature={"x": "*fp32"}, constants={"N": 16384}, num_warps=1)
    yield Variant(
        name="overtaking",
        kernel=overtaking,
        signature={"x": "*bf16", "w": "*i8", "out": "*fp32", "K": "i32:16"},
        constants={"N": 128},
    )
    yield Variant(name="misspelt", kernel=misspelt, signature={"x": "*fp32"}, constants={})


def main() -> None:
    found = {}
    for variant in samples():
        for target in ("sm_90", "gfx1100"):
            try:
                found[f"{variant.name} {target}"] = asdict(compile_variant(variant, TARGETS[target]))
            except Exception as error:
                found[f"{variant.name} {target}"] = {"failure": str(error)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
