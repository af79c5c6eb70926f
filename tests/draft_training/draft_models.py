"""A tiny target whose answers can be learnt, and the jobs of training a head for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from runner.draft_training.job import Job, Stage
from runner.draft_training.make import train_draft
from runner.draft_training.prompts import Prompts, split
from runner.draft_training.report import Report
from runner.draft_training.settings import TrainingSettings
from runner.draft_training.target import TargetFiles, open_target
from runner.types import CancelToken
from tests.backends.native.tiny_models import make, ready, save
from tests.quant.mq.packed_models import SHAPE

TEMPLATE = (
    "{% for message in messages %}<|begin|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)
SETTINGS = TrainingSettings(
    variant="normed",
    n_tokens=1500,
    length=48,
    steps=15,
    batch_tokens=400,
    depth=3,
    draft_vocab_size=128,
    learning_rate=5e-3,
)


def tiny_target(directory: Path, name: str = "qwen3") -> Path:
    """A random model that is sure of what it writes: its tied embeddings are three times as large."""
    model = make(name, **{**SHAPE, "num_key_value_heads": 2, "num_hidden_layers": 4})
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(3)
    save(model, directory)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory


def opened(directory: Path) -> TargetFiles:
    return open_target(ready(directory))


def prompts(count: int = 60) -> Prompts:
    return split("numbers", [f"say {number}" for number in range(count)])


def job(directory: Path, output: Path, *, settings: TrainingSettings = SETTINGS, **more: Any) -> Job:
    """A job for the tiny target in `directory`; of `more`, what TrainingSettings have goes there."""
    own = {name: more.pop(name) for name in list(more) if hasattr(settings, name)}
    cpu = {"device": torch.device("cpu"), "device_name": "CPU"}
    given: dict[str, Any] = {"target": opened(directory), "prompts": prompts(), **cpu, **more}
    return Job(output=output, settings=replace(settings, **own), **given)


def trained(asked: Job, stages: list[Stage] | None = None, cancel: CancelToken | None = None) -> Report:
    told: list[Stage] = [] if stages is None else stages
    return train_draft(asked, told.append, lambda _: None, cancel or CancelToken())
