"""A run for programs and documents: Markdown, CSV, JSON, and a JSON object for each row.

Names and units are those of llama-bench's CSV and JSON (llama.cpp, tools/llama-bench) where a thing is the same. Of its
columns those that are not known here are left out, and ours follow. Pure functions of a run; it knows no stream.
"""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from runner.bench.figures import INVALID, figure, kv_type, kv_types, label, percent
from runner.bench.record import NOT_REACHED, BenchBackend, BenchRow, BenchRun, run_to_json
from runner.bench.run_table import by_test, notes_of
from runner.bench.speculation_text import (
    acceptance_cell,
    drafter_cell,
    gain_cell,
    length_cell,
    plain_cell,
    remarks_of,
)
from runner.measures import short_count
from runner.safe_text import safe_line

ROW_SCHEMA: Final = "runner.bench.row/1"
# The order of CSV. Lists of samples go into JSON alone, as llama-bench has it.
LLAMA_BENCH_COLUMNS: Final = (
    "build_commit",
    "cpu_info",
    "gpu_info",
    "backends",
    "model_filename",
    "model_type",
    "model_size",
    "model_n_params",
    "n_batch",
    "n_ubatch",
    "n_threads",
    "type_k",
    "type_v",
    "n_gpu_layers",
    "n_prompt",
    "n_gen",
    "n_depth",
    "test_time",
    "avg_ns",
    "stddev_ns",
    "avg_ts",
    "stddev_ts",
)
OWN_COLUMNS: Final = (
    "run_id",
    "model",
    "backend",
    "backend_version",
    "test",
    "unit",
    "mean",
    "stddev",
    "median",
    "min",
    "max",
    "cv",
    "cold",
    "n_samples",
    "label",
    "invalid",
    "refused",
    "note",
    "bytes_per_token",
    "bandwidth_share",
    "gain",
    "gain_stddev",
    "plain_mean",
    "plain_stddev",
    "acceptance_rate",
    "acceptance_length",
    "drafter",
    "drafter_state",
    "drafter_reason",
    "draft_s",
    "verify_s",
    "sample_s",
    "model_sha256",
    "prompts_md5",
)
_KINDS: Final = {"cuda": "CUDA", "rocm": "ROCm", "metal": "Metal", "cpu": "CPU"}


def flat_rows(run: BenchRun) -> list[dict[str, Any]]:
    """One flat object a row, and one for each backend that was refused; what is not known is not in it."""
    rows = [_flat(run, backend, row) for backend in run.backends for row in backend.rows]
    rows += [_flat(run, backend, None) for backend in run.backends if backend.refused is not None]
    return [{name: value for name, value in row.items() if value is not None and value != ""} for row in rows]


def _flat(run: BenchRun, backend: BenchBackend, row: BenchRow | None) -> dict[str, Any]:
    options, machine = run.options, run.machine
    shared: dict[str, Any] = {
        "build_commit": machine.versions.get("commit"),
        "cpu_info": machine.cpu,
        "gpu_info": None if machine.kind == "cpu" else machine.device,
        "backends": _KINDS[machine.kind],
        "model_filename": run.files[0].path if run.files else None,
        "model_type": f"{run.architecture} {short_count(run.num_parameters)} {run.quantization}",
        "model_size": run.size_bytes,
        "model_n_params": run.num_parameters,
        "n_batch": options.batch_size,
        "n_ubatch": options.batch_size,
        "n_threads": options.n_threads,
        "type_k": kv_type(run, backend),
        "type_v": kv_type(run, backend),
        "n_gpu_layers": options.n_gpu_layers if isinstance(options.n_gpu_layers, int) else None,
        "test_time": run.started_at.replace("+00:00", "Z"),
        "run_id": run.id,
        "model": run.model,
        "backend": backend.name,
        "backend_version": backend.version,
        "refused": backend.refused,
        "model_sha256": run.files[0].sha256 if run.files else None,
        "prompts_md5": run.prompts_md5,
    }
    return shared if row is None else shared | _timings(row) | _statistics(row) | _speculation(row)


def _timings(row: BenchRow) -> dict[str, Any]:
    """As llama-bench has them: nanoseconds of the whole test, and tokens a second where it counts tokens."""
    shape = {"n_prompt": row.n_prompt, "n_gen": row.n_gen, "n_depth": row.n_depth}
    if not row.samples:
        return shape
    rates = list(row.samples) if row.unit == "tok/s" else []
    if rates:
        times = [round((row.n_prompt + row.n_gen) / rate * 1e9) for rate in rates]
    else:
        times = [round(value * 1e6) for value in row.samples]
    return shape | {
        "avg_ns": round(statistics.fmean(times)),
        "stddev_ns": round(statistics.stdev(times)) if len(times) > 1 else None,
        "avg_ts": row.mean if rates else None,
        "stddev_ts": row.stddev if rates else None,
        "samples_ns": times,
        "samples_ts": rates or None,
    }


def _statistics(row: BenchRow) -> dict[str, Any]:
    return {
        "test": row.test,
        "unit": row.unit,
        "mean": row.mean,
        "stddev": row.stddev,
        "median": row.median,
        "min": row.min,
        "max": row.max,
        "cv": row.cv,
        "cold": row.cold,
        "n_samples": len(row.samples),
        "label": label(row),
        "invalid": row.invalid,
        "note": row.note,
        "bytes_per_token": row.bytes_per_token,
        "bandwidth_share": row.bandwidth_share,
    }


def _speculation(row: BenchRow) -> dict[str, Any]:
    """What speculation did to a genre; the lists go into JSON alone."""
    if row.speculation is None:
        return {}
    record = row.speculation.record
    return row.speculation.figures(row.samples) | {
        "drafter": record.drafter,
        "drafter_state": record.state,
        "drafter_reason": record.reason,
        "draft_s": record.draft_s,
        "verify_s": record.verify_s,
        "sample_s": record.sample_s,
    }


def run_json(run: BenchRun) -> dict[str, Any]:
    """The whole run, and "results": its rows as llama-bench's JSON has them."""
    return {**run_to_json(run), "results": flat_rows(run)}


def csv_text(*runs: BenchRun) -> str:
    """A line for each row of each run, after one with the names of the columns; what is not known is empty."""
    rows = [row for run in runs for row in flat_rows(run)]
    text = io.StringIO()
    columns = (*LLAMA_BENCH_COLUMNS, *OWN_COLUMNS)
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _one_line(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _one_line(value: Any) -> Any:
    return safe_line(value) if isinstance(value, str) else value


# --- Markdown --------------------------------------------------------------------------------------------------------

_HEADINGS: Final = (
    "model", "size", "params", "backend", "test", "t/s", "plain", "gain", "accepted", "AL", "drafter", "cold", "cv", "",
)  # fmt: skip
_RIGHT: Final = frozenset(_HEADINGS[1:3] + _HEADINGS[4:10] + _HEADINGS[11:13])


def markdown(run: BenchRun) -> str:
    """A table as llama-bench prints it, and what is to be known of its rows as a list."""
    lines = (
        markdown_table(_HEADINGS, [_markdown_cells(run, row) for row in by_test(run.rows)], _RIGHT) if run.rows else []
    )
    invalid = [f"{row.backend} {row.test}: {row.invalid}" for row in run.rows if row.invalid is not None]
    remarks = [
        f"{one.name} was {'not reached' if one.refused == NOT_REACHED else f'refused: {one.refused}'}"
        for one in run.backends
        if one.refused is not None
    ]
    remarks += [f"{test.test} was skipped: {test.reason}" for test in run.skipped]
    remarks += [f"{row.backend} {row.test}: {text}" for row in run.rows for text in remarks_of(row)]
    remarks += ["It was interrupted: this is what was measured until then."] if run.is_partial else []
    remarks += [*notes_of(run), _where(run)]
    listed = [f"- **{INVALID}** {escaped(text)}" for text in invalid] + [f"- {escaped(text)}" for text in remarks]
    return "\n".join([*lines, "", *listed])


def _markdown_cells(run: BenchRun, row: BenchRow) -> Mapping[str, str]:
    model = f"{run.model} {run.quantization}" if run.quantization not in run.model else run.model
    return {
        "model": escaped(model),
        "size": f"{run.size_bytes / 2**30:.2f} GiB" if run.size_bytes >= 2**30 else f"{run.size_bytes / 2**20:.2f} MiB",
        "params": f"{run.num_parameters / 1e9:.2f} B" if run.num_parameters >= 1e9 else _millions(run),
        "backend": f"{row.backend} ({_KINDS[run.machine.kind]})",
        "test": escaped(row.test),
        "t/s": _result(row),
        "plain": plain_cell(row),
        "gain": gain_cell(row),
        "accepted": acceptance_cell(row),
        "AL": length_cell(row),
        "drafter": drafter_cell(row),
        "cold": "" if row.cold is None else figure(row.cold),
        "cv": percent(row.cv, 1),
        "": f"**{label(row)}**" if label(row) else "",
    }


def _millions(run: BenchRun) -> str:
    return f"{run.num_parameters / 1e6:.2f} M"


def _result(row: BenchRow) -> str:
    if row.mean is None:
        return INVALID
    spread = "" if row.stddev is None else f" ± {row.stddev:.2f}"
    return f"{row.mean:.2f}{spread}" + ("" if row.unit == "tok/s" else f" {row.unit}")


def _where(run: BenchRun) -> str:
    machine = run.machine
    device = machine.cpu if machine.kind == "cpu" else f"{machine.device}, {machine.cpu}"
    versions = ", ".join(f"{name} {value}" for name, value in machine.versions.items())
    return f"{device}; {versions}; KV cache {kv_types(run)}; run {run.id}"


def markdown_table(
    headings: Sequence[str], rows: Sequence[Mapping[str, str]], right: frozenset[str] = frozenset()
) -> list[str]:
    """Lines of a Markdown table with aligned cells, which must be escaped already; columns without cells left out."""
    shown = [name for name in headings if any(row.get(name) for row in rows)]
    widths = {name: max(3, len(name), *(len(row.get(name, "")) for row in rows)) for name in shown}

    def line(cells: Mapping[str, str]) -> str:
        padded = (
            cells.get(name, "").rjust(widths[name]) if name in right else cells.get(name, "").ljust(widths[name])
            for name in shown
        )
        return f"| {' | '.join(padded)} |"

    rule = {name: "-" * (widths[name] - 1) + ":" if name in right else "-" * widths[name] for name in shown}
    return [line({name: name for name in shown}), line(rule), *(line(row) for row in rows)]


def escaped(text: str) -> str:
    """One line that Markdown shows as it stands."""
    return re.sub(r"([\\|`<>\[\]_*])", r"\\\1", safe_line(text))
