"""What takes long before a model's first kernel and needs no torch: done in threads, beside the import of torch.

A GPU's context takes a fifth of a second, and Triton's hash of its own library, which it makes before it looks for its
first kernel, nearly half of one; neither holds the interpreter's lock. Nothing here is needed for a right answer: what
fails here is done, and fails, where it is asked for.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Thread
from typing import Final

from runner.backends.native.preference import is_torch_for_nvidia
from runner.kernels.compile.launches import compiler_hash

log = logging.getLogger(__name__)

_DRIVER: Final = "libcuda.so.1"


@contextmanager
def gpu_prepared() -> Iterator[None]:
    """Within it that is done, if torch is to be imported there and could run on an NVIDIA GPU."""
    driver = None if "torch" in sys.modules else _driver()
    if driver is None:
        yield
        return
    threads = [Thread(target=partial(_open_first_gpu, driver), name="gpu", daemon=True)]
    if (hash_triton := compiler_hash()) is not None:
        threads.append(Thread(target=partial(_quietly, hash_triton), name="triton", daemon=True))
    for thread in threads:
        thread.start()
    yield
    for thread in threads:  # whoever asks for the hash while it is being made makes it a second time
        thread.join()


def _driver() -> ctypes.CDLL | None:
    """NVIDIA's driver, where it is installed and torch is built for it: a context takes memory of the GPU."""
    if not is_torch_for_nvidia():
        return None
    try:
        return ctypes.CDLL(_DRIVER)
    except OSError:
        return None


def _open_first_gpu(driver: ctypes.CDLL) -> None:
    """The context that torch will find; the process keeps it until its end, as it keeps torch's."""
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as drivers do by themselves from CUDA 12.2 on
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if not driver.cuInit(0) and not driver.cuDeviceGet(ctypes.byref(device), 0):
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def _quietly(work: Callable[[], object]) -> None:
    try:
        work()
    except Exception:
        log.debug("not done in advance", exc_info=True)
