"""Kernels that may begin early ask for one division of a multiprocessor's memory; others ask for nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from checkout import python
from triton import knobs

from runner.kernels.carveout import divide_alike

LOADED = """
import ctypes, json
import torch
from triton import knobs
from runner.kernels.carveout import divide_alike
from runner.kernels.dequantize import dequantize
from runner.kernels.layouts import random_matrix
from runner.kernels.rotate import quantize_rows
from runner.kernels.values import moved

functions = {}
device = torch.device("cuda")
for _ in range(2):
    divide_alike(device)
assert len(knobs.runtime.kernel_load_end_hook.calls) == (torch.cuda.get_device_capability() == (9, 0))
knobs.runtime.kernel_load_end_hook.add(lambda module, function, name, files, key: functions.update({name: function}))
h = torch.ones(3, 256, device=device)
quantize_rows(h, None, 1)
w = moved(random_matrix("mq4", 8, torch.Generator()), device)
dequantize(w, torch.empty(w.shape, device=device), first=0, pair=0)
driver, found = ctypes.CDLL("libcuda.so.1"), {}
for name, function in functions.items():
    value = ctypes.c_int()
    assert driver.cuFuncGetAttribute(ctypes.byref(value), 9, ctypes.c_void_p(function)) == 0
    found[name] = value.value
print(json.dumps(found))
"""
COMPILED = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from runner.kernels.angles import variants
from runner.kernels.carveout import begins_early
from runner.kernels.compile import TARGETS
from runner.kernels.compile.compilation import specialization

target = next(target for target in TARGETS.values() if target.arch == 90)
variant = next(variants())
signature, constants, attributes = specialization(variant, target)
source = ASTSource(variant.kernel, signature=signature, constexprs=constants, attrs=attributes)
found = []
for early in (False, True):
    options = {"num_warps": variant.num_warps, "launch_pdl": early}
    kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    found.append(begins_early(kernel.metadata.name, kernel.metadata_group))
print(json.dumps(found))
"""


def test_what_triton_writes_beside_a_kernel_says_whether_it_begins_early(tmp_path: Path) -> None:
    done = python("-c", COMPILED, TRITON_CACHE_DIR=str(tmp_path))

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [False, True]


def test_without_a_gpu_nothing_is_asked() -> None:
    before = list(knobs.runtime.kernel_load_end_hook.calls)

    divide_alike(torch.device("cpu"))

    assert knobs.runtime.kernel_load_end_hook.calls == before


@pytest.mark.gpu
def test_kernels_that_begin_early_have_one_carveout_on_hopper_and_none_elsewhere() -> None:
    done = python("-c", LOADED)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["_quantize_rows"] == 64) == (torch.cuda.get_device_capability() == (9, 0))
    assert found["_dequantize"] != 64
