"""One turn of one backend: a fresh process loads the model, and makes its share of every row.

What it finds goes into the backend's Side; it yields events on the way. It knows nothing of other backends or turns.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from runner.bench.events import BenchEvent, BenchStep, RowMeasured
from runner.bench.first_text import first_text, forget
from runner.bench.gates import check_fault
from runner.bench.plan import BenchTest, Budget, Plan, Share, Speed, plan_tests, wanted_tests
from runner.bench.process import BenchProcess
from runner.bench.record import SkippedTest
from runner.bench.request import BenchRequest
from runner.bench.side import Side, Tally
from runner.bench.tasks import Sample
from runner.config import LoadOptions
from runner.errors import ContextOverflow, EngineDied, RunnerError, UnsuitedOptions, UnsupportedModel
from runner.events import Loaded, Notice
from runner.types import CancelToken, ModelInfo

# A first look at the speed, which decides what is measured; small enough for the slowest machine.
_LOOK_PREFILL: Final = BenchTest(kind="prefill", n_tokens=32)
_LOOK_DECODE: Final = BenchTest(kind="decode", n_tokens=8)
_N_LOOKS: Final = 3  # the first one also pays for what is done once, and other programs may have disturbed it
_LEAST_CONTEXT: Final = 64  # where a look has room
_FASTEST: Final = Speed(prefill_tok_s=math.inf, decode_tok_s=math.inf)


class _NoText(RunnerError):
    """A model of which no text can be expected wrote none; never leaves this file."""


@dataclass(frozen=True, kw_only=True)
class TurnOf:
    """Which turn it is. number: of the run's processes, from 1. n_after: how many come after it; n_own_after: of the
    same backend. budget: the run's, which all turns draw from.

    earlier: what another backend measures, if one was there before. first_prompt: the number of its first prompt, so
    that no two prefills of a backend read the same. on_test: called after each test, while the model is still held.
    """

    request: BenchRequest
    options: LoadOptions
    share: Share
    number: int
    n_processes: int
    n_after: int
    n_own_after: int
    budget: Budget
    first_prompt: int
    earlier: Plan | None
    bandwidth: Callable[[], float | None]
    damage: Callable[[], str | None]
    on_test: Callable[[], None]


class Turn:
    """One process's work: first `load`, then `measure`."""

    def __init__(self, side: Side, process: BenchProcess, of: TurnOf, cancel: CancelToken) -> None:
        self._side = side
        self._process = process
        self._of = of
        self._cancel = cancel
        self._started = time.perf_counter()

    def load(self) -> Iterator[BenchEvent]:
        """Load the model. Raises RunnerErrors."""
        yield self._step("loading")
        for event in self._process.load(self._of.request.model, self._of.options, offline=self._of.request.offline):
            if isinstance(event, Loaded):
                self._side.started(event, time.perf_counter() - self._started)
                self._side.note_drafts(self._of.options.draft_max)
            elif not isinstance(event, Notice):
                yield event
            elif event.level == "warning":
                self._side.note(event.text)

    def measure(self) -> Iterator[BenchEvent]:
        """Make this process's share of each row. Raises RunnerError when cancelled.

        When the process dies, what it had not measured is invalid, and so is the test that it died in.
        """
        left: list[Tally] = []
        self._expect(self._side.plan.tests if self._side.plan else self._wanted(), has_ttft=True)
        try:
            if not self._of.request.genres:
                yield from self._ttft()
            if self._side.plan is None:
                yield from self._prepare()
            assert self._side.plan is not None
            left = [self._side.tally(test) for test in self._side.plan.tests]
            for test in self._side.plan.tests:
                yield from self._test(test, left[0])
                left.pop(0)
        except EngineDied as died:
            if self._cancel.is_cancelled:
                raise
            if self._side.plan is None:
                self._side.fail_all(_with_remedy(died))
            for tally in left or self._at_stake():
                tally.fail(_with_remedy(died))
                yield self._measured(tally)

    def _at_stake(self) -> list[Tally]:
        """The rows that have to say what went wrong before the first test: that of the first text, or all genres."""
        if not self._of.request.genres:
            return [self._side.ttft()]
        return [self._side.tally(test) for test in self._wanted()]

    def _wanted(self) -> tuple[BenchTest, ...]:
        return tuple(wanted_tests(self._of.request.options()))

    def _expect(self, tests: Sequence[BenchTest], *, has_ttft: bool) -> None:
        """Have the budget shared by these tests and by those of later turns. has_ttft: it is still to come here."""
        n_ttft = 0 if self._of.request.genres else 1
        n_here = len(tests) + (n_ttft if has_ttft else 0)
        self._of.budget.n_parts = n_here + self._of.n_after * (len(tests) + n_ttft)

    def _step(self, what: str, repetition: int = 0, n_repetitions: int = 0) -> BenchStep:
        return BenchStep(
            what=what,
            backend=self._side.name,
            process=self._of.number,
            n_processes=self._of.n_processes,
            repetition=repetition,
            n_repetitions=n_repetitions,
        )

    def _measured(self, tally: Tally) -> RowMeasured:
        return RowMeasured(
            row=tally.row(self._of.bandwidth()), is_complete=not self._of.n_own_after or tally.fault is not None
        )

    # --- the parts of a turn -----------------------------------------------------------------------------------------

    def _prepare(self) -> Iterator[BenchEvent]:
        """Once for each backend: does it compute what it should, and how much is to be measured."""
        assert self._side.loaded is not None
        yield self._step("checking")
        began = time.perf_counter()
        info = self._side.loaded.info
        plan = plan_tests(self._of.request, info, _FASTEST, math.inf, self._of.earlier)
        self._expect(plan.tests, has_ttft=False)
        try:
            is_random = self._of.request.is_random
            fault = self._of.damage() or check_fault(self._process.check(), info.vocab_size, is_random=is_random)
            if fault is None and info.n_ctx >= _LEAST_CONTEXT:
                plan = self._planned(info)
        except EngineDied:
            raise
        except RunnerError as error:
            self._check_process(error)
            fault = _with_remedy(error)
        self._of.budget.spend(time.perf_counter() - began)
        self._side.plan = plan
        for test in plan.tests:
            self._side.tally(test).note(plan.notes.get(test.name, ""))
        if fault is not None:
            self._side.fail_all(fault)
            yield from map(self._measured, self._at_stake())

    def _planned(self, info: ModelInfo) -> Plan:
        """What the best of a few short looks leaves time for; one is enough when it leaves time for everything."""
        test_s = self._of.budget.part_s * (1 + self._of.n_own_after)
        speed = Speed(prefill_tok_s=0.0, decode_tok_s=0.0)
        for number in range(_N_LOOKS):
            prefill = self._process.measure(_LOOK_PREFILL.task(number))
            decode = self._process.measure(_LOOK_DECODE.task(number))
            speed = Speed(
                prefill_tok_s=max(speed.prefill_tok_s, _rate(prefill)),
                decode_tok_s=max(speed.decode_tok_s, _rate(decode)),
            )
            plan = plan_tests(self._of.request, info, speed, test_s, self._of.earlier)
            if not plan.is_reduced:
                break
        return plan

    def _ttft(self) -> Iterator[BenchEvent]:
        tally = self._side.ttft()
        tally.begin_process()
        try:
            yield from self._repeated("ttft", lambda number: self._first_text(tally, number), tally)
        except EngineDied:
            raise
        except (ContextOverflow, _NoText) as reason:
            self._side.skipped = (SkippedTest(test=tally.name, reason=reason.message),)
            return
        except RunnerError as error:
            self._check_process(error)
            tally.fail(_with_remedy(error))
        yield self._measured(tally)

    def _first_text(self, tally: Tally, number: int) -> None:
        """The warm-up is the first answer after loading: the cold one."""
        if number:
            forget(self._process)
        found = first_text(self._process)
        if found is None:
            self._check_process(RunnerError("Cancelled."))
            if self._of.request.is_random:
                raise _NoText("the answer had no text, as it happens with random weights")
            tally.fail("the answer had no text")
        elif found.fault is not None:
            tally.fail(found.fault)
        else:
            milliseconds = 1000 * found.seconds
            (tally.add if number else tally.warm_up)(milliseconds)
            tally.describe(n_prompt=found.n_prompt)
            if found.is_raw:
                tally.note("without a chat template: it has none")
            if self._of.request.is_random:
                tally.note("to the first token that has text, which of random weights may be a late one")
            if not number:
                self._side.answered(time.perf_counter() - self._started)

    def _test(self, test: BenchTest, tally: Tally) -> Iterator[BenchEvent]:
        tally.begin_process()

        def once(number: int) -> None:
            if test.kind == "genre":
                answers = self._process.measure_genre(test.genre_task(number))
                self._side.take_answers(test, answers, is_warm_up=number == 0)
            else:
                sample = self._process.measure(test.task(self._of.first_prompt + number))
                self._side.take(test, sample, is_warm_up=number == 0)

        try:
            if tally.fault is None:
                yield from self._repeated(test.name, once, tally)
                self._side.remember(self._process.vitals())
                self._of.on_test()
        except EngineDied:
            raise
        except (ContextOverflow, UnsuitedOptions, UnsupportedModel) as reason:
            self._side.skipped = (*self._side.skipped, SkippedTest(test=test.name, reason=reason.message))
            return
        except RunnerError as error:
            self._check_process(error)
            tally.fail(_with_remedy(error))
        yield self._measured(tally)

    def _repeated(self, what: str, once: Callable[[int], None], tally: Tally) -> Iterator[BenchEvent]:
        """A warm-up, then repetitions until the share is made, the time is up, or something is wrong."""
        share, budget = self._of.share, self._of.budget
        began = time.perf_counter()
        try:
            yield self._step(what, 0, share.most)
            once(0)
            last = time.perf_counter()
            n_done = 0
            while tally.fault is None:
                now = time.perf_counter()
                if n_done and share.is_enough(n_done, now - began, now - last, budget):
                    break
                last = now
                yield self._step(what, n_done + 1, share.most)
                once(n_done + 1)
                n_done += 1
            if n_done < share.most and tally.fault is None:
                tally.note("fewer repetitions: the time was up")
        finally:
            budget.spend(time.perf_counter() - began, n_parts=1)

    def _check_process(self, error: RunnerError) -> None:
        """Raise what is no fault of the test: a request that was cancelled, and a process that is gone."""
        if self._cancel.is_cancelled:
            raise error
        if self._process.loaded is None:  # it died when an answer was stopped, which tells nobody
            raise EngineDied(
                "The process with the model ended unexpectedly.", hint="`runner logs` has more."
            ) from error


def _with_remedy(error: RunnerError) -> str:
    """Why a row is invalid, and what can be done about it."""
    return f"{error.message} {error.hint}".strip()


def _rate(sample: Sample) -> float:
    """Tokens a second, never 0: what is wrong with the sample is found when it counts."""
    return max(1, sample.n_tokens) / max(1e-9, sample.seconds)
