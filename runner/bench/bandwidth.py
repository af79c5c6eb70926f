"""How fast this machine reads memory: the yardstick that decoding is held against.

A GPU reads a few gigabytes through torch; processors read arrays that no cache holds, a thread for each core. It knows
nothing of models.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from runner.bench.record import Bandwidth
from runner.errors import RunnerError
from runner.machine import cache_bytes, default_threads, devices

if TYPE_CHECKING:
    import torch

_GPU_BYTES: Final = 4 * 2**30
_CPU_BYTES: Final = (2**28, 2**30)  # at least, and at most or where nobody says what caches hold
_TIMES_CACHES: Final = (
    2  # reading in order, again and again, finds nothing of the last pass in a cache of half the size
)
_N_PASSES: Final = 7
_SHARE_OF_FREE: Final = 8  # an eighth of what is free at most: others may need the rest


def read_bandwidth(kind: Literal["cpu", "cuda", "rocm", "metal"], index: int) -> Bandwidth:
    """Measure it, in a few tenths of a second or, where caches are large, in one or two.

    index: of the GPU, as torch counts them. Raises RunnerError where it cannot be measured.
    """
    return _of_gpu(index) if kind in ("cuda", "rocm") else _of_processor()


def _of_gpu(index: int) -> Bandwidth:
    import torch

    if not torch.cuda.is_available():
        raise RunnerError("torch finds no GPU here: its bandwidth is not measured.")
    device = torch.device("cuda", index)
    free, _ = torch.cuda.mem_get_info(device)
    size = min(_GPU_BYTES, free // _SHARE_OF_FREE)
    data = torch.ones(size // 4, dtype=torch.float32, device=device)
    # Which of the two comes closer to what the memory gives differs between GPUs; both only read.
    operations: dict[str, Callable[[], object]] = {"sum": data.sum, "max": data.max}
    rates = {name: size / _gpu_seconds(run, device) for name, run in operations.items()}
    name = max(rates, key=lambda key: rates[key])
    return Bandwidth(
        bytes_s=rates[name],
        method=f"median of {_N_PASSES} passes of torch's {name} over {size / 2**30:.1f} GiB of float32",
    )


def _gpu_seconds(run: Callable[[], object], device: torch.device) -> float:
    """The median time of one call on the device, by its own clock."""
    import torch

    seconds: list[float] = []
    for number in range(_N_PASSES + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        run()
        end.record()
        torch.cuda.synchronize(device)
        if number:  # the first one also loads the kernel
            seconds.append(start.elapsed_time(end) / 1000)
    return statistics.median(seconds)


def _of_processor() -> Bandwidth:
    free = next(device.free_bytes for device in devices() if device.kind == "cpu")
    n_threads = default_threads()
    size = min(_cpu_bytes(cache_bytes()), free // _SHARE_OF_FREE) // n_threads // 4 * 4
    arrays = [np.ones(size // 4, np.float32) for _ in range(n_threads)]
    seconds = [_seconds(arrays) for _ in range(_N_PASSES + 1)][1:]
    threads = "1 thread" if n_threads == 1 else f"{n_threads} threads"
    return Bandwidth(
        bytes_s=n_threads * size / statistics.median(seconds),
        method=f"median of {_N_PASSES} passes of numpy's max over {n_threads * size / 2**30:.1f} GiB, {threads}",
    )


def _cpu_bytes(caches: int | None) -> int:
    """How much to read. Memory that is used for the first time takes far longer than reading it."""
    least, most = _CPU_BYTES
    return most if caches is None else min(max(least, _TIMES_CACHES * caches), most)


def _seconds(arrays: list[NDArray[np.float32]]) -> float:
    """One pass over all arrays at once, a thread each: numpy lets go of the interpreter meanwhile."""
    threads = [threading.Thread(target=array.max) for array in arrays]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started
