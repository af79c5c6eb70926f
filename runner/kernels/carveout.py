"""One division of a multiprocessor's memory into L1 cache and shared memory for all kernels of a decode step.

By itself CUDA gives each kernel the division that suits it, and another one than before "may insert a device-side
synchronization point" (its documentation of cuFuncSetCacheConfig). Where attention, which wants shared memory, follows
a product, which wants none, the one may then wait for all of the other that it could have begun beside. So kernels
that may begin early (values.pdl_option) ask for the same division. It is a wish: CUDA passes over it where a program
needs more. It knows no kernel.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from triton import knobs

# Shared memory in percent of the most that there can be, by compute capability; GPUs that were not measured are left to
# CUDA. Of an H200's 228 KiB it is room for two programs of attention. 16 layers of Llama-3.1-8B, mq4, us of a step
# after 16 tokens: 888 without, 848 with 50 or 64 percent, 860 with 80, 900 with 100.
_PERCENT: Final = {(9, 0): 64}
_PREFERRED_SHARED_MEMORY_CARVEOUT: Final = 9  # of CUfunction_attribute


def divide_alike(device: torch.device) -> None:
    """From now on kernels that this process loads ask for the division of `device`, where it has one."""
    if device.type != "cuda" or torch.version.hip is not None:
        return
    percent = _PERCENT.get(torch.cuda.get_device_capability(device))
    if percent is not None:
        knobs.runtime.kernel_load_end_hook.add(_asking_for(percent))


def begins_early(name: str, files: Mapping[str, str]) -> bool:
    """Whether the compiled kernel `name` is launched before the one before it has ended; files: Triton's, by name."""
    return bool(json.loads(Path(files[f"{name}.json"]).read_text())["launch_pdl"])


@cache
def _asking_for(percent: int) -> Callable[[Any, int, str, Mapping[str, str], str], None]:
    """What Triton calls with each kernel that it has loaded; one function for a percent, so that it is added once."""
    driver = ctypes.CDLL("libcuda.so.1")

    def ask(_module: Any, function: int, name: str, files: Mapping[str, str], _key: str) -> None:
        if begins_early(name, files):  # What the driver answers is left: a wish that is not granted changes no number.
            driver.cuFuncSetAttribute(ctypes.c_void_p(function), _PREFERRED_SHARED_MEMORY_CARVEOUT, percent)

    return ask
