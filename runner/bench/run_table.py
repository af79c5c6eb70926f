"""A run as people read it in a terminal: what was measured and where, the rows, and all that is to be known of them.

Pure: a run and a width come in, lines of styled text go out. What a row is labelled with is never left out, however
narrow the terminal is. It knows no stream and no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runner.bench.figures import INVALID, doubt, figure, kv_types, label, percent, with_unit
from runner.bench.record import NOT_REACHED, BenchBackend, BenchMachine, BenchRow, BenchRun
from runner.bench.speculation_text import (
    acceptance_cell,
    drafter_cell,
    gain_cell,
    length_cell,
    plain_cell,
    remarks_of,
)
from runner.bench.styled import Column, Line, Segment, Style, table_lines, wrapped
from runner.measures import binary_size, decimal_size, duration, short_count

_INDENT = 10
_COLUMNS = (
    Column(name="TEST", worth=0),
    Column(name="BACKEND", worth=1),
    Column(name="MEAN ± SD", worth=2, is_right=True, is_elastic=True),
    Column(name="MEDIAN", worth=7, is_right=True),
    Column(name="MIN .. MAX", worth=8, is_right=True),
    Column(name="CV", worth=6, is_right=True),
    Column(name="COLD", worth=4, is_right=True),
    Column(name="BANDWIDTH", worth=5, is_right=True),
    Column(name="RUNS", worth=9, is_right=True),
    Column(name="PLAIN", worth=5, is_right=True),
    Column(name="GAIN", worth=1, is_right=True),
    Column(name="ACCEPTED", worth=4, is_right=True),
    Column(name="AL", worth=5, is_right=True),
    Column(name="DRAFTER", worth=6),
    Column(name="LABEL", worth=3),
)


def run_lines(run: BenchRun, width: int | None) -> list[Line]:
    """The whole report; a `width` of None has room for everything."""
    lines = [*_heading(run, width), ()]
    if run.rows:
        lines += [*table_lines(_COLUMNS, [row_cells(row) for row in by_test(run.rows)], width), ()]
    return [*lines, *_remarks(run, width)]


def by_test(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """The rows of each test together, whatever backend they are of; tests in the order in which they first come."""
    tests = list(dict.fromkeys(row.test for row in rows))
    return sorted(rows, key=lambda row: tests.index(row.test))


def row_cells(row: BenchRow) -> dict[str, str | Segment]:
    """The cells of one row, by the name of their column."""
    style: Style = "bad" if row.invalid is not None else "doubt" if doubt(row) else ""
    low, high = row.min, row.max
    return {
        "TEST": row.test,
        "BACKEND": row.backend,
        "MEAN ± SD": Segment(with_unit(row), style or "bold"),
        "MEDIAN": "" if row.median is None else figure(row.median),
        "MIN .. MAX": "" if low is None or high is None else f"{figure(low, high)} .. {figure(high)}",
        "CV": Segment(percent(row.cv, 1), style),
        "COLD": Segment("" if row.cold is None else figure(row.cold), "dim"),
        "BANDWIDTH": percent(row.bandwidth_share),
        "RUNS": str(len(row.samples)),
        "PLAIN": plain_cell(row),
        "GAIN": Segment(gain_cell(row), "accent"),
        "ACCEPTED": acceptance_cell(row),
        "AL": length_cell(row),
        "DRAFTER": drafter_cell(row),
        "LABEL": Segment(label(row), style),
    }


# --- above the rows --------------------------------------------------------------------------------------------------


def _heading(run: BenchRun, width: int | None) -> Iterator[Line]:
    about = [run.quantization, f"{short_count(run.num_parameters)} parameters", run.architecture]
    digests = [file.sha256[:12] for file in run.files if file.sha256]
    about += [decimal_size(run.size_bytes), *([f"sha256 {digests[0]}"] if digests else [])]
    more = f" and {len(digests) - 1} more" if len(digests) > 1 else ""
    yield from _field("model", f"{run.model} · {' · '.join(part for part in about if part)}{more}", width, style="bold")
    yield from _field("machine", _machine(run.machine), width)
    yield from _field("state", _state(run.machine), width)
    yield from _field("versions", " · ".join(f"{name} {value}" for name, value in run.machine.versions.items()), width)
    yield from _field("options", _options(run), width)
    yield from _field("run", f"{run.id} · {run.started_at} · {duration(run.duration_s)}", width)
    if run.is_partial:
        yield from _field("PARTIAL", "It was interrupted: this is what was measured until then.", width, style="bad")


def _field(name: str, text: str, width: int | None, *, style: Style = "dim") -> list[Line]:
    return wrapped(name, style, text, _INDENT, width) if text else []


def _machine(machine: BenchMachine) -> str:
    cpu = f"{machine.cpu} ({_counted(machine.usable_cores, 'core')}, {binary_size(machine.ram_bytes)})"
    parts = [cpu]
    if machine.kind != "cpu":
        parts = [f"{machine.device} ({binary_size(machine.memory_bytes)})", machine.driver, cpu]
    if machine.bandwidth is not None:
        parts.append(f"memory read at {decimal_size(machine.bandwidth.bytes_s)}/s")
    return " · ".join(part for part in (*parts, machine.os) if part)


def _state(machine: BenchMachine) -> str:
    """Before and after, or nothing where nobody says."""
    before, after = machine.before, machine.after
    parts = [
        _change("clock", before.clock_mhz, after.clock_mhz, " MHz"),
        _change("memory clock", before.memory_clock_mhz, after.memory_clock_mhz, " MHz"),
        _change("", before.temperature_c, after.temperature_c, " °C"),
        _change("", before.power_w, after.power_w, " W"),
        _change("load", before.load_average, after.load_average, "", decimals=1),
    ]
    return " · ".join(part for part in parts if part)


def _change(name: str, before: float | None, after: float | None, unit: str, decimals: int = 0) -> str:
    values = [f"{value:.{decimals}f}" for value in (before, after) if value is not None]
    shown = " → ".join(dict.fromkeys(values))
    return f"{name} {shown}{unit}".strip() if shown else ""


def _options(run: BenchRun) -> str:
    options = run.options
    parts = [
        f"KV cache {kv_types(run)}",
        "" if options.ctx_size is None else f"context {options.ctx_size}",
        "" if options.n_gpu_layers == "auto" else f"GPU layers {options.n_gpu_layers}",
        "" if options.n_threads is None else _counted(options.n_threads, "thread"),
        "" if options.batch_size is None else f"prefill in chunks of {options.batch_size}",
        _counted(options.repetitions, "repetition"),
        "" if options.budget_s is None else f"fewer beyond {duration(options.budget_s)} of measuring",
        "random weights" if options.is_random else "",
        _drafting(run),
        f"prompts md5 {run.prompts_md5[:12]}" if run.prompts_md5 else "",
    ]
    return " · ".join(part for part in parts if part)


def _drafting(run: BenchRun) -> str:
    """What drafted; nothing where prefill and decode were measured. How long drafts were runs before did not tell."""
    options = run.options
    if not options.genres:
        return ""
    model = f" with {options.draft}" if options.draft else ""
    files = f", {_counted(len(options.draft_file), 'file')} to quote" if options.draft_file else ""
    longest = {str(one.draft_max) for one in run.backends if one.draft_max} or {str(options.draft_max)}
    return f"speculation {options.speculation}{model}{files}, drafts of {' or '.join(longest)} tokens at most"


def _counted(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


# --- below the rows --------------------------------------------------------------------------------------------------


def _remarks(run: BenchRun, width: int | None) -> Iterator[Line]:
    for row in run.rows:
        if row.invalid is not None:
            yield from _field(INVALID, f"{row.backend} {row.test}: {row.invalid}", width, style="bad")
    noisy = ", ".join(f"{row.backend} {row.test} ({percent(row.noise, 1)})" for row in run.rows if row.is_noisy)
    if noisy:
        yield from _field("noisy", f"{noisy}: repetitions vary by more than 5 %", width, style="doubt")
    few = ", ".join(f"{row.backend} {row.test} ({len(row.samples)})" for row in run.rows if row.is_few)
    if few:
        yield from _field("few", f"{few}: by so few repetitions nobody knows how much they vary", width, style="doubt")
    for backend in run.backends:
        if backend.refused == NOT_REACHED:
            yield from _field("unreached", backend.name, width, style="doubt")
        elif backend.refused is not None:
            yield from _field("refused", f"{backend.name}: {backend.refused}", width, style="bad")
    for row in run.rows:
        for text in remarks_of(row):
            yield from _field("drafts", f"{row.backend} {row.test}: {text}", width)
    for test in run.skipped:
        yield from _field("skipped", f"{test.test}: {test.reason}", width, style="doubt")
    for text in notes_of(run):
        yield from _field("note", text, width, style="accent")
    for backend in run.backends:
        yield from _field("memory", _memory(backend), width)
    for backend in run.backends:
        yield from _field("loading", _loading(backend), width)


def notes_of(run: BenchRun) -> Sequence[str]:
    """What the run, its backends and its rows are noted with; a note of several rows comes once."""
    by_text: dict[str, list[str]] = {}
    for row in run.rows:
        if row.note:
            by_text.setdefault(row.note, []).append(f"{row.backend} {row.test}")
    return [
        *run.notes,
        *(f"{backend.name}: {backend.note}" for backend in run.backends if backend.note),
        *(f"{', '.join(tests)}: {text}" for text, tests in by_text.items()),
        *(
            f"{one.backend} and {one.against} wrote the same first {one.n_same} of {one.n_ids} greedy tokens"
            + (f": {one.note}" if one.note else "")
            for one in run.comparison
        ),
    ]


def _memory(backend: BenchBackend) -> str:
    use = backend.memory
    if use is None:
        return ""
    parts = {
        "weights": use.weights_bytes,
        "KV cache": use.kv_cache_bytes,
        "workspace": use.workspace_bytes,
        "graphs": use.graphs_bytes,
        "drafter": use.draft_bytes,
    }
    shown = " + ".join(f"{name} {binary_size(size)}" for name, size in parts.items() if size)
    peak = backend.process_peak_bytes
    process = "" if peak is None else f"; its process at most {binary_size(peak)} of main memory"
    return f"{backend.name}: {binary_size(use.total_bytes)} = {shown}{process}"


def _loading(backend: BenchBackend) -> str:
    if backend.load_s is None:
        return ""
    first = "" if backend.first_token_s is None else f", first text after {duration(backend.first_token_s)}"
    return f"{backend.name}: loaded in {duration(backend.load_s)}{first}, from the start of its process"
