"""Answers written both ways on a loaded model, plain and with speculation: what came of them, as rows of a table.

It knows no model's name and no command line.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from records import Report, Table
from scripted_drafts import ScriptedDrafter

from runner.backends.base import Backend
from runner.bench.genre_meter import Pair, PairMeter, all_written
from runner.bench.measure import written
from runner.bench.speculated import together
from runner.config import SamplingParams
from runner.draft_choice import DraftChoice
from runner.drafting import Drafting
from runner.speculative.control import EagerController
from runner.speculative.record import SpeculationRecord
from runner.speculative.speculator import Speculator
from runner.types import CancelToken

ROWS = (1, 2, 4, 8, 16)
_NEVER = frozenset[int]()
_STEPS = 9
_GAINS = ("gain  ", "from to     ", "processor", "accounted")
_DRAFTS = DraftChoice(drafter="scripted", reason="it follows a script")


@dataclass(kw_only=True)
class Found:
    """What came of one kind of answers, repetition by repetition. n_different: answers whose ids were not the same.

    processor_gains: of repetitions that were timed by the processor's time of this thread, in which neighbours count
    only as far as they slow the processor down.
    """

    gains: list[float] = field(default_factory=list)
    processor_gains: list[float] = field(default_factory=list)
    plain_tok_s: list[float] = field(default_factory=list)
    records: list[SpeculationRecord] = field(default_factory=list)
    n_answers: int = 0
    n_different: int = 0

    def add(self, pairs: Sequence[Pair], *, is_processor_time: bool = False) -> None:
        """The answers of one repetition."""
        plain, drafted = (all_written([getattr(one, way) for one in pairs]) for way in ("plain", "speculative"))
        if plain.n_tokens and is_processor_time:
            self.processor_gains.append(drafted.tok_s / plain.tok_s)
        elif plain.n_tokens:
            self.gains.append(drafted.tok_s / plain.tok_s)
            self.plain_tok_s.append(plain.tok_s)
        self.records += [one.record for one in pairs]
        self.n_answers += len(pairs)
        self.n_different += sum(one != other for one, other in zip(plain.ids, drafted.ids, strict=True))

    def row(self, **about: Any) -> dict[str, Any]:
        record = together(self.records)
        return {
            **about,
            "gain": statistics.median(self.gains) if self.gains else None,
            "gains": self.gains,
            "processor_gain": statistics.median(self.processor_gains) if self.processor_gains else None,
            "processor_gains": self.processor_gains,
            "accounted_gain": record.gain,
            "plain_tok_s": statistics.median(self.plain_tok_s) if self.gains else None,
            "acceptance_rate": record.acceptance_rate,
            "acceptance_length": record.acceptance_length,
            "rounds": record.rounds,
            "state": record.state,
            "reason": record.reason,
            "n_answers": self.n_answers,
            "n_different": self.n_different,
            "load_average": os.getloadavg()[0],
        }


class Rows:
    """Shows rows as they come, and keeps them in the report."""

    def __init__(self, report: Report, *names: str) -> None:
        self._report, self._names = report, names
        columns = [f"{names[0]:40}", *(f"{name:12}" for name in names[1:])]
        self._table = Table([*columns, "plain tok/s", *_GAINS, "accepted", "AL   ", "ids differ"])
        self.n_different = 0

    def add(self, row: dict[str, Any]) -> None:
        self._report.add(row)
        self.n_different += row["n_different"]
        gains, rate, length = row["gains"], row["acceptance_rate"], row["acceptance_length"]
        self._table.print(
            [
                *(str(row[name]) for name in self._names),
                f"{row['plain_tok_s']:.1f}" if gains else "",
                *_gain_cells(row),
                "" if rate is None else f"{100 * rate:.0f} %",
                "" if length is None else f"{length:.2f}",
                f"{row['n_different']} of {row['n_answers']}",
            ]
        )


def _gain_cells(row: dict[str, Any]) -> list[str]:
    """The gain, how it spreads, by the processor's time, and by the speculator's own account."""
    gains = row["gains"]
    shown = [f"{row['gain']:.3f}x", f"{min(gains):.2f} to {max(gains):.2f}"] if gains else ["", ""]
    others = (row["processor_gain"], row["accounted_gain"])
    return [*shown, *("" if gain is None else f"{gain:.3f}x" for gain in others)]


# --- steps and scripts -----------------------------------------------------------------------------------------------


def scripted(backend: Backend, drafter: ScriptedDrafter) -> Drafting:
    """A scripted drafter under the controller that everybody has."""
    speculator = Speculator(drafter, backend.info.longest_draft)
    speculator.calibrate(backend.step_s)
    return Drafting(_DRAFTS, speculator)


def show_steps(backend: Backend, model: str, report: Report) -> float:
    """t(M) for the numbers of tokens that matter; returns t(1) in seconds."""
    times = {n: statistics.median([backend.step_s(n) for _ in range(_STEPS + 1)][1:]) for n in ROWS}
    report.add(
        {"kind": "steps", "model": model, "backend": backend.info.backend, "ms": {n: 1e3 * t for n, t in times.items()}}
    )
    print(
        "t(M), M tokens in one step: "
        + ", ".join(f"t({n}) {1e3 * t:.2f} ms = {t / times[1]:.2f} t(1)" for n, t in times.items())
    )
    print(flush=True)
    return times[1]


def eager(drafting: Drafting) -> Drafting:
    """The same drafter, every guess of which is verified: for what is to be exact, not fast."""
    speculator = drafting.speculator
    assert speculator is not None, drafting.choice.reason
    control = EagerController(speculator.draft_max)
    return Drafting(drafting.choice, Speculator(speculator.drafter, speculator.draft_max, control=control))


def followed(
    backend: Backend,
    drafter: ScriptedDrafter,
    prompts: Sequence[Sequence[int]],
    temperature: float,
    *,
    n_tokens: int,
    repetitions: int,
    is_one_thread: bool = False,
) -> Found:
    """Answers that the drafter knows from a first run; the controller begins anew in each repetition.

    is_one_thread: this thread does all of the computing. Every other repetition is then timed by what it took of the
    processor.
    """
    found = Found()
    clocks = (time.perf_counter, time.thread_time) if is_one_thread else (time.perf_counter,)
    for number in range(1 - len(clocks), len(clocks) * repetitions + 1):
        clock = clocks[number % len(clocks)]
        meter = PairMeter(backend, scripted(backend, drafter), stop_ids=_NEVER, clock=clock)
        pairs = []
        for index, prompt in enumerate(prompts):
            params = SamplingParams(temperature=temperature, seed=index)
            drafter.follow(_plain(backend, prompt, params, n_tokens), len(prompt))
            is_plain_first = (index + number // len(clocks)) % 2 == 0
            pairs.append(meter.pair(prompt, params, n_tokens, CancelToken(), is_plain_first=is_plain_first))
        if number > 0:
            found.add(pairs, is_processor_time=clock is time.thread_time)
    return found


def _plain(backend: Backend, prompt: Sequence[int], params: SamplingParams, n_tokens: int) -> tuple[int, ...]:
    backend.keep(0)
    return written(backend, prompt, params, n_tokens + 1, CancelToken())[1]
