"""A decode step by its graph once other graphs were replayed before it, without and with kernels/early_launch.py.

    python benchmarks/early_launch.py [--shape llama-3.1-8b] [--format mq4] [--layers 16] [--depths 16 4000]

Before each stretch of steps, graphs of 2, 4, 8 and 16 rows are replayed, as prompts and drafts do in a chat. Then comes
decoding as FusedExecution.decode begins it; its first token is read, and the steps after that are timed without waiting
for one. Medians of several stretches; both ways twice, in turn. The last line is what the launch takes of the
host, which it takes once a stretch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from unittest.mock import patch

import timing
import torch
from arguments import positive
from generation import fill, run_ahead
from random_models import RECIPE_NAMES, about_bytes, fused_execution, write_directory
from records import Report, Table, add_arguments, origin, require_gpu, say
from shapes import SHAPES, config_of
from workplace import workplace

from runner.backends.native import fused_execution as loop
from runner.backends.native.fused_execution import FusedExecution
from runner.kernels.early_launch import launch_early

_OTHERS: Final = (2, 8, 4, 16, 2, 8)  # rows of the steps that come between
_STEPS: Final = 40
_LAUNCHES: Final = 100


def stretch_s(execution: FusedExecution, depth: int) -> float:
    """Seconds of a step in a stretch after `depth` tokens, behind other graphs."""
    for n_rows in _OTHERS:
        fill(execution, depth)
        execution.extend([5] * n_rows, "last", lambda: None)
    return run_ahead(execution, depth, _STEPS) / _STEPS


def measured(execution: FusedExecution, depth: int, launch: Callable[[torch.Tensor], None], rounds: int = 7) -> float:
    with patch.object(loop, "launch_early", launch):
        return statistics.median(stretch_s(execution, depth) for _ in range(rounds))


def _nothing(_: torch.Tensor) -> None:
    """Without it."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="llama-3.1-8b")
    parser.add_argument("--format", choices=RECIPE_NAMES, default="mq4")
    parser.add_argument("--layers", type=positive, default=16, help="fewer than the shape has; rows say so")
    parser.add_argument("--depths", type=int, nargs="+", default=[16, 4000])
    parser.add_argument("--work", type=Path, help="where the model is made; default: in memory, if there is room")
    add_arguments(parser)
    return parser.parse_args()


def main() -> None:
    asked = parse()
    require_gpu("What a graph takes")
    where = origin(asked.commit, timing.device_name())
    say(where)
    report = Report("early_launch", where, asked.json)
    config = config_of(asked.shape, asked.layers)
    table = Table(["after", "without, ms     ", "with, ms        "])
    with workplace(asked.work, about_bytes(config)) as work:
        write_directory(work / "model", config, asked.format, is_hashed=False)
        execution = fused_execution(work / "model", max(asked.depths) + 512)
        for depth in asked.depths:
            stretch_s(execution, depth)
            ways = {"without": _nothing, "with": launch_early}
            ms: dict[str, list[float]] = {name: [] for name in ways}
            for name in ("without", "with", "with", "without"):
                ms[name].append(1e3 * measured(execution, depth, ways[name]))
            table.print([str(depth), *(", ".join(f"{value:.4f}" for value in ms[name]) for name in ways)])
            report.add({"shape": asked.shape, "layers": asked.layers, "format": asked.format, "depth": depth, "ms": ms})
        started = time.perf_counter()
        for _ in range(_LAUNCHES):
            launch_early(execution._place)
        print(f"a launch takes {1e6 * (time.perf_counter() - started) / _LAUNCHES:.0f} us of the host")
        execution.release()


if __name__ == "__main__":
    main()
