"""Draft models with random weights: what a draft of theirs takes, and drafts that take as long and are right by script.

Such a model guesses nothing that another one writes, but its steps take their real time. It knows no files.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from records import Table
from scripted_drafts import ScriptedDrafter

from runner.backends.native.backend import NativeBackend
from runner.config import SamplingParams
from runner.speculative.control import Most
from runner.speculative.drafter import Draft, Drafter, Gate
from runner.speculative.model_drafter import DraftModel, ModelDrafter
from runner.types import CancelToken, MemoryUse


class InItsTime(Drafter):
    """Drafts what `script` does, as many tokens and as late as `drafter`, which is not closed with it."""

    name = "scripted"
    n_buckets = 1
    is_host_only = False
    nbytes = 0

    def __init__(self, drafter: Drafter, script: ScriptedDrafter) -> None:
        self._drafter, self._script = drafter, script

    def propose(self, history: Sequence[int], params: SamplingParams, gate: Gate) -> Draft:
        return self._script.propose(history, params, Most(len(self._drafter.propose(history, params, gate))))

    def close(self) -> None:
        self._script.close()


class AskingTheHost(DraftModel):
    """A draft model whose every token passes through the host."""

    def __init__(self, backend: NativeBackend) -> None:
        self.info = backend.info
        self._backend = backend

    @property
    def held(self) -> Sequence[int]:
        return self._backend.held

    def keep(self, length: int) -> int:
        return self._backend.keep(length)

    def extend(self, tokens: Sequence[int], cancel: CancelToken) -> NDArray[np.float32] | None:
        return self._backend.extend(tokens, cancel)

    def memory(self) -> MemoryUse:
        return self._backend.memory()

    def close(self) -> None:
        """The backend is another's."""


def draft_s(drafter: Drafter, ids: Sequence[int], params: SamplingParams, k: int, repetitions: int) -> float:
    """Seconds that a draft of k tokens takes after a round in which two were accepted: the median."""
    found, history, others = [], list(ids), random.Random(k)
    for repetition in range(repetitions + 2):
        began = time.perf_counter()
        draft = drafter.propose(history, params, Most(k))
        if repetition > 1:
            found.append(time.perf_counter() - began)
        history += [*draft.tokens[:2], others.randrange(1000)]
    return statistics.median(found)


def show_drafts(
    backend: NativeBackend, ids: Sequence[int], params: SamplingParams, repetitions: int
) -> dict[str, float]:
    """A table of what drafts take, in a chain and through the host; gives the milliseconds by name."""
    table, found = Table(["k ", "draft ms", "ms a token", "through the host: ms a token"]), dict[str, float]()
    for k in (1, 3, 7, 15):
        alone = 1e3 * draft_s(ModelDrafter(backend), ids, params, k, repetitions)
        asking = 1e3 * draft_s(ModelDrafter(AskingTheHost(backend)), ids, params, k, repetitions)
        table.print([str(k), f"{alone:.3f}", f"{alone / k:.3f}", f"{asking / k:.3f}"])
        found |= {f"draft of {k}": alone, f"draft of {k}, through the host": asking}
    print(flush=True)
    return found
