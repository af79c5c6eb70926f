"""A decode step, or a pass of more tokens, kernel by kernel: what runs, how long each takes, what lies between them.

    python benchmarks/decode_layer.py [--shape llama-3.1-8b] [--format mq4] [--depth 16] [--steps 20] [--json FILE]
    python benchmarks/decode_layer.py --rows 8            # as a draft is verified
    python benchmarks/decode_layer.py --rows 64 --depth 0 # a prompt

The step is the engine's own, replayed from its CUDA graph on a model of that shape with random weights, and torch's
profiler says when each kernel began and ended. Rows are the kernels of a layer in their order (medians over all layers
and steps), then those outside of layers. A gap is the time from the end of the kernel before; with programmatic
dependent launch a kernel begins before that, and the gap is negative. What the profiler itself costs is in the gaps:
"without profiler" is the same step timed by the clock. Where layers are of several kinds, "layer" is a group of them.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import timing
import torch
from arguments import positive
from generation import device_step_s, fill, run_ahead, run_passes
from random_models import RECIPE_NAMES, about_bytes, fused_execution, write_directory
from records import Report, Table, add_arguments, origin, require_gpu, say
from shapes import SHAPES, config_of
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from workplace import workplace

_NAME_WIDTH = 44


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel that ran, in microseconds of one clock."""

    name: str
    start_us: float
    end_us: float

    @property
    def us(self) -> float:
        return self.end_us - self.start_us


@dataclass(frozen=True, kw_only=True)
class Row:
    """The kernels of one place in a layer, or of one outside of layers ("once"). us, gap_us: medians of one kernel."""

    place: str
    name: str
    calls: int
    us: float
    gap_us: float
    share: float


@dataclass(frozen=True, kw_only=True)
class Step:
    """One decode step. busy_us: some kernel was running; us: from the first kernel's begin to the next step's."""

    rows: tuple[Row, ...]
    kernels: int
    us: float
    busy_us: float


def period(names: Sequence[str], repeats: int) -> tuple[int, int]:
    """Where the longest stretch of names begins that comes `repeats` times in a row, and its length, or (0, 0)."""
    for length in range(len(names) // repeats, 0, -1):
        for first in range(len(names) - length * repeats + 1):
            stretch = names[first : first + length * repeats]
            if stretch[length:] == stretch[:-length]:
                return first, length
    return 0, 0


def layers_of(names: Sequence[str], num_layers: int) -> tuple[int, int, int]:
    """Where the layers begin, the kernels of a group of them that are not alike, and how many such groups there are:
    with three gated delta nets for each attention a fourth of the layers. Of all ways the one that leaves least out."""
    # The last group may lack what a layer does for the one behind it.
    counts = {num_layers // size - lacking for size in range(1, num_layers // 2 + 1) for lacking in (0, 1)}
    ways = [(*period(names, groups), groups) for groups in sorted(counts - {1}, reverse=True)]
    return max(ways, key=lambda way: way[1] * way[2], default=(0, 0, 0))


def steps_of(kernels: Sequence[Kernel], n_steps: int) -> list[list[Kernel]]:
    """The kernels of each step. Raises ValueError where the steps are not all alike."""
    in_order = sorted(kernels, key=lambda kernel: kernel.start_us)
    size, rest = divmod(len(in_order), n_steps)
    steps = [in_order[i * size : (i + 1) * size] for i in range(n_steps)]
    if rest or not size or any([one.name for one in step] != [one.name for one in steps[0]] for step in steps):
        raise ValueError(f"{len(in_order)} kernels are not {n_steps} steps of one kind")
    return steps


def analyse(kernels: Sequence[Kernel], n_steps: int, num_layers: int) -> Step:
    """One step of `n_steps` that ran one after the other, the first of which only warms up."""
    steps = steps_of(kernels, n_steps)
    ends = [step[-1].end_us for step in steps]
    names = [kernel.name for kernel in steps[0]]
    first, length, groups = layers_of(names, num_layers)
    inside = range(first, first + length * groups)
    total = statistics.median(b[0].start_us - a[0].start_us for a, b in pairwise(steps[1:]))

    def row(place: str, places: Sequence[int]) -> Row:
        durations, gaps = [], []
        for before, step in zip(ends, steps[1:], strict=False):
            for at in places:
                durations.append(step[at].us)
                gaps.append(step[at].start_us - (step[at - 1].end_us if at else before))
        us = statistics.median(durations)
        share = len(places) * us / total
        return Row(
            place=place,
            name=names[places[0]],
            calls=len(places),
            us=us,
            gap_us=statistics.median(gaps),
            share=share,
        )

    rows = [row("layer", range(first + i, first + length * groups, length)) for i in range(length)]
    rows += [row("once", [at]) for at in range(len(names)) if at not in inside]
    busy = statistics.median(_covered(step) for step in steps[1:])
    return Step(rows=tuple(rows), kernels=len(names), us=total, busy_us=busy)


def _covered(kernels: Sequence[Kernel]) -> float:
    """Microseconds in which at least one of them ran."""
    covered, end = 0.0, float("-inf")
    for kernel in kernels:
        covered += max(0.0, kernel.end_us - max(kernel.start_us, end))
        end = max(end, kernel.end_us)
    return covered


def profiled(directory: Path, n_rows: int, depth: int, n_steps: int) -> tuple[list[Kernel], float]:
    """The kernels of the steps, and a step's time without the profiler in seconds."""
    execution = fused_execution(directory, depth + 2 * n_steps + n_rows + 320)
    if n_rows == 1:
        seconds = device_step_s(execution, depth)
        steps = partial(run_ahead, execution, depth, n_steps)
    else:
        fill(execution, depth)
        steps = partial(run_passes, execution, n_rows, n_steps)
        steps()
        execution.after_answer()  # which records a prompt's graph
        seconds = timing.wall_s(steps, 5) / n_steps
    steps()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        steps()
    kernels = [
        Kernel(name=event.name, start_us=event.time_range.start, end_us=event.time_range.end)
        for event in found.events()
        if event.device_type == DeviceType.CUDA and not event.name.startswith(("Memcpy", "Memset"))
    ]
    execution.release()
    return kernels, seconds


def last_steps(kernels: Sequence[Kernel], n_steps: int) -> list[Kernel]:
    """Those of the last n_steps: what ran before them was a step or two with which decoding begins, and filling."""
    in_order = sorted(kernels, key=lambda kernel: kernel.start_us)
    names = [kernel.name for kernel in in_order]
    for size in range(1, len(names) // n_steps + 1):
        if names[-size:] * n_steps == names[-size * n_steps :]:
            return in_order[-size * n_steps :]
    raise ValueError(f"{len(names)} kernels do not end in {n_steps} steps of one kind")


def show(step: Step, seconds: float, num_layers: int) -> None:
    table = Table(["where", f"{'kernel':{_NAME_WIDTH}}", "calls", "us each", "gap us ", "us a step", "share "])
    for row in step.rows:
        cells = [row.place, row.name[:_NAME_WIDTH], str(row.calls), f"{row.us:.2f}", f"{row.gap_us:.2f}"]
        table.print([*cells, f"{row.calls * row.us:.1f}", f"{100 * row.share:.1f} %"])
    in_layers = sum(row.calls for row in step.rows if row.place == "layer")
    print(f"\n{step.kernels} kernels a step, {in_layers / num_layers:.0f} a layer; step {step.us:.0f} us, of which")
    print(f"{step.busy_us:.0f} us with a kernel running and {step.us - step.busy_us:.0f} us with none")
    print(f"({100 * (1 - step.busy_us / step.us):.1f} %); without profiler {1e6 * seconds:.0f} us.\n", flush=True)


def record(report: Report, step: Step, seconds: float, common: Mapping[str, Any]) -> None:
    """A line for each row, and one for the whole step."""
    for row in step.rows:
        figures = {"calls": row.calls, "us": row.us, "gap_us": row.gap_us, "share": row.share}
        report.add({**common, "place": row.place, "kernel": row.name, **figures})
    figures = {"calls": step.kernels, "us": step.us, "busy_us": step.busy_us, "unprofiled_us": 1e6 * seconds}
    report.add({**common, "place": "step", "kernel": "", **figures})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["llama-3.1-8b"])
    parser.add_argument("--format", nargs="+", choices=RECIPE_NAMES, default=["mq4"])
    parser.add_argument("--rows", type=positive, nargs="+", default=[1], help="tokens of a step")
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--steps", type=positive, default=20)
    parser.add_argument("--layers", type=positive, help="fewer than the shape has")
    parser.add_argument("--work", type=Path)
    add_arguments(parser)
    asked = parser.parse_args()
    if min(asked.rows) < 1:
        parser.error("--rows are 1 or more")
    require_gpu("Profiling a decode step")
    where = origin(asked.commit, timing.device_name(), read_bytes_s=timing.read_bytes_s())
    say(where)
    report = Report("decode_layer", where, asked.json)
    for shape in asked.shape:
        for recipe in asked.format:
            config = config_of(shape, asked.layers)
            num_layers = config["num_hidden_layers"]
            with workplace(asked.work, about_bytes(config)) as work:
                write_directory(work / "model", config, recipe, is_hashed=False)
                for n_rows in asked.rows:
                    kernels, seconds = profiled(work / "model", n_rows, asked.depth, asked.steps)
                    step = analyse(last_steps(kernels, asked.steps), asked.steps, num_layers)
                    print(f"{shape}, {recipe}, {n_rows} tokens after {asked.depth}\n")
                    show(step, seconds, num_layers)
                    common = {"shape": shape, "layers": asked.layers, "format": recipe}
                    record(report, step, seconds, {**common, "rows": n_rows, "depth": asked.depth})
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
