"""One backend's side of a run while it is being measured: its rows as they grow, and what is known of it.

It turns values and faults into BenchRows and a BenchBackend; it knows no process and no clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from runner.bench.gates import genre_fault, genre_repetition_fault, repetition_fault, sample_fault
from runner.bench.plan import BenchTest, Plan
from runner.bench.record import NOT_REACHED, BenchBackend, BenchRow, SkippedTest, without_numbers
from runner.bench.speculated import Speculated, together
from runner.bench.tasks import GenreSample, Sample, Vitals
from runner.draft_choice import shorter
from runner.errors import RunnerError
from runner.events import Loaded
from runner.speculative.record import SpeculationRecord
from runner.types import BackendName, MemoryUse

_CACHED_SHARE = 1.05  # more than memory can give, by more than measuring may be off


class Tally:
    """One row as it grows. `blank` is the row without numbers."""

    def __init__(self, blank: BenchRow) -> None:
        self._blank = blank
        self._samples: list[float] = []
        self._segments: list[int] = []
        self._cold: float | None = None
        self._notes: list[str] = []
        self._speculated: Speculated | None = None
        self.fault: str | None = None

    @property
    def name(self) -> str:
        return self._blank.test

    @property
    def is_empty(self) -> bool:
        return not self._samples and self.fault is None

    def begin_process(self) -> None:
        self._segments.append(0)

    def warm_up(self, value: float) -> None:
        if self._cold is None:
            self._cold = value

    def add(self, value: float) -> None:
        self._samples.append(value)
        self._segments[-1] += 1

    def add_pair(self, plain: float, speculative: float, record: SpeculationRecord) -> None:
        """Rates without speculation and with it, one taken beside the other."""
        self.add(speculative)
        before = self._speculated
        self._speculated = Speculated(
            plain=(*(before.plain if before else ()), plain),
            record=together([before.record, record]) if before else record,
        )

    def fail(self, reason: str) -> None:
        """The first reason stays."""
        self.fault = self.fault or reason

    def note(self, text: str) -> None:
        if text and text not in self._notes:
            self._notes.append(text)

    def describe(self, *, n_prompt: int | None = None, bytes_per_token: int | None = None) -> None:
        """Fill in what is known only once something was measured."""
        self._blank = dataclasses.replace(
            self._blank,
            n_prompt=self._blank.n_prompt if n_prompt is None else n_prompt,
            bytes_per_token=self._blank.bytes_per_token if bytes_per_token is None else bytes_per_token,
        )

    def row(self, bandwidth: float | None) -> BenchRow:
        """The row as it stands. bandwidth: of the memory that this backend reads, in bytes a second."""
        notes = list(self._notes)
        row = dataclasses.replace(
            self._blank,
            samples=tuple(self._samples),
            segments=tuple(self._segments),
            cold=self._cold,
            speculation=self._speculated,
        )
        if row.mean is not None and row.bytes_per_token and bandwidth:
            share = row.bytes_per_token * row.mean / bandwidth
            row = dataclasses.replace(row, bandwidth_share=share)
            if share > _CACHED_SHARE:
                notes.append("faster than memory was read: by a cache, or something slowed that measurement")
        row = dataclasses.replace(row, note="; ".join(notes))
        return row if self.fault is None else without_numbers(row, self.fault)


class Side:
    """One backend: what it is, what it holds, and its rows.

    skipped: what was found to be impossible on the way, beside the plan's. refusal, refused: why it did not load.
    fault: why nothing counts that it computes. n_turns: how many processes it gets, 0 until that is known. written: the
    greedy tokens of its first decode test. bytes_read: what a decoded token reads, from the context and the memory.
    """

    def __init__(self, model: str, name: BackendName, version: str) -> None:
        self.name: BackendName = name
        self.plan: Plan | None = None
        self.skipped: tuple[SkippedTest, ...] = ()
        self.loaded: Loaded | None = None
        self.refusal: RunnerError | None = None
        self.refused = ""
        self.fault: str | None = None
        self.n_turns = 0
        self.turns_done = 0
        self.written: tuple[int, ...] = ()
        self.prompts_md5 = ""
        self.bytes_read: Callable[[float, MemoryUse], int] | None = None
        self._model = model
        self._version = version
        self._tallies: dict[str, Tally] = {}
        self._firsts: dict[str, Sample] = {}
        self._first_answers: dict[str, GenreSample] = {}
        self._memory: MemoryUse | None = None
        self._peak_bytes: int | None = None
        self._load_s: float | None = None
        self._load_stages: dict[str, float] = {}
        self._first_token_s: float | None = None
        self._notes: list[str] = []

    def ttft(self) -> Tally:
        return self._tally(BenchRow(model=self._model, backend=self.name, test="ttft", unit="ms", n_gen=1))

    def tally(self, test: BenchTest) -> Tally:
        is_prefill = test.kind == "prefill"
        blank = BenchRow(
            model=self._model,
            backend=self.name,
            test=test.name,
            unit="tok/s",
            n_prompt=test.n_tokens if is_prefill else 0,
            n_gen=0 if is_prefill else test.n_tokens,
            n_depth=test.depth,
        )
        return self._tally(blank)

    def _tally(self, blank: BenchRow) -> Tally:
        return self._tallies.setdefault(blank.test, Tally(blank))

    def note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def refuse(self, error: RunnerError, reason: str) -> None:
        """It did not load the model. reason: the error without what is plain from where it stands."""
        self.refusal, self.refused = error, reason

    def started(self, loaded: Loaded, load_s: float) -> None:
        """A process has loaded the model, `load_s` after it was started."""
        self.loaded = loaded
        if self._load_s is None:
            self._load_s, self._load_stages = load_s, dict(loaded.stages)
        self.remember(Vitals(memory=loaded.memory, peak_bytes=None))

    def note_drafts(self, asked: int) -> None:
        """Say so where drafts are shorter than was asked for."""
        assert self.loaded is not None
        if 0 < self.loaded.draft_max < asked:
            self.note(shorter(asked, self.loaded.draft_max))

    def answered(self, seconds: float) -> None:
        """A process gave its first text, so long after it was started."""
        self._first_token_s = seconds if self._first_token_s is None else self._first_token_s

    def remember(self, vitals: Vitals) -> None:
        """Keep the largest of what the processes held."""
        if self._memory is None or vitals.memory.total_bytes > self._memory.total_bytes:
            self._memory = vitals.memory
        if vitals.peak_bytes is not None:
            self._peak_bytes = max(self._peak_bytes or 0, vitals.peak_bytes)

    def take(self, test: BenchTest, sample: Sample, *, is_warm_up: bool) -> None:
        """Put a sample through its gates and into its row."""
        assert self.loaded is not None
        tally = self.tally(test)
        fault = sample_fault(test, sample, self.loaded.info.vocab_size)
        if fault is None and test.kind == "decode" and not is_warm_up:
            first = self._firsts.setdefault(test.name, sample)
            fault = repetition_fault(first, sample, self.name)
            if test.depth == 0 and not self.written:
                self.written = sample.token_ids
        if fault is not None:
            tally.fail(fault)
            return
        self.prompts_md5 = sample.prompts_md5
        rate = sample.n_tokens / sample.seconds
        if is_warm_up:
            tally.warm_up(rate)
        else:
            tally.add(rate)
        if test.kind == "decode" and self.bytes_read is not None and self._memory is not None:
            tally.describe(bytes_per_token=self.bytes_read(sample.n_prompt + test.n_tokens / 2, self._memory))

    def take_answers(self, test: BenchTest, sample: GenreSample, *, is_warm_up: bool) -> None:
        """The same for a genre. The warm-up's answers are among those of the first repetition."""
        tally = self.tally(test)
        first = self._first_answers.get(test.name, sample)
        if len(sample.plain.ids) >= len(first.plain.ids):
            self._first_answers[test.name] = sample
        fault = genre_fault(sample, self.name) or genre_repetition_fault(first, sample, self.name)
        if fault is not None:
            tally.fail(fault)
            return
        self.prompts_md5 = sample.prompts_md5
        if is_warm_up:
            tally.warm_up(sample.speculative.tok_s)
        else:
            tally.add_pair(sample.plain.tok_s, sample.speculative.tok_s, sample.record)

    def fail_all(self, reason: str) -> None:
        """Nothing that this backend measures counts: it makes no more of it."""
        self.fault = reason
        self.n_turns = self.turns_done
        for tally in self._tallies.values():
            tally.fail(reason)

    def backend(self, bandwidth: float | None) -> BenchBackend:
        """As it is recorded; rows without anything are left out."""
        if self.loaded is None:
            return BenchBackend(name=self.name, version=self._version, refused=self.refused or NOT_REACHED)
        return BenchBackend(
            name=self.name,
            version=self._version,
            device=self.loaded.info.device,
            quantization=self.loaded.info.quantization,
            memory=self._memory,
            process_peak_bytes=self._peak_bytes,
            load_s=self._load_s,
            load_stages=self._load_stages,
            first_token_s=self._first_token_s,
            draft_max=self.loaded.draft_max or None,
            note=" ".join(self._notes),
            rows=tuple(tally.row(bandwidth) for tally in tuple(self._tallies.values()) if not tally.is_empty),
        )
