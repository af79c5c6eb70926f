"""The kernels of a model, compiled before its first token: in parallel, once for each kind of model and machine.

What is compiled stays in Triton's cache on the disk, with a mark for each kind of model that was gone through, so that
the next load looks for nothing. Nothing here is needed for a right answer: what fails is compiled when it is launched.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import torch

import runner
from runner.backends.base import Compiling, LoadProgress
from runner.errors import loading_cancelled
from runner.kernels.compile.launches import (
    Launch,
    cache_directory,
    compile_all,
    is_compiled,
    launches_of,
)
from runner.kernels.compile.spread import Failure
from runner.kernels.values import FEW_ROWS, MOST_ROWS
from runner.types import CancelToken

log = logging.getLogger(__name__)

_MARKS: Final = "complete"  # the folder of the marks in the cache
# Numbers of rows that a chat meets: Triton takes 1 for a constant and has other code for multiples of 16. Prompts in
# int8 have others for up to 32, 64 and 128 rows, for each 128 more up to 1024, and for more.
_ROWS: Final = (*range(1, MOST_ROWS + 1), 17, 32, 33, FEW_ROWS + 1, 128, 129, 257, 385, 513, 528, 641, 769, 897, 1025)


@runtime_checkable
class Rehearsing(Protocol):
    """What can go through all its steps for those who note the launches."""

    def rehearse(self, row_counts: Sequence[int]) -> None: ...


def compile_kernels(
    execution: Rehearsing, traits: Mapping[str, object], on_progress: LoadProgress, cancel: CancelToken
) -> None:
    """Compile what `execution` launches, unless a model with these traits was gone through before.

    traits: what the launches follow from. Raises RunnerError when cancelled, torch.OutOfMemoryError.
    """
    _compile_once(lambda: execution.rehearse(_ROWS), traits, on_progress, cancel)


def compile_trials(
    kinds: Sequence[tuple[str, int]],
    device: torch.device,
    on_progress: LoadProgress,
    cancel: CancelToken,
    *,
    has_experts: bool,
) -> None:
    """The same of what is tried before a first matrix of these formats and rotations is laid out: see trials.py."""
    from runner.kernels.trials import go_through  # imports Triton, which a CPU may do without

    traits = {"tried": tuple(kinds), "has experts": has_experts}
    _compile_once(lambda: go_through(kinds, device, has_experts=has_experts), traits, on_progress, cancel)


def _compile_once(
    steps: Callable[[], object], traits: Mapping[str, object], on_progress: LoadProgress, cancel: CancelToken
) -> None:
    started = time.perf_counter()
    try:
        mark = cache_directory() / _MARKS / _digest(traits)
        if mark.exists():
            return
        launches = [launch for launch in launches_of(steps) if not is_compiled(launch)]
        log.info("%d kernels to compile, found in %.2f s", len(launches), time.perf_counter() - started)
        if _compile(launches, on_progress, cancel):
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
    except torch.OutOfMemoryError:
        raise
    except Exception:  # another version of Triton, no processes, a full disk: the launches compile what they need
        log.warning("the kernels are not compiled in advance", exc_info=True)
    if cancel.is_cancelled:
        raise loading_cancelled()
    log.info("kernels compiled in %.2f s", time.perf_counter() - started)


def _compile(launches: Sequence[Launch], on_progress: LoadProgress, cancel: CancelToken) -> bool:
    """Whether all of them are compiled now."""
    n_compiled = 0
    if launches:
        on_progress(Compiling(0, len(launches)))
    results = compile_all(launches, processes=_processes(), is_stopped=lambda: cancel.is_cancelled)
    for n_done, (launch, result) in enumerate(results, 1):
        on_progress(Compiling(n_done, len(launches)))
        if isinstance(result, Failure):
            log.warning("%s is not compiled in advance: %s", launch.kernel.name, result.reason)
        else:
            n_compiled += 1
            log.debug("%s compiled in %.2f s", launch.kernel.name, result)
    return n_compiled == len(launches)


def _processes() -> int:
    return max(1, min(32, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))


def _digest(traits: Mapping[str, object]) -> str:
    """A name for all that the launches follow from: the traits, this package's code, Triton, torch and the GPU."""
    found = hashlib.sha256()
    package = Path(runner.__file__).parent
    for folder in (package / "kernels", package / "backends" / "native"):
        for file in sorted(folder.rglob("*.py")):
            found.update(file.read_bytes())
    settings = {name: value for name, value in os.environ.items() if name.startswith("TRITON_")}
    device = torch.cuda.get_device_properties() if torch.cuda.is_available() else None
    for value in (version("triton"), torch.__version__, sorted(settings.items()), device, sorted(traits.items())):
        found.update(repr(value).encode())
    return found.hexdigest()[:32]
