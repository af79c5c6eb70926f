"""Run by test_compile_launches.py in a process without Triton's interpreter: kernels compiled in advance are found.

A driver that names a GPU stands in for one: what Triton makes of a launch, up to the compiled kernel, needs no device.
Prints a JSON object.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from runner.kernels import epilogues
from runner.kernels.compile.launches import compile_all, is_compiled, launches_of
from runner.kernels.compile.spread import Failure
from runner.kernels.gemv_dense import GemvDense
from runner.kernels.rotate import quantize_rows

driver.set_active(
    SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda _device: 0,
        get_benchmarker=None,
    )
)


def step() -> None:
    for n_rows in (1, 2, 3):  # two specializations: Triton takes a 1 for a constant
        quantize_rows(torch.zeros(n_rows, 256), None, 32)
    x, w = torch.zeros(3, 64, dtype=torch.bfloat16), torch.zeros(24, 64, dtype=torch.bfloat16)
    out = torch.zeros(3, 24)
    # A kernel that takes another as a constant, and a tuple of tensors, numbers and nothing.
    GemvDense(x=x, w=w, pair=0).run(epilogues.store, (out, 24, (out, 1.0, 0.0), out), (0, 1, False))


def main() -> None:
    launches = launches_of(step)
    before = [is_compiled(launch) for launch in launches]
    results = [result for _, result in compile_all(launches, processes=2, is_stopped=lambda: False)]
    failures = [result.reason for result in results if isinstance(result, Failure)]
    after = [is_compiled(launch) for launch in launches]
    found: list[bool] = []

    def listen(*, cache_hit: bool, **_: Any) -> None:
        found.append(cache_hit)

    # The same launches once more, as Triton itself compiles them.
    knobs.compilation.listener = listen
    run: Any = triton.JITFunction.run
    triton.JITFunction.run = lambda self, *args, **kwargs: run(self, *args, **{**kwargs, "warmup": True})
    step()
    names = [launch.kernel.name for launch in launches]
    print(json.dumps({"names": names, "before": before, "after": after, "failures": failures, "found": found}))


if __name__ == "__main__":
    main()
