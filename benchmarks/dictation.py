"""Makes a loaded native model write texts that it is told, whatever its weights say: for the speed of real texts.

Every step is computed, and its tokens are chosen, as ever; then the choice is replaced, on the device where it is made
there. So what drafts, verifies and decides how much to draft works on a real text at the model's real speed. It reaches
into the backend, as nothing else here does, and measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from runner.backends.base import Backend
from runner.backends.native.backend import NativeBackend
from runner.backends.native.execution import Execution, Wanted
from runner.backends.native.fused_execution import FusedExecution
from runner.config import SamplingParams
from runner.kernels.matmul import Logits
from runner.kernels.values import MOST_ROWS

_CERTAIN = 1e6  # a logit beside which no other counts


class Dictation:
    """The texts that a backend writes from now on: what `put` puts at the positions of its context."""

    def __init__(self, backend: Backend) -> None:
        assert isinstance(backend, NativeBackend)
        execution = backend._execution
        device = execution.cache.layer(0)["keys"].device
        self._told = [0] * (backend.info.n_ctx + 2 * MOST_ROWS)
        self._ids = torch.tensor(self._told, device=device)
        self._dictate_logits(execution)
        if isinstance(execution, FusedExecution):
            self._dictate_choices(execution)
            self._dictate_last_choice(execution)

    def put(self, first: int, ids: Sequence[int]) -> None:
        """`ids` are written at the positions from `first` on."""
        self._told[first : first + len(ids)] = ids
        self._ids[first : first + len(ids)] = torch.tensor(ids, device=self._ids.device)

    def _dictate_logits(self, execution: Execution) -> None:
        """What the host chooses from."""
        extend = execution.extend

        def dictated(tokens: Sequence[int], wanted: Wanted, checkpoint: Callable[[], None]) -> Tensor:
            first = execution.cache.length
            logits = extend(tokens, wanted, checkpoint)
            stop = first + len(tokens) + 1
            with torch.inference_mode():
                return logits.scatter(1, self._ids[stop - len(logits) : stop, None], _CERTAIN)

        execution.extend = dictated  # type: ignore[method-assign]

    def _dictate_choices(self, execution: FusedExecution) -> None:
        """What steps choose on the device; graphs that hold the model's own choice are dropped."""
        choose, rows = execution._choose, torch.arange(MOST_ROWS, device=self._ids.device)

        def dictated(logits: Logits, is_greedy: bool) -> Tensor:
            n_rows = len(choose(logits, is_greedy))
            return self._ids.index_select(0, execution._position + rows[:n_rows])

        execution._choose = dictated  # type: ignore[method-assign]
        execution._graphs.forget()

    def _dictate_last_choice(self, execution: FusedExecution) -> None:
        """The token after a prompt, whose position the device does not know where it takes the likeliest."""
        last_choice = execution.last_choice

        def dictated(
            tokens: Sequence[int], params: SamplingParams, checkpoint: Callable[[], None], /
        ) -> Callable[[], int] | None:
            token = self._told[execution.cache.length + len(tokens)]
            chosen = last_choice(tokens, params, checkpoint)
            if chosen is None:
                return None

            def waited() -> int:
                chosen()
                return token

            return waited

        execution.last_choice = dictated  # type: ignore[method-assign]
