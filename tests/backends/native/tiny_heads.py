"""Random tiny heads for the models of tiny_models.py, and a speculator that drafts before every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from runner.backends.base import Step
from runner.backends.native.backend import NativeBackend
from runner.backends.native.heads.eagle3 import Eagle3Head
from runner.backends.native.heads.eagle3_config import Eagle3Config, eagle3_for
from runner.config import SamplingParams
from runner.model_config import ModelConfig
from runner.speculative.drafter import Draft, Drafter
from runner.speculative.record import Round
from runner.speculative.speculator import Speculator
from runner.types import CancelToken

GREEDY = SamplingParams(temperature=0, seed=0)


def eagle3_head(target: ModelConfig, *, draft_vocab_size: int = 100, seed: int = 1, **changes: Any) -> Eagle3Head:
    """A head for `target` with random weights, its norms and its vocabulary random too."""
    config: Eagle3Config = replace(
        eagle3_for(target, draft_vocab_size=draft_vocab_size, norm_output=False, fc_norm=False), **changes
    )
    head = Eagle3Head(config)
    generator = torch.Generator().manual_seed(seed)
    head.initialize(generator, std=0.15)
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    ids = torch.randperm(target.vocab_size, generator=generator)[:draft_vocab_size]
    head.set_vocabulary(ids.sort().values)
    return head


class Limit:
    """A gate that admits so many tokens."""

    def __init__(self, left: int) -> None:
        self.left = left

    @property
    def is_open(self) -> bool:
        return self.left > 0

    @property
    def reach(self) -> int:
        return self.left

    def admits(self, bucket: int) -> bool:
        assert 0 <= bucket < 8
        self.left -= 1
        return self.left >= 0


class Always(Speculator):
    """Drafts up to `length` tokens before every step, and keeps the rounds."""

    def __init__(self, drafter: Drafter, length: int = 4) -> None:
        super().__init__(drafter, length)
        self.length = length
        self.rounds: list[Round] = []

    def draft(self, history: Sequence[int], params: SamplingParams, room: int, vocab_size: int) -> Draft:
        del vocab_size
        return self.drafter.propose(history, params, Limit(min(room, self.length)))

    def learn(self, done: Round, *, may_wait: bool = False) -> None:
        del may_wait
        self.rounds.append(done)

    @property
    def n_drafted(self) -> int:
        return sum(len(done.draft) for done in self.rounds)

    @property
    def acceptance(self) -> float:
        return sum(done.n_accepted for done in self.rounds) / self.n_drafted


def take(
    backend: NativeBackend,
    prompt: Sequence[int],
    n: int,
    params: SamplingParams = GREEDY,
    speculator: Speculator | None = None,
) -> list[int]:
    """The first `n` tokens of a completion."""
    found: list[int] = []
    steps = backend.generate(prompt, params, CancelToken(), speculator)
    for step in steps:
        if isinstance(step, Step):
            found.append(step.token)
            if len(found) == n:
                break
    steps.close()
    return found


def add_tensors(directory: Path, tensors: dict[str, torch.Tensor]) -> None:
    path = directory / "model.safetensors"
    save_file({**load_file(path), **tensors}, path)
