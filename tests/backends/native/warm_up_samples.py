"""Run by test_native_warm_up.py in a process without Triton's interpreter: a model's kernels compiled in advance.

A driver that names a GPU stands in for one. Its argument is the directory of a tiny model. Prints a JSON object.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from runner.backends.base import Compiling
from runner.backends.native.fused import FusedDecoder
from runner.backends.native.fused_execution import FusedExecution
from runner.backends.native.kv_cache import KvCache
from runner.backends.native.loader import unfilled
from runner.backends.native.matrices import MatrixReader
from runner.backends.native.model_files import read_config
from runner.backends.native.warm_up import compile_kernels, compile_trials
from runner.errors import RunnerError
from runner.kernels import add_parts, layouts, moe_blocks, moe_fragments, moe_int8, moe_route
from runner.kernels.compile.launches import is_compiled, launches_of
from runner.kernels.embedding import embed
from runner.kernels.rotate import quantize_rows
from runner.kernels.trials import go_through
from runner.kernels.values import MOST_ROWS
from runner.quant.weights import open_weights
from runner.types import CancelToken, ReadyModel

driver.set_active(
    SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda _device: 0,
    )
)


class Small:
    """Two kernels."""

    n_rehearsals = 0

    def rehearse(self, row_counts: Sequence[int]) -> None:
        self.n_rehearsals += 1
        for n_rows in row_counts:
            quantize_rows(torch.zeros(n_rows, 256), None, 32)
            embed(torch.zeros(n_rows, dtype=torch.int64), torch.zeros(8, 64, dtype=torch.bfloat16), 1.0, 1e-6)


@contextmanager
def tensors_on_nvidia() -> Iterator[None]:
    """Kernels take every tensor for one on a GPU of NVIDIA, so that they compile what is launched there."""
    answers = {"is_nvidia": True, "has_pdl": True}
    with ExitStack() as stack:
        for module in [module for name, module in sys.modules.items() if name.startswith("runner.kernels.")]:
            for name in answers.keys() & vars(module).keys():
                stack.enter_context(patch.object(module, name, lambda _tensor, answer=answers[name]: answer))
        yield


def told_by(model: Small, traits: dict[str, object], cancel: CancelToken) -> list[object]:
    told: list[object] = []
    compile_kernels(model, traits, told.append, cancel)
    return [[one.done, one.total] for one in told if isinstance(one, Compiling)]


def execution_of(directory: Path) -> FusedExecution:
    """Of the tiny model there, which was made elsewhere: to import transformers takes longer than all that is asked."""
    config, cpu = read_config(directory), torch.device("cpu")
    ready = ReadyModel(
        name="tiny", format="safetensors", weights=(directory / "model.safetensors",), directory=directory, size_bytes=1
    )
    weights = open_weights(ready, config)
    reader = MatrixReader(weights, dtype=torch.float32, device=cpu, on_progress=lambda _: None, cancel=CancelToken())
    cache = KvCache.of(config, n_ctx=64, dtype=torch.float32, device=cpu, kv_dtype=torch.float32)
    return FusedExecution(FusedDecoder(unfilled(config, weights), reader), cache)


def begun_trials(kinds: Sequence[tuple[str, int]], device: torch.device) -> list[int]:
    """How many kernels were told to be compiled for the trials of experts, before it was cancelled there."""
    told, cancel = [], CancelToken()

    def stop(one: object) -> None:
        if isinstance(one, Compiling):
            told.append(one.total)
            cancel.cancel()

    with suppress(RunnerError):
        compile_trials(kinds, device, stop, cancel, has_experts=True)
    return told


def verify_steps(execution: FusedExecution) -> None:
    """Those of all drafts that there can be, chosen in both ways."""
    with torch.inference_mode():
        for n_rows in range(1, MOST_ROWS + 1):
            for is_greedy in (True, False):
                execution._chosen(n_rows, is_greedy)


def main() -> None:
    os.sched_getaffinity = lambda _: {0}  # a process for one core: each takes seconds to begin
    model, never = Small(), CancelToken()
    found: dict[str, object] = {}
    found["first"] = told_by(model, {"layers": 2}, never)
    found["again"] = told_by(model, {"layers": 2}, never)
    found["rehearsals"] = model.n_rehearsals
    found["another model with the same kernels"] = told_by(model, {"layers": 3}, never)
    cancelled = CancelToken()
    cancelled.cancel()
    try:
        told_by(model, {"layers": 4}, cancelled)
    except RunnerError as error:
        found["cancelled"] = error.message

    def broken(_row_counts: Sequence[int]) -> None:
        raise ValueError("nothing that a load depends on")

    model.rehearse = broken  # type: ignore[method-assign]
    found["broken"] = told_by(model, {"layers": 5}, never)
    kinds, device = [("mq4", 256)], torch.device("cpu")
    torch.cuda.get_device_capability = lambda _: (9, 0)
    with tensors_on_nvidia():
        tried = launches_of(lambda: go_through(kinds, device, has_experts=True))
        found["tried"] = sorted({launch.kernel.name for launch in tried})
        for key in ("trials", "trials again"):
            told: list[object] = []
            compile_trials(kinds, device, told.append, never, has_experts=False)
            found[key] = [one.total for one in told if isinstance(one, Compiling)]
        without = launches_of(lambda: go_through(kinds, device, has_experts=False))
        found["trials of experts"] = begun_trials(kinds, device)
    found["trials compiled"] = all(is_compiled(launch) for launch in without)
    found["trials not compiled"] = sum(not is_compiled(launch) for launch in tried)
    found["trials in all"] = len(tried)
    works = [module._works for module in (layouts, moe_blocks, moe_fragments, moe_int8)]
    answers = (*works, add_parts.rotates, moe_route.rounds_in_lanes)
    found["trials answered"] = sum(one.cache_info().currsize for one in answers)
    execution = execution_of(Path(sys.argv[1]))
    names = {launch.kernel.name for launch in launches_of(lambda: execution.rehearse([1, 2, 17, 1000]))}
    rehearsed = launches_of(lambda: execution.rehearse(range(1, MOST_ROWS + 1)))
    verifying = launches_of(lambda: verify_steps(execution))
    found["verifying"] = len(verifying)
    found["verifying, and not rehearsed"] = [launch.kernel.name for launch in verifying if launch not in rehearsed]
    found["kernels of a model"] = sorted(names & {"_embed_dense", "_greedy", "_decide", "_attend_prompt", "_moe_gemm"})
    found["held afterwards"] = execution.cache.length
    print(json.dumps(found))


if __name__ == "__main__":
    main()
