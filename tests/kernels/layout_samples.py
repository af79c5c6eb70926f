"""Run by test_compile.py in a process without Triton's interpreter: kernels that count on which lane has what, as
Triton lays them out for sm_90. Prints a JSON object: by file and variant, what is compiled, in its intermediate
language.

The arguments are names of kernel files.
"""

from __future__ import annotations

import json
import sys
import tempfile

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from runner.kernels.compile import TARGETS, Variant
from runner.kernels.compile.compilation import specialization
from runner.kernels.compile.variants import variants_of
from runner.kernels.values import OPTIONS, register_option


def intermediate(variant: Variant) -> str:
    target = TARGETS["sm_90"]
    signature, constants, attributes = specialization(variant, target)
    source = ASTSource(variant.kernel, signature=signature, constexprs=constants, attrs=attributes)
    options = {
        "num_warps": variant.num_warps,
        "num_stages": variant.num_stages,
        **register_option(variant.most_registers),
        **OPTIONS,
    }
    with tempfile.TemporaryDirectory() as cache, knobs.cache.scope():
        knobs.cache.dir = cache
        kernel = triton.compile(
            source, target=GPUTarget(target.backend, target.arch, target.warp_size), options=options
        )
    code: str = kernel.asm["ttgir"]
    return code


def main() -> None:
    print(json.dumps({module: {v.name: intermediate(v) for v in variants_of(module)} for module in sys.argv[1:]}))


if __name__ == "__main__":
    main()
