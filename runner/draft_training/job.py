"""What is asked for when a head is to be made, how far that is, and what its text depends on. Values alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from runner.backends.native.heads.eagle3_config import Eagle3Config, eagle3_for
from runner.draft_training.corpus import CORPUS_NAME, has_text, made_from_of
from runner.draft_training.prompts import Prompts
from runner.draft_training.settings import TrainingSettings
from runner.draft_training.target import TargetFiles
from runner.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Stage:
    """How far a stage is. figures: by what they are called; for people and programs."""

    name: str
    done: int
    total: int
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is asked for.

    device_name: for people. text_from: the directory of a head whose text serves again. time_limit_s: of the whole run.
    """

    target: TargetFiles
    prompts: Prompts
    output: Path
    settings: TrainingSettings
    device: torch.device
    device_name: str
    text_from: Path | None = None
    time_limit_s: float | None = None
    force: bool = False


def head_config(job: Job) -> Eagle3Config:
    """The head that is to be trained."""
    is_normed = job.settings.variant == "normed"
    return eagle3_for(
        job.target.config,
        draft_vocab_size=job.settings.draft_vocab_size,
        norm_output=is_normed,
        fc_norm=is_normed,
    )


def text_identity(job: Job) -> dict[str, Any]:
    """What the text that the target writes for this job depends on, as JSON."""
    settings = job.settings
    return {
        "target": job.target.fingerprint,
        "prompts": job.prompts.sha256,
        "length": settings.length,
        "seed": settings.seed,
        "device": job.device.type,
    }


def text_of(job: Job) -> Mapping[str, Any]:
    """What the text is made from. Raises UsageError for an earlier text that another model wrote, or that is torn."""
    if job.text_from is None:
        return text_identity(job)
    path = job.text_from / CORPUS_NAME
    made_from = made_from_of(path)
    if made_from.get("target") != job.target.fingerprint:
        raise UsageError(
            f"The text in {job.text_from} was written by another model, or its files have changed since.",
            hint=f"Leave --corpus out: {job.target.name} then writes its own.",
        )
    if not has_text(path, made_from, job.target.config.vocab_size):
        raise UsageError(f"{job.text_from} has no whole text.", hint="Leave --corpus out to write one.")
    return made_from
