"""How times are taken: medians, CUDA graph replays between events on a GPU, and a machine's two ceilings.

A graph replays without the host, so what is timed is the device alone; the caller sees to it that operands are larger
than the L2 cache, by giving one call for each of several copies. It knows nothing of what is computed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

_LEAST_S = 2e-3  # a timed stretch: far above what events and launches cost
_STREAM_BYTES = 2 << 30
_CPU_STREAM_BYTES = 256 << 20
_TILES = ((4096, 8, 8), (8192, 16, 8), (4096, 32, 4))  # elements, tiles a program, warps


def graph_s(calls: Sequence[Callable[[], Any]], rounds: int = 7) -> float:
    """Seconds that one of `calls` takes on average when all run one after the other; the median of some rounds."""
    if not torch.cuda.is_available():  # in the interpreter, where a time says nothing
        return wall_s(lambda: [call() for call in calls], 1) / len(calls)
    for call in calls[:2]:  # compiles; a graph cannot
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    once = _between_events(graph.replay, 1)
    n_replays = max(1, int(_LEAST_S / once))
    times = [_between_events(graph.replay, n_replays) for _ in range(rounds)]
    return statistics.median(times) / len(calls)


def _between_events(work: Callable[[], Any], count: int) -> float:
    """Seconds of one of `count` calls on the device."""
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(count):
        work()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3 / count


def wait() -> None:
    """Until the device has nothing left to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def wall_s(work: Callable[[], Any], rounds: int) -> float:
    """The median time of one call that is waited for, after one that warms up."""
    times = []
    for _ in range(rounds + 1):
        wait()
        started = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


@triton.jit
def _sum(x, out, TILE: tl.constexpr, TILES: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * TILE * TILES
    total = tl.zeros((TILE,), tl.float32)
    for i in range(TILES):
        total += tl.load(x + first + i * TILE + tl.arange(0, TILE)).to(tl.float32)
    tl.store(out + tl.program_id(0), tl.sum(total))


def read_bytes_s() -> float:
    """Bytes a second that the device reads at most: a sum over more than any cache holds, by the best of some tiles."""
    if not torch.cuda.is_available():
        x = torch.rand(_CPU_STREAM_BYTES // 4)
        return _CPU_STREAM_BYTES / wall_s(x.sum, 5)
    size = min(_STREAM_BYTES, torch.cuda.mem_get_info()[0] // 4 >> 20 << 20)
    x = torch.randn(size // 2, dtype=torch.bfloat16, device="cuda")
    times = []
    for tile, tiles, warps in _TILES:
        n_programs = len(x) // (tile * tiles)
        out = torch.empty(n_programs, device="cuda")

        def read(tile: int = tile, tiles: int = tiles, warps: int = warps, out: torch.Tensor = out) -> None:
            _sum[(len(out),)](x, out, TILE=tile, TILES=tiles, num_warps=warps)

        times.append(graph_s([read]) / (n_programs * tile * tiles * 2))
    return 1 / min(times)


def bf16_flop_s() -> float:
    """Operations a second of the library's product of two large bf16 matrices."""
    size = 8192 if torch.cuda.is_available() else 512
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    return 2 * size**3 / graph_s([lambda: a @ b], 5)


def device_name() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"CPU, {torch.get_num_threads()} threads"
