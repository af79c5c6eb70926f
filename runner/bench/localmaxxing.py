"""A run as a submission to localmaxxing.com, a public board of local inference: a JSON object, and nothing is sent.

Its fields are those that the board's own client writes (LottoLottoLotto/localmaxxing-cli, "Submit an existing completed
run": required are hfId, hardware, engineName, quantization, tokSOut and one more figure). Only what was measured is in
it, and nothing that says who measured: no names of users or hosts, no paths. It knows no network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from runner.bench.figures import doubt, figure, kv_type, with_unit
from runner.bench.record import BenchBackend, BenchMachine, BenchRow, BenchRun
from runner.bench.request import request_like
from runner.config import LoadOptions
from runner.errors import UsageError
from runner.safe_text import safe_line

_ENGINES: Final[dict[str, str]] = {"llamacpp": "llama.cpp", "native": "runner"}
_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def localmaxxing_payload(run: BenchRun, *, hf_id: str, backend: str | None = None, depth: int = 0) -> dict[str, Any]:
    """The submission for one backend, decoding at that depth. hf_id: the model's repository on the Hugging Face hub.

    backend: the one that decodes fastest when None. Raises UsageError when the run has no such figure, is partial, or
    was of random weights.
    """
    if not _REPOSITORY.fullmatch(hf_id):
        raise UsageError(f"{hf_id!r} is not the name of a repository.", hint="Give --hf-id owner/name.")
    if run.is_partial or run.options.is_random:
        what = "was interrupted" if run.is_partial else "is of random weights"
        raise UsageError(f"Run {run.id} {what}.", hint="A board takes whole runs of real models.")
    if run.options.genres:
        raise UsageError(
            f"Run {run.id} is of genres, which have no decode speed of their own.",
            hint="Name a run without --speculation: `runner bench history` lists them.",
        )
    if backend is not None and backend not in _ENGINES:
        raise UsageError(f"There is no backend {backend!r}.", hint=f"It is one of {', '.join(sorted(_ENGINES))}.")
    chosen, decode = _chosen(run, backend, depth)
    prefill = _row(chosen.rows, "pp", depth)
    ttft = _row(chosen.rows, "ttft", 0)
    payload: dict[str, Any] = {
        "hfId": hf_id,
        "engineName": _ENGINES[chosen.name],
        "engineVersion": chosen.version,
        "quantization": chosen.quantization or run.quantization,
        "backend": run.machine.kind,
        "tokSOut": _rounded(decode.mean),
        "tokSPrefill": None if prefill is None else _rounded(prefill.mean),
        "ttftMs": None if ttft is None else _rounded(ttft.mean),
        "peakVramGb": _vram(run, chosen, decode),
        "promptTokens": None if prefill is None else prefill.n_prompt,
        "outputTokens": decode.n_gen,
        "prefillTokens": decode.n_depth,
        "engineCommit": _commit(run, chosen),
        "hardware": _hardware(run.machine),
        "engineFlags": {
            "commandSnippet": _command(run, hf_id, chosen),
            "kvCacheDtype": kv_type(run, chosen),
            "gpuLayers": run.options.n_gpu_layers if isinstance(run.options.n_gpu_layers, int) else None,
            "concurrency": 1,
            "temperature": 0,
        },
        "notes": _notes(run, [row for row in (prefill, decode, ttft) if row is not None]),
    }
    payload["engineFlags"] = _known(payload["engineFlags"])
    return _known(payload)


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != ""}


def _chosen(run: BenchRun, name: str | None, depth: int) -> tuple[BenchBackend, BenchRow]:
    """The backend to submit and its decode row."""
    found = [
        (backend, row)
        for backend in run.backends
        if backend.name in _ENGINES
        and name in (None, backend.name)
        and (row := _row(backend.rows, "tg", depth)) is not None
    ]
    if not found:
        whose = f"{name} in run {run.id}" if name else f"Run {run.id}"
        at = f" at depth {depth}" if depth else ""
        raise UsageError(
            f"{whose} has no valid decode speed{at}.",
            hint="A board wants one: see `runner bench history`, --backend, -d.",
        )
    return max(found, key=lambda one: one[1].mean or 0.0)


def _row(rows: Iterable[BenchRow], kind: str, depth: int) -> BenchRow | None:
    """The first valid row of that kind at that depth."""
    return next((row for row in rows if row.test.startswith(kind) and row.n_depth == depth and row.samples), None)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(figure(value))


def _vram(run: BenchRun, backend: BenchBackend, decode: BenchRow) -> float | None:
    """GiB, as the board counts memory of GPUs; None where it is not known that all of the model is there: main memory
    would be among it."""
    is_whole = decode.bandwidth_share is not None or run.options.n_gpu_layers == "all"
    if run.machine.kind == "cpu" or backend.memory is None or not is_whole:
        return None
    return round(backend.memory.total_bytes / 2**30, 2)


def _commit(run: BenchRun, backend: BenchBackend) -> str | None:
    """Of the engine, where runner is the engine and its files are as they were committed."""
    commit = run.machine.versions.get("commit", "")
    return commit if backend.name == "native" and re.fullmatch(r"[0-9a-f]{7,64}", commit) else None


def _hardware(machine: BenchMachine) -> dict[str, Any]:
    """As the board's hardware classes have it; of the system's name and release only the name."""
    shared = {
        "cpu": safe_line(machine.cpu),
        "ramGb": round(machine.ram_bytes / 2**30),
        "os": machine.os.split(" ", 1)[0],
    }
    if machine.kind == "cpu":
        return {"hwClass": "CPU_ONLY", **shared}
    if machine.kind == "metal":
        memory = {"unifiedMemoryGb": round(machine.memory_bytes / 2**30)}
        return {
            "hwClass": "UNIFIED",
            "chipVendor": "Apple",
            "chipFamily": safe_line(machine.device),
            **memory,
            **shared,
        }
    vram = round(machine.memory_bytes / 2**30)
    return {"hwClass": "DISCRETE_GPU", "gpuName": safe_line(machine.device), "gpuCount": 1, "vramGb": vram, **shared}


def _command(run: BenchRun, hf_id: str, backend: BenchBackend) -> str:
    """What was asked for, of the one backend, with the repository in place of what the model is called here."""
    default = LoadOptions()
    asked = request_like(run.options, hf_id, default)
    sizes = (("-p", asked.n_prompt), ("-n", asked.n_gen), ("-d", asked.depths))
    flags = [f"{flag} {','.join(str(value) for value in values)}" for flag, values in sizes if values is not None]
    others = (
        ("-r", asked.repetitions, None),
        ("--backend", backend.name, None),
        ("-c", asked.load.ctx_size, default.ctx_size),
        ("-ngl", asked.load.n_gpu_layers, default.n_gpu_layers),
        ("-t", asked.load.n_threads, default.n_threads),
        ("--kv-type", asked.load.kv_type, default.kv_type),
    )
    flags += [f"{flag} {value}" for flag, value, is_left_out in others if value != is_left_out]
    return " ".join(["runner bench", hf_id, *flags])


def _notes(run: BenchRun, rows: list[BenchRow]) -> str:
    figures = "; ".join(
        f"{row.test} {with_unit(row)} (n={len(row.samples)}" + (f", {doubt(row)})" if doubt(row) else ")")
        for row in rows
        if row.mean is not None
    )
    ttft = " TTFT is that of a short chat, not of the prompt above." if any(row.test == "ttft" for row in rows) else ""
    digest = next((file.sha256 for file in run.files if file.sha256), "")
    model = f" Model file sha256 {digest}." if digest else ""
    return f"runner bench: greedy, batch 1, one warm-up; mean ± sd: {figures}.{ttft}{model}"
