"""What the engine tells its front ends: one small frozen value an event.

CLI, TUI, bench and tests read the same events, in-process or across the pipe of the engine process. Text here is raw:
front ends pass it through safe_text before a terminal sees it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from runner.speculative.record import SpeculationRecord
from runner.telemetry import Timings
from runner.types import MemoryUse, ModelInfo

FinishReason = Literal["stop", "length", "context", "cancelled"]


@dataclass(frozen=True)
class Progress:
    """`done` of `total` units of a stage. total 0: not known yet."""

    stage: Literal["download", "load", "compile", "prefill"]
    done: int
    total: int
    unit: Literal["bytes", "tokens", "kernels", "%"]


@dataclass(frozen=True)
class Notice:
    """Something the user should know: a fallback with its reason, turns left out, a warning with its remedy."""

    level: Literal["info", "warning"]
    text: str
    hint: str = ""


@dataclass(frozen=True)
class Loaded:
    """The model is ready. `reason` says why this backend was chosen. sampling: the model's own defaults.

    memory: as it was then; graphs and a longer cache may be added. stages: seconds by what was done in them, in order.
    speculation: what drafts for it, or "off", and why: "suffix: it needs no memory". draft_max: tokens of its drafts at
    most, 0 where nothing drafts.
    """

    info: ModelInfo
    memory: MemoryUse
    reason: str
    load_s: float
    sampling: dict[str, float | int]
    stages: dict[str, float] = field(default_factory=dict)
    speculation: str = ""
    draft_max: int = 0


@dataclass(frozen=True)
class TextDelta:
    """A piece of the answer. drafted: the ranges [start, end) of its characters that a drafter had guessed right."""

    text: str
    drafted: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True)
class Stats:
    """Live numbers, a few times a second while an answer streams. speculation: of this answer, None without any."""

    timings: Timings
    n_ctx: int
    speculation: SpeculationRecord | None = None


@dataclass(frozen=True)
class Finished:
    """The answer ended: "stop" (the model or a stop string), "length" (max_tokens), "context" (full), "cancelled".

    token_ids: the completion, without the stop token. seed: repeats the answer, with the same model and parameters.
    """

    reason: FinishReason
    timings: Timings
    token_ids: tuple[int, ...]
    seed: int
    n_ctx: int
    speculation: SpeculationRecord | None = None


LoadEvent = Progress | Notice | Loaded
ChatEvent = Progress | Notice | TextDelta | ReasoningDelta | Stats | Finished
Event = LoadEvent | ChatEvent
