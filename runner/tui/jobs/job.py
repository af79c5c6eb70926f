"""What a job is: one download or quantization as screens see it, and how it is said in words. No process, no widget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

JobKind = Literal["pull", "quantize"]
JobState = Literal["queued", "running", "paused", "done", "failed", "cancelled"]

_BEFORE: frozenset[str] = frozenset({"loading"})  # stages that are over before what was asked for begins
ENDED: frozenset[JobState] = frozenset({"done", "failed", "cancelled"})


@dataclass(frozen=True, kw_only=True)
class Job:
    """A download ("pull") or a quantization. Text is raw.

    stage: what it does now, as the command line calls it ("download", "converting" ...), "starting", "stopping", or
    "restarting" where it was asked for again before it had stopped; "" while it does nothing. done, total: in `unit`,
    "bytes" or what is counted; total 0 while it is not known. rate_bytes_s: None where it is not known or no bytes are
    counted. trouble: what holds it up, or "". message, hint: how it ended, or what its user should know. weight_format:
    of a quantization. exit_code: of a process that ended by itself.
    """

    id: str
    kind: JobKind
    model: str
    state: JobState = "queued"
    stage: str = ""
    done: int = 0
    total: int = 0
    unit: str = "bytes"
    rate_bytes_s: float | None = None
    eta_s: float | None = None
    trouble: str = ""
    message: str = ""
    hint: str = ""
    weight_format: str = ""
    exit_code: int | None = None

    @property
    def share(self) -> float | None:
        """How much of the stage is done, from 0 to 1; None where that is not known, or tells nothing of the job."""
        return min(1.0, self.done / self.total) if self.total > 0 and self.stage not in _BEFORE else None

    @property
    def title(self) -> str:
        """The model, and what it becomes."""
        return f"{self.model} → {self.weight_format}" if self.kind == "quantize" else self.model

    @property
    def is_stopping(self) -> bool:
        return self.stage in ("stopping", "restarting")

    @property
    def can_pause(self) -> bool:
        return self.state in ("queued", "running") and not self.is_stopping

    @property
    def can_resume(self) -> bool:
        return self.state == "paused"

    @property
    def can_retry(self) -> bool:
        return self.state in ("failed", "cancelled")

    @property
    def can_go_on(self) -> bool:
        """Whether asking for the same again is meant for this one."""
        return self.state != "done"

    @property
    def can_cancel(self) -> bool:
        return self.state not in ENDED and self.stage != "stopping"

    @property
    def can_forget(self) -> bool:
        return self.state in ENDED
