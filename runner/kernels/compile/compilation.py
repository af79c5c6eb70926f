"""Compiles one variant for one target with Triton, without a GPU, and reads what the code takes of one.

It knows no particular kernel, and touches no device. Triton is imported when something is compiled and not before.
"""

from __future__ import annotations

import io
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

from runner.errors import RunnerError
from runner.kernels.compile.targets import Target
from runner.kernels.compile.variants import Variant

_Path = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What one compiled variant takes.

    registers: of a thread. spilled_bytes: of registers that a thread keeps in memory for want of more of them.
    shared_bytes: of a program. size: bytes of the binary. seconds: that compiling took. ttgir: it in Triton's
    intermediate language, which says which lane has what of each tensor.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    seconds: float
    size: int
    ttgir: str


def compile_variant(variant: Variant, target: Target) -> Compiled:
    """Compile for the target, always afresh. Raises what Triton raises: its errors have no common class."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from runner.kernels.values import OPTIONS, register_option

    if not isinstance(variant.kernel, triton.runtime.JITFunction):
        raise RunnerError(
            "The kernels were imported for Triton's interpreter, which compiles nothing.",
            hint="Unset TRITON_INTERPRET.",
        )
    signature, constants, attributes = specialization(variant, target)
    source = ASTSource(variant.kernel, signature=signature, constexprs=constants, attrs=attributes)
    options = {
        "num_warps": variant.num_warps,
        "num_stages": variant.num_stages,
        **register_option(variant.most_registers if target.is_nvidia else None),
        **OPTIONS,
    }
    log = io.StringIO()
    started = time.perf_counter()
    with _afresh(), redirect_stdout(log):
        kernel = triton.compile(
            source, target=GPUTarget(target.backend, target.arch, target.warp_size), options=options
        )
    seconds = time.perf_counter() - started
    if target.is_nvidia:
        registers, spilled = read_ptxas(log.getvalue())
    else:
        registers, spilled = read_amdgcn(kernel.asm["amdgcn"])
    return Compiled(
        registers=registers,
        spilled_bytes=spilled,
        shared_bytes=kernel.metadata.shared,
        seconds=seconds,
        size=len(kernel.asm["cubin" if target.is_nvidia else "hsaco"]),
        ttgir=kernel.asm["ttgir"],
    )


@contextmanager
def _afresh() -> Iterator[None]:
    """Triton finds nothing compiled before and leaves nothing behind; ptxas's account of registers is printed.

    Lines of the source are left out: nobody debugs this code, and they take a sixth of the time.
    """
    from triton import knobs

    with tempfile.TemporaryDirectory() as cache, knobs.cache.scope(), knobs.nvidia.scope(), knobs.compilation.scope():
        knobs.cache.dir = cache
        knobs.nvidia.dump_ptxas_log = True
        knobs.compilation.disable_line_info = True
        yield


# --- how Triton wants a specialization -------------------------------------------------------------------------------


def specialization(variant: Variant, target: Target) -> tuple[dict[str, Any], dict[_Path, object], dict[_Path, Any]]:
    """Types by argument; constants by the place of an argument, or of a part of a tuple; attributes by the same places.

    The attributes are those that a launch finds: multiples of 16, and on AMD that a tensor is below 2 GiB.
    """
    given = {**variant.constants, **(variant.nvidia_constants if target.is_nvidia else {})}
    if variant.has_pdl:
        given["PDL"] = target.has_pdl
    names = list(variant.kernel.arg_names)
    assert set(names) == given.keys() | variant.signature.keys(), (
        f"{variant.name}: the arguments are {names}, and not {[*variant.signature, *given]}"
    )
    assert not given.keys() & variant.signature.keys(), f"{variant.name}: both a type and a constant"
    signature: dict[str, Any] = {}
    constants: dict[_Path, object] = {}
    attributes: dict[_Path, Any] = {}
    for place, name in enumerate(names):
        if name in given:
            signature[name] = "constexpr"
            constants[(place,)] = given[name]
        else:
            signature[name] = _type_of(variant.signature[name], (place,), target, constants, attributes)
    return signature, constants, attributes


def _type_of(
    kind: object, path: _Path, target: Target, constants: dict[_Path, object], attributes: dict[_Path, Any]
) -> Any:
    """The type of an argument or of a part of one; what is constant or known about it goes into the dictionaries."""
    if isinstance(kind, tuple):
        return tuple(_type_of(part, (*path, i), target, constants, attributes) for i, part in enumerate(kind))
    if not isinstance(kind, str):
        constants[path] = kind
        return "constexpr"
    name, _, multiple = kind.partition(":")
    assert multiple in ("", "16"), f"{kind}: a number is known to be a multiple of 16 or of nothing"
    known = []
    if multiple or name.startswith("*"):
        known.append(["tt.divisibility", 16])
    if name.startswith("*") and not target.is_nvidia:
        known.append(["tt.pointer_range", 32])
    if known:
        attributes[path] = known
    return name


# --- what the compilers say ------------------------------------------------------------------------------------------


def read_ptxas(log: str) -> tuple[int, int]:
    """Registers and spilled bytes of a thread, from what `ptxas -v` says."""
    return _number(r"Used (\d+) registers", log), _number(r"(\d+) bytes spill stores", log)


def read_amdgcn(assembly: str) -> tuple[int, int]:
    """Vector registers and spilled bytes of a thread, from the metadata of AMD assembly.

    Scalar registers spill to lanes of vector registers and not to memory; if those run out, vector registers spill.
    """
    return _number(r"\.vgpr_count:\s+(\d+)", assembly), 4 * _number(r"\.vgpr_spill_count:\s+(\d+)", assembly)


def overtakes_products(ttgir: str) -> bool:
    """Whether a step writes to registers that the products of the step before may still read.

    Hopper's tensor cores read a left matrix in registers in their own time. Where Triton waits for some of the products
    alone, which it does to let the others go on, nothing keeps the next step from its registers.
    """
    is_in_registers = re.search(r"warp_group_dot %.*#ttg\.dot_op", ttgir) is not None
    return is_in_registers and re.search(r"warp_group_dot_wait .*pendings = [1-9]", ttgir) is not None


def _number(pattern: str, text: str) -> int:
    """The largest number that the pattern finds: functions that were not inlined have their own."""
    found = re.findall(pattern, text)
    assert found, f"nothing matches {pattern!r} in what the compiler said: {text[-500:]}"
    return max(map(int, found))
