"""What the making of a head says of itself: settings, text, course of the training, and what was measured, as JSON.

The file beside a head that `runner draft show` reads. It knows nothing of tensors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from runner.closed import cannot_read, closed
from runner.draft_training.checkpoint import Watched
from runner.draft_training.measure import Measured
from runner.draft_training.settings import TrainingSettings
from runner.errors import BadModelFile, UsageError
from runner.quant.json_file import read_json
from runner.wire import fits, from_plain, to_plain

REPORT_NAME: Final = "training.json"
SCHEMA: Final = "runner.draft/1"
Ended = Literal["all steps", "no better any more", "time limit"]


@dataclass(frozen=True, kw_only=True)
class TextFacts:
    """prompts: where they are from. answers, tokens: written by the target. coverage: the share of tokens that the head
    can draft."""

    prompts: str
    answers: int
    tokens: int
    coverage: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """target: the model's name. steps: done, of settings.steps. ended: why no more. best_step: whose head it is.

    size_bytes: of the head's weights. training_s: of all its steps; write_s: of its text; both of the last run alone.
    """

    target: str
    fingerprint: str
    settings: TrainingSettings
    text: TextFacts
    steps: int
    best_step: int
    ended: Ended
    curve: tuple[Watched, ...]
    measured: tuple[Measured, ...]
    num_parameters: int
    size_bytes: int
    device: str
    write_s: float
    training_s: float

    def __post_init__(self) -> None:
        if any(len(found.accepted) != self.settings.depth for found in self.measured):
            raise ValueError(f"what was measured is of other depths than the {self.settings.depth} of the head")


def report_json(report: Report) -> dict[str, Any]:
    plain = to_plain(report)
    assert isinstance(plain, Mapping)
    return {"schema": SCHEMA, **plain}


def read_report(directory: Path) -> Report:
    """The report beside a head. Raises UsageError where there is none, BadModelFile for one that cannot be read,
    RunnerError for what may not be looked into."""
    path = directory / REPORT_NAME
    if (place := closed(directory)) is not None:
        raise cannot_read([place])
    if not os.path.isdir(directory):  # which takes names that are too long, too
        raise UsageError(f"There is no directory {directory}.", hint="Give the one that `runner draft train` printed.")
    if not path.is_file():
        raise UsageError(
            f"{directory} has no {REPORT_NAME}: it is no head that `runner draft train` made.",
            hint="Give the directory that it printed.",
        )
    plain = dict(read_json(path))
    if plain.pop("schema", None) != SCHEMA:
        raise BadModelFile(
            f"{path} is of another version, or of training that is not done.", hint="Train the head again."
        )
    try:
        report = from_plain(Report, plain)
        if not fits(Report, report):
            raise TypeError("not all of it is of the type that it should have")
        return report
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadModelFile(f"{path} cannot be read: {error}.", hint="Train the head again.") from error
