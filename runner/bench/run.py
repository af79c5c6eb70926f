"""A run from beginning to end: a fresh process for each turn of each backend, there and back, and what came of it.

`run_bench` yields events, which the CLI and the TUI show; the last one has the run. It knows no screen, no file of
results and no formats.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property

from runner.backends import CHECKED_BY
from runner.backends.base import common_prefix
from runner.bench.bytes_read import cache_read, state_bytes, stored_weights, weights_read
from runner.bench.events import BackendRefused, BenchEvent, BenchFinished, BenchStep
from runner.bench.gates import parting_note
from runner.bench.hashed_files import hashed_files
from runner.bench.holes import holes_fault
from runner.bench.machine_state import (
    describe_machine,
    device_of_run,
    machine_notes,
    machine_state,
    over_a_run,
)
from runner.bench.plan import Budget, abba, load_options, share_of
from runner.bench.process import BenchProcess
from runner.bench.record import (
    LEAST_REPETITIONS,
    Bandwidth,
    BenchBackend,
    BenchComparison,
    BenchRun,
    MachineState,
    ModelFile,
    SkippedTest,
)
from runner.bench.request import DEFAULT_BUDGET_S, DEFAULT_REPETITIONS, BenchRequest
from runner.bench.side import Side
from runner.bench.tasks import Chosen
from runner.bench.turn import Turn, TurnOf
from runner.errors import (
    BackendUnavailable,
    BadModelFile,
    DoesNotFit,
    EngineDied,
    RunnerError,
    UnsuitedOptions,
    UnsupportedModel,
    UsageError,
)
from runner.events import Progress
from runner.fit.facts import read_facts
from runner.machine import default_threads
from runner.paths import Paths
from runner.prepare import ready, title
from runner.registry import SCRIPT_SUFFIX, ModelSpec, Registry
from runner.running import running
from runner.types import BackendName, CancelToken, MemoryUse, ReadyModel

# What keeps one backend from running a model that another may run.
_REFUSALS = (BackendUnavailable, UnsuitedOptions, UnsupportedModel, DoesNotFit, BadModelFile, EngineDied)


def run_bench(request: BenchRequest, paths: Paths, cancel: CancelToken) -> Iterator[BenchEvent]:
    """Measure; BenchFinished comes last. A set `cancel` ends it soon, with a partial run when anything was measured.

    Raises UnknownModel and other RunnerErrors when nothing can be measured, and RunnerError when it was cancelled
    before anything was.
    """
    yield from Bench(request, paths, cancel).events()


class Bench:
    """One run at work: `events` are those of `run_bench`. Making one reads the disk, and raises RunnerErrors."""

    def __init__(self, request: BenchRequest, paths: Paths, cancel: CancelToken) -> None:
        self._request = request
        self._paths = paths
        self._cancel = cancel
        self._began = time.monotonic()
        self._started_at = datetime.now(UTC)
        self._spec = Registry.load_for(paths).resolve(request.model)
        self._device = device_of_run(request.load.n_gpu_layers)
        self._before = machine_state(self._device)
        self._machine = describe_machine(self._device, self._before)
        self._during: list[MachineState] = []
        self._beside: dict[int, str] = {}  # models that other processes of runner hold meanwhile, by the process's id
        self._bandwidth: Bandwidth | None = None
        self._files: ReadyModel | None = None
        self._longest = _trained_context(self._spec, cancel)
        self._notes: list[str] = []
        self._budget = Budget(DEFAULT_BUDGET_S, is_binding=request.repetitions is None)
        self._sides = self._sides_of(_backends(self._spec, request.backends))

    def events(self) -> Iterator[BenchEvent]:
        try:
            yield from self._measure_bandwidth()
            if self._request.genres and not self._request.backends:
                yield from self._choose_backend()
            self._keep_texts_alike()
            order = abba(tuple(self._sides))
            for number, name in enumerate(order, 1):
                yield from self._turn(self._sides[name], number, len(order))
            self._refuse_without_backend()
        except RunnerError:
            if not (self._cancel.is_cancelled and self._has_rows()):
                raise
        files: tuple[ModelFile, ...] = ()
        if not self._cancel.is_cancelled:
            assert self._files is not None
            with suppress(RunnerError):  # cancelled at the very end: the figures are all there
                files = yield from hashed_files(self._files, self._cancel)
        yield BenchFinished(run=self._run(files, machine_state(self._device)))

    def so_far(self) -> BenchRun | None:
        """What has been measured, once `cancel` is set; None where nothing was.

        For another thread than that of `events`, which does not come back: it asks nothing that may hang.
        """
        return self._run((), self._before) if self._has_rows() else None

    def _has_rows(self) -> bool:
        return any(side.backend(None).rows for side in self._sides.values())

    # --- measuring ---------------------------------------------------------------------------------------------------

    def _sides_of(self, backends: Sequence[BackendName]) -> dict[BackendName, Side]:
        found = self._machine.versions
        return {name: Side(title(self._spec), name, _version(name, found)) for name in backends}

    def _measure_bandwidth(self) -> Iterator[BenchEvent]:
        """In a process of its own: what it allocates is gone before a model is loaded."""
        if self._cancel.is_cancelled:
            raise RunnerError("The benchmark was cancelled.")
        yield BenchStep(what="measuring the memory's bandwidth")
        with BenchProcess(self._paths, self._cancel) as process:
            try:
                self._bandwidth = process.bandwidth(self._device.kind, 0)
            except RunnerError as error:
                if self._cancel.is_cancelled:
                    raise
                self._notes.append(f"The memory's bandwidth is not known: {error.message}")

    def _choose_backend(self) -> Iterator[BenchEvent]:
        """Speculation is measured with the backend that chats use; with others when they are asked for."""
        with BenchProcess(self._paths, self._cancel) as process:
            options = load_options(self._request, "auto", self._longest)
            for event in process.choose(self._request.model, options, offline=self._request.offline):
                if isinstance(event, Chosen):
                    self._sides = self._sides_of((event.backend,))
                elif isinstance(event, Progress):
                    yield event

    def _keep_texts_alike(self) -> None:
        """On a CPU several threads may write other texts with drafts than without: docs/SPECULATION.md, "Exactness"."""
        asked = self._request
        is_alone = (asked.load.n_threads or default_threads()) == 1
        is_exact = asked.is_kv_chosen or is_alone or self._device.kind != "cpu"
        if not asked.genres or is_exact or "llamacpp" not in self._sides:
            return
        self._request = dataclasses.replace(asked, load=dataclasses.replace(asked.load, kv_type="bf16"))
        self._notes.append(
            "The KV cache is bf16, with which llama.cpp writes one text for any number of threads, with drafts and "
            "without; --kv-type f16 is what chats use."
        )

    def _turn(self, side: Side, number: int, n_processes: int) -> Iterator[BenchEvent]:
        """The next process of a backend, if it has one left. number: of the run's processes, from 1."""
        options = self._request.options()
        others = [other for other in self._sides.values() if other is not side and other.refusal is None]
        most = min(2, options.repetitions)
        side.n_turns = side.n_turns or (most if others else 1)
        if side.refusal is not None or side.turns_done == side.n_turns:
            return
        n_own_after = side.n_turns - side.turns_done - 1
        process = BenchProcess(self._paths, self._cancel)
        of = TurnOf(
            request=self._request,
            options=load_options(self._request, side.name, self._longest),
            share=share_of(options, side.turns_done, side.n_turns),
            number=number,
            n_processes=n_processes,
            n_after=n_own_after + sum((other.n_turns or most) - other.turns_done for other in others),
            n_own_after=n_own_after,
            budget=self._budget,
            first_prompt=side.turns_done * (options.repetitions + 1),
            earlier=next((other.plan for other in self._sides.values() if other.plan is not None), None),
            bandwidth=lambda: self._bandwidth_of(side),
            damage=lambda: self._damage,
            on_test=lambda: self._look_around(process),
        )
        with process:
            turn = Turn(side, process, of, self._cancel)
            try:
                yield from turn.load()
            except _REFUSALS as error:
                if self._cancel.is_cancelled:
                    raise
                yield from self._not_loaded(side, error)
                return
            side.turns_done += 1
            self._learn(side)
            yield from turn.measure()

    def _look_around(self, process: BenchProcess) -> None:
        """See what the machine is doing while `process` holds the model."""
        self._during.append(machine_state(self._device))
        with suppress(RunnerError):
            others = (engine for engine in running(self._paths.engines) if engine.pid != process.pid)
            self._beside.update({engine.pid: engine.model for engine in others})

    def _not_loaded(self, side: Side, error: RunnerError) -> Iterator[BenchEvent]:
        """The first time it is a refusal; later the backend keeps what it has."""
        side.n_turns = side.turns_done
        if side.loaded is not None:
            side.note(f"It did not load a second time: {error.message}")
            return
        reason = error.message.removeprefix(f"The {side.name} backend cannot run {title(self._spec)}: ")
        side.refuse(error, f"{reason} {error.hint}".strip() if isinstance(error, EngineDied) else reason)
        if len(self._sides) > 1:
            yield BackendRefused(backend=side.name, reason=side.refused)

    def _learn(self, side: Side) -> None:
        """What the files say of a model that has just been loaded from them."""
        assert side.loaded is not None
        if self._files is None:
            self._files = ready(self._spec, offline=True, on_event=lambda _event: None, cancel=self._cancel)
        if side.bytes_read is not None or side.name == "fake":  # a script reads no weights
            return
        try:
            stored = stored_weights(self._files)
            options = load_options(self._request, side.name, self._longest)
            cache = cache_read(self._files, options, side.loaded.info)
            states = state_bytes(self._files)
        except RunnerError as error:
            side.note(f"How many bytes a token reads is not known: {error.message}")
            return

        def bytes_read(context: float, memory: MemoryUse) -> int:
            return weights_read(stored, side.name, memory) + states + round(cache.at(context))

        side.bytes_read = bytes_read

    @cached_property
    def _damage(self) -> str | None:
        """What is wrong with the files, as far as a look tells."""
        assert self._files is not None
        with suppress(OSError):  # they were read to be loaded: who hashes them says so
            return None if self._files.format == "script" else holes_fault(self._files.weights)
        return None

    def _bandwidth_of(self, side: Side) -> float | None:
        """The measured bandwidth, where it is of the memory that holds all of this backend's model."""
        if self._bandwidth is None or side.loaded is None:
            return None
        info = side.loaded.info
        is_there = info.n_gpu_layers == 0 if self._device.kind == "cpu" else info.n_gpu_layers >= info.num_layers
        return self._bandwidth.bytes_s if is_there else None

    def _refuse_without_backend(self) -> None:
        """Raise when no backend could load the model: the one reason that all have, or all reasons."""
        errors = {side.name: side.refusal for side in self._sides.values() if side.refusal is not None}
        if len(errors) < len(self._sides):
            return
        first = next(iter(errors.values()))
        if len({error.message for error in errors.values()}) == 1:
            raise first
        reasons = " ".join(f"{side.name}: {side.refused}" for side in self._sides.values())
        if all(isinstance(error, DoesNotFit) for error in errors.values()):
            raise DoesNotFit(f"{title(self._spec)} fits no backend here. {reasons}", hint=first.hint)
        is_asked = all(isinstance(error, UnsuitedOptions) for error in errors.values())
        raise (UnsuitedOptions if is_asked else UnsupportedModel)(
            f"No backend can run {title(self._spec)}. {reasons}", hint=CHECKED_BY
        )

    # --- what came of it ---------------------------------------------------------------------------------------------

    def _run(self, files: tuple[ModelFile, ...], afterwards: MachineState) -> BenchRun:
        """afterwards: the machine without our processes."""
        loaded = next(side.loaded for side in self._sides.values() if side.loaded is not None)
        after = over_a_run(self._during, afterwards)
        machine = dataclasses.replace(self._machine, after=after, bandwidth=self._bandwidth)
        backends = tuple(side.backend(self._bandwidth_of(side)) for side in self._sides.values())
        assert self._files is not None
        return BenchRun(
            id=f"{self._started_at:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
            started_at=self._started_at.isoformat(timespec="seconds"),
            duration_s=time.monotonic() - self._began,
            model=title(self._spec),
            format=self._files.format,
            architecture=loaded.info.architecture,
            quantization=loaded.info.quantization,
            num_parameters=loaded.info.num_parameters,
            size_bytes=self._files.size_bytes,
            files=files,
            prompts_md5=next((side.prompts_md5 for side in self._sides.values() if side.prompts_md5), ""),
            options=self._request.options(),
            machine=machine,
            backends=backends,
            skipped=tuple(self._skipped()),
            comparison=tuple(self._comparisons()),
            notes=(*self._notes, *_time_notes(self._budget, backends), *machine_notes(machine), *self._beside_notes()),
            is_partial=self._cancel.is_cancelled,
        )

    def _beside_notes(self) -> Iterator[str]:
        for pid, model in self._beside.items():
            yield f"Another model was loaded beside it: {model} (runner, pid {pid})."

    def _skipped(self) -> Iterator[SkippedTest]:
        """Each test that was left out, once; with the backend's name where not all of them left it out."""
        planned = [
            (side.name, (*side.skipped, *side.plan.skipped)) for side in self._sides.values() if side.plan is not None
        ]
        for name, skipped in planned:
            for test in skipped:
                if all(test in others for _, others in planned):
                    if name == planned[0][0]:
                        yield test
                else:
                    yield SkippedTest(test=test.test, reason=f"{name}: {test.reason}")

    def _comparisons(self) -> Iterator[BenchComparison]:
        """Whether the backends wrote the same text, the first one against each other."""
        first, *others = self._sides.values()
        for other in others:
            n_ids = min(len(first.written), len(other.written))
            if n_ids and first.prompts_md5 == other.prompts_md5:
                same = common_prefix(first.written, other.written)
                note = parting_note(same, n_ids)
                yield BenchComparison(backend=first.name, against=other.name, n_same=same, n_ids=n_ids, note=note)
            elif n_ids:
                note = "they make different token ids of the same text"
                yield BenchComparison(backend=first.name, against=other.name, n_same=0, n_ids=n_ids, note=note)


def _time_notes(budget: Budget, backends: Sequence[BenchBackend]) -> Iterator[str]:
    rows = [row for backend in backends for row in backend.rows]
    if not budget.left_s and any(0 < len(row.samples) < LEAST_REPETITIONS for row in rows):
        yield (
            f"The {DEFAULT_BUDGET_S:.0f} s for measuring were used up: rows of fewer than {LEAST_REPETITIONS} "
            f"repetitions say little; -r {DEFAULT_REPETITIONS} makes them all."
        )


def _trained_context(spec: ModelSpec, cancel: CancelToken) -> int | None:
    """Tokens of context that the model was trained for; None where its files are not here to say so."""
    try:
        files = ready(spec, offline=True, on_event=lambda _event: None, cancel=cancel)
        return read_facts(files).shape.context_length or None
    except RunnerError:  # who loads it says why
        return None


def _backends(spec: ModelSpec, asked: tuple[BackendName, ...]) -> tuple[BackendName, ...]:
    """Those asked for, or every backend that might run a model; a script is the scripted one's alone.

    Raises UsageError when the scripted one is asked for a model, of which it would invent figures.
    """
    if spec.origin == "fake" or (spec.path is not None and spec.path.name.endswith(SCRIPT_SUFFIX)):
        return asked or ("fake",)
    if "fake" in asked:
        raise UsageError(
            f"The fake backend answers from a script: it says nothing of how fast {title(spec)} is.",
            hint="Name native or llamacpp, or leave --backend out.",
        )
    return asked or ("native", "llamacpp")


def _version(backend: BackendName, found: dict[str, str]) -> str:
    if backend == "llamacpp":
        return f"llama-cpp-python {found.get('llama-cpp-python', 'not installed')}"
    own = f"runner {found['runner']}"
    return f"{own}, torch {found.get('torch', 'not installed')}" if backend == "native" else own
