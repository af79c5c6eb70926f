"""Runs as `runner bench` records them, made of a few values: what the tests of reports read."""

from __future__ import annotations

import dataclasses
from typing import Any

from runner.bench.record import (
    Bandwidth,
    BenchBackend,
    BenchComparison,
    BenchMachine,
    BenchOptions,
    BenchRow,
    BenchRun,
    MachineState,
    ModelFile,
    SkippedTest,
)
from runner.types import BackendName, MemoryUse

# Terminal escapes, Rich and Markdown markup, a table's border, an SVG element, a line end, a bidirectional override.
HOSTILE = "\x1b]52;c;aGk=\x07a[/]b[red]|`x`<b>&\"'\n\x9b31m\u202e"


def row(
    test: str = "tg128",
    samples: tuple[float, ...] = (100.0, 102.0, 98.0, 101.0, 99.0),
    *,
    backend: BackendName = "native",
    segments: tuple[int, ...] | None = None,
    **others: Any,
) -> BenchRow:
    """A row of that name; its unit and sizes follow from it."""
    shape, _, depth = test.partition(" @ d")
    size = int(shape[2:]) if shape[:2] in ("pp", "tg") else 0
    sizes = {"n_prompt": size if shape[:2] == "pp" else 0, "n_gen": size if shape[:2] == "tg" else 0}
    if test == "ttft":
        sizes = {"n_prompt": 35, "n_gen": 1}
    if segments is None:
        segments = (len(samples) - len(samples) // 2, len(samples) // 2) if len(samples) > 1 else (1,) * len(samples)
    return BenchRow(
        model="demo",
        backend=backend,
        test=test,
        unit="ms" if test == "ttft" else "tok/s",
        samples=samples,
        segments=segments,
        n_depth=int(depth or 0),
        **sizes,
        **others,
    )


def backend(*rows: BenchRow, name: BackendName = "native", **others: Any) -> BenchBackend:
    memory = MemoryUse(weights_bytes=20 * 2**20, kv_cache_bytes=12 * 2**20, workspace_bytes=3 * 2**20)
    version = "llama-cpp-python 0.3.36" if name == "llamacpp" else "runner 0.1.0, torch 2.13.0"
    given = {"version": version, "device": "CPU (2 threads)", "quantization": "Q8_0", "memory": memory, **others}
    return BenchBackend(name=name, rows=tuple(dataclasses.replace(row, backend=name) for row in rows), **given)


def refused(name: BackendName, reason: str) -> BenchBackend:
    return BenchBackend(name=name, refused=reason)


def machine(**others: Any) -> BenchMachine:
    state = MachineState(load_average=0.4)
    given: dict[str, Any] = {
        "device": "AMD EPYC",
        "kind": "cpu",
        "memory_bytes": 8 * 2**30,
        "driver": "",
        "cpu": "AMD EPYC",
        "physical_cores": 2,
        "usable_cores": 2,
        "ram_bytes": 8 * 2**30,
        "os": "Linux 6.1.0-somebodys-own x86_64",
        "before": state,
        "after": state,
        "bandwidth": Bandwidth(bytes_s=12.5e9, method="copies of 256 MiB"),
        "versions": {"runner": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "commit": "0123456789ab"},
    }
    return BenchMachine(**{**given, **others})


def gpu_machine(**others: Any) -> BenchMachine:
    before = MachineState(clock_mhz=345, memory_clock_mhz=2619, temperature_c=31.0, power_w=75.0, load_average=0.2)
    after = MachineState(clock_mhz=1980, memory_clock_mhz=3201, temperature_c=48.0, power_w=512.0, load_average=1.1)
    given = {
        "device": "NVIDIA H200",
        "kind": "cuda",
        "memory_bytes": 141 * 2**30,
        "driver": "CUDA 13.0, driver 580.65",
        "before": before,
        "after": after,
        "bandwidth": Bandwidth(bytes_s=4.1e12, method="sums over 4 GiB"),
    }
    return machine(**{**given, **others})


def options(**others: Any) -> BenchOptions:
    given: dict[str, Any] = {
        "n_prompt": (512,),
        "n_gen": (128,),
        "depths": (0, 4096),
        "prefill_depths": (0,),
        "repetitions": 5,
        "backends": ("auto",),
        "kv_type": "f16",
        "budget_s": 10.0,
    }
    return BenchOptions(**{**given, **others})


def run(*backends: BenchBackend, id: str = "20260131-120000-4f2a", **others: Any) -> BenchRun:
    given: dict[str, Any] = {
        "started_at": "2026-01-31T12:00:00+00:00",
        "duration_s": 42.5,
        "model": "demo",
        "format": "gguf",
        "architecture": "qwen3",
        "quantization": "Q8_0",
        "num_parameters": 18_357_504,
        "size_bytes": 19_799_648,
        "files": (ModelFile(path="/home/somebody/demo.gguf", size_bytes=19_799_648, sha256="9c" * 32, how="computed"),),
        "prompts_md5": "ed" * 16,
        "options": options(),
        "machine": machine(),
        "backends": backends or (backend(row()),),
    }
    return BenchRun(id=id, **{**given, **others})


def full_run(**others: Any) -> BenchRun:
    """Everything that a report can have: noisy and invalid rows, notes, a refused backend, a skipped test."""
    native = backend(
        row("ttft", (84.2, 86.1, 83.0, 85.5, 84.9), cold=402.7),
        row("pp512", (9876.5, 9912.3, 9850.1, 9901.0, 9888.8), cold=9123.4),
        row("tg128", (142.6, 143.1, 141.0, 144.2, 142.2), cold=120.0, bytes_per_token=20_000_000, bandwidth_share=0.78),
        row("tg128 @ d4096", (), segments=(), invalid="greedy tokens differ between repetitions, from token 3 on"),
        process_peak_bytes=512 * 2**20,
        load_s=0.81,
        first_token_s=1.13,
    )
    llamacpp = backend(
        row("ttft", (99.0, 101.0, 100.0, 98.5, 100.9)),
        row("pp512", (8000.0, 9500.0, 7000.0, 9000.0, 8200.0), cold=7100.0, note="the first chunk was slow"),
        row("tg128", (131.0, 132.0, 130.5, 131.7, 131.1), bandwidth_share=0.71),
        name="llamacpp",
        note="Flash attention is off.",
    )
    given: dict[str, Any] = {
        "skipped": (SkippedTest(test="pp4096", reason="it takes 4097 tokens of context, and the model has 2048"),),
        "comparison": (BenchComparison(backend="native", against="llamacpp", n_same=120, n_ids=128, note="they part"),),
        "notes": ("Another process was on the GPU: Xorg (pid 77, 0.2 GiB).",),
    }
    return run(native, llamacpp, refused("fake", "It runs scripts alone."), **{**given, **others})
