"""A process that measures, in a model whose tokens are others as soon as anything drafts: what must never pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from typing import Any

from runner.backends.base import Prefill, Step
from runner.bench.child import BenchChild
from runner.config import SamplingParams
from runner.engine_child import main
from runner.speculative.speculator import Speculator
from runner.types import CancelToken


class WrongChild(BenchChild):
    def perform(self, message: dict[str, Any], cancel: CancelToken) -> Any:
        if message["op"] == "measure_genre":
            _spoil(self.engine.backend)
        return super().perform(message, cancel)


def _spoil(backend: Any) -> None:
    """The third token of every answer with speculation is the next one in the vocabulary."""
    right = type(backend).generate

    def generate(
        prompt: Sequence[int], params: SamplingParams, cancel: CancelToken, speculator: Speculator | None = None
    ) -> Generator[Prefill | Step, None, None]:
        n_steps = 0
        for step in right(backend, prompt, params, cancel, speculator):
            n_steps += isinstance(step, Step)
            if isinstance(step, Step) and n_steps == 3 and speculator is not None:
                step = dataclasses.replace(step, token=(step.token + 1) % backend.info.vocab_size)
            yield step

    backend.generate = generate


if __name__ == "__main__":
    main(WrongChild)
