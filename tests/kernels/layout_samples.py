"""Run by test_compile.py in a process without Triton's interpreter: kernels that count on which lane has what, as
Triton lays them out for sm_90. Prints a JSON object: by file and variant, what is compiled, in its intermediate
language.

The arguments are names of kernel files, or such a name with a part of its variants' names: "file: part".
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from runner.kernels.compile import TARGETS, Variant
from runner.kernels.compile.compilation import specialization
from runner.kernels.compile.variants import variants_of
from runner.kernels.values import OPTIONS, register_option


def intermediate(variant: Variant) -> str:
    """As triton.compile goes, up to the layouts: what follows would take as long again."""
    wanted = TARGETS["sm_90"]
    target = GPUTarget(wanted.backend, wanted.arch, wanted.warp_size)
    signature, constants, attributes = specialization(variant, wanted)
    source, backend = ASTSource(variant.kernel, signature, constants, attributes), make_backend(target)
    options = backend.parse_options(
        {
            "num_warps": variant.num_warps,
            "num_stages": variant.num_stages,
            **register_option(variant.most_registers),
            **OPTIONS,
            **source.parse_options(),
        }
    )
    stages: dict[str, Callable[[ir.module, dict[str, Any]], ir.module]] = {}
    backend.add_stages(stages, options, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    implementations, modules = backend.get_codegen_implementation(options), backend.get_module_map()
    module, metadata = source.make_ir(target, options, implementations, modules, context), {**vars(options)}
    for stage in ("ttir", "ttgir"):
        module = stages[stage](module, metadata)
    return str(module)


def main() -> None:
    found: dict[str, dict[str, str]] = {}
    for argument in sys.argv[1:]:
        module, _, part = argument.partition(": ")
        found[module] = {v.name: intermediate(v) for v in variants_of(module) if part in v.name}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
