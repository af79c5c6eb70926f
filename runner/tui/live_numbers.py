"""From the engine's events to the numbers that the live rail and the status line show: speed now and before, progress.

Clock readings (seconds of one monotonic clock) are passed in; each number is defined in telemetry.py or says here what
it is. It knows no widget, no device and no colour.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal

from runner.config import Speculation
from runner.events import Finished, Loaded, Progress, Stats
from runner.speculative.record import SpeculationRecord
from runner.status_text import time_left_s
from runner.telemetry import Timings
from runner.transfer_rate import TransferRate
from runner.tui.messages import (
    AnswerBegan,
    AnswerEnded,
    AnswerStep,
    EngineMessage,
    EngineState,
    Lent,
    LoadBegan,
    LoadEnded,
    LoadStep,
    TakenBack,
    Unloaded,
)

SAMPLE_EVERY_S: Final = 0.25
HISTORY_S: Final = 60
_NOW_S: Final = 1.0  # "now" is the last second of decoding
_SILENT_S: Final = 2.0  # when nothing has come for so long, nothing is "now"
_LEAST_S: Final = 0.2  # a shorter stretch says more about the clock than about the model

Phase = Literal["empty", "measuring", "loading", "ready", "waiting", "reading", "decoding", "stopping"]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage that goes on. left_s: until its end, None when that cannot be said. since_s: how long it has been."""

    progress: Progress
    left_s: float | None
    since_s: float

    @property
    def share(self) -> float | None:
        """0 to 1; None while the total is not known."""
        total = self.progress.total
        return min(1.0, max(0.0, self.progress.done / total)) if total > 0 else None


@dataclass(frozen=True, kw_only=True)
class Speed:
    """timings: of the newest answer. now_tok_s: over the last second of decoding; None once it has ended or nothing
    comes.
    """

    timings: Timings
    n_ctx: int
    now_tok_s: float | None

    @property
    def shown_tok_s(self) -> float | None:
        """The large number: now while decoding, the answer's own afterwards."""
        return self.timings.decode_tok_s if self.now_tok_s is None else self.now_tok_s


class History:
    """Decode speeds of the last minute of decoding, at most four a second; None stands between two answers."""

    def __init__(self) -> None:
        self._samples: deque[float | None] = deque(maxlen=round(HISTORY_S / SAMPLE_EVERY_S))
        self._n_added = 0

    def add(self, tok_s: float | None) -> None:
        if tok_s is None and (not self._samples or self._samples[-1] is None):
            return
        self._samples.append(tok_s)
        self._n_added += 1

    def columns(self, width: int) -> tuple[float | None, ...]:
        """The history in at most `width` columns, the newest last.

        A column is the mean of as many samples as are needed for all to fit; they are counted from the first sample
        ever, so that columns keep their height while new ones come.
        """
        if width <= 0 or not self._samples:
            return ()
        per_column = -(-len(self._samples) // width)
        first = self._n_added - len(self._samples)
        columns: dict[int, list[float | None]] = {}
        for number, sample in enumerate(self._samples, first):
            columns.setdefault(number // per_column, []).append(sample)
        return tuple(_mean(samples) for samples in columns.values())[-width:]


def _mean(samples: list[float | None]) -> float | None:
    values = [sample for sample in samples if sample is not None]
    return sum(values) / len(values) if values else None


def decode_tok_s_between(before: Timings, after: Timings) -> float | None:
    """Timings.decode_tok_s of the stretch between two readings of one request; None when it is too short."""
    seconds = after.decode_s - before.decode_s
    return (after.timed_tokens - before.timed_tokens) / seconds if seconds >= _LEAST_S else None


class LiveNumbers:
    """What is known from the engine's messages so far.

    state: the engine's. model: that is or was being loaded. loaded: None when no model is there. stage: what goes on
    with a progress of its own. speed: of the newest answer that has begun, None before the first one. speculation: of
    that answer, None without any; wanted: what was asked to draft when the model was loaded. measured: the model that a
    benchmark measures; "" when none has the machine.
    """

    def __init__(self) -> None:
        self.state: EngineState = "empty"
        self.model = ""
        self.loaded: Loaded | None = None
        self.stage: Stage | None = None
        self.speed: Speed | None = None
        self.speculation: SpeculationRecord | None = None
        self.wanted: Speculation = "auto"
        self.measured = ""
        self.history = History()
        self._began_s = 0.0
        self._first_done = 0
        self._rate = TransferRate()
        self._recent: deque[Timings] = deque()
        self._before: tuple[Loaded | None, Speed | None, SpeculationRecord | None] = (None, None, None)
        self._sampled_s = float("-inf")
        self._heard_s = float("-inf")
        self._is_new_answer = True

    @property
    def phase(self) -> Phase:
        """What the engine is doing, an answer's parts told apart; or that a benchmark is, in its place."""
        if self.state == "empty" and self.measured:
            return "measuring"
        if self.state != "answering":
            return self.state
        if self.stage is not None:
            return "reading"
        return "decoding" if self.speed is not None and self.speed.now_tok_s is not None else "waiting"

    def take(self, message: EngineMessage, now_s: float) -> bool:
        """Note a message; whether something that is shown may have changed: at most four times a second for speed."""
        before = self.state
        self.state = message.state
        if isinstance(message, AnswerStep):
            return self._answer_step(message, now_s) or before != self.state
        if isinstance(message, LoadStep):
            return isinstance(message.event, Progress) and self._progress(message.event, now_s)
        if isinstance(message, LoadBegan):
            self._before = self.loaded, self.speed, self.speculation
            self.model, self.loaded, self.speed, self.speculation = message.model, None, None, None
            self._end_stage()
        elif isinstance(message, LoadEnded):
            was_loaded, speed, speculation = self._before
            if message.loaded is was_loaded:  # it failed, and what was there before is there still, or was gone before
                self.speed, self.speculation = speed, speculation
            self.loaded, self.wanted = message.loaded, message.options.speculation
            self._end_stage()
        elif isinstance(message, Unloaded):
            self.loaded = None
            self._end_stage()
        elif isinstance(message, Lent):
            self.measured = message.model
        elif isinstance(message, TakenBack):
            self.measured = ""
        elif isinstance(message, AnswerEnded):
            if message.state == "empty":  # the engine died over it: what it held is free
                self.loaded = None
            self._end_answer()
        elif isinstance(message, AnswerBegan):
            return before != self.state
        return True

    def pass_time(self, now_s: float) -> bool:
        """Time passes and nothing is heard: a stage that stands still ends later, or nobody knows when.

        An answer that stands still has no speed "now". Returns whether something that is shown may have changed.
        """
        if self.phase == "decoding" and now_s - self._heard_s > _SILENT_S:
            self._rest()
            return True
        if self.stage is not None:
            self._progress(self.stage.progress, now_s)
        return self.stage is not None

    # --- answers -----------------------------------------------------------------------------------------------------

    def _answer_step(self, message: AnswerStep, now_s: float) -> bool:
        event = message.event
        if isinstance(event, Stats):
            return self._decoded(event, now_s)
        if isinstance(event, Progress):
            return self._progress(event, now_s)
        if isinstance(event, Finished):
            if self._is_new_answer and event.timings.decode_tok_s is not None:  # it was too short for a sample
                self.history.add(None)
                self.history.add(event.timings.decode_tok_s)
            self._recent.clear()
            self.speed = Speed(timings=event.timings, n_ctx=event.n_ctx, now_tok_s=None)
            self.speculation = event.speculation
            self._end_stage()
            return True
        if self.stage is not None and self.stage.progress.stage == "prefill":  # the first piece of text
            self._end_stage()
            return True
        return False

    def _decoded(self, stats: Stats, now_s: float) -> bool:
        timings = stats.timings
        if self._is_new_answer:
            self._is_new_answer = False
            self.history.add(None)
        self._heard_s = now_s
        self._recent.append(timings)
        while len(self._recent) > 2 and timings.decode_s - self._recent[1].decode_s >= _NOW_S:
            self._recent.popleft()
        if now_s - self._sampled_s < SAMPLE_EVERY_S:
            return False
        self._sampled_s = now_s
        self._end_stage()
        rate = decode_tok_s_between(self._recent[0], timings)
        now_tok_s = timings.decode_tok_s if rate is None else rate
        self.speed = Speed(timings=timings, n_ctx=stats.n_ctx, now_tok_s=now_tok_s)
        self.speculation = stats.speculation
        self.history.add(now_tok_s)
        return True

    def _end_answer(self) -> None:
        """The answer is over, whatever ended it: nothing is "now" any more."""
        self._rest()
        self._recent.clear()
        self._is_new_answer = True
        self._sampled_s = float("-inf")
        self._end_stage()

    def _rest(self) -> None:
        """Nothing comes: what is known is the answer so far, with what was heard since it was last shown."""
        if self.speed is not None:
            timings = self._recent[-1] if self._recent else self.speed.timings
            self.speed = Speed(timings=timings, n_ctx=self.speed.n_ctx, now_tok_s=None)

    # --- stages ------------------------------------------------------------------------------------------------------

    def _progress(self, progress: Progress, now_s: float) -> bool:
        if self.stage is None or self.stage.progress.stage != progress.stage:
            self._began_s, self._first_done = now_s, progress.done
            self._rate = TransferRate()
        since_s = now_s - self._began_s
        if progress.unit == "bytes":
            self._rate.add(now_s, progress.done)
            left_s = self._rate.left_s(progress.total) if progress.total else None
        else:
            left_s = time_left_s(progress, since_s, self._first_done)
        before, self.stage = self.stage, Stage(progress=progress, left_s=left_s, since_s=since_s)
        return before is None or before.progress != progress

    def _end_stage(self) -> None:
        self.stage = None
