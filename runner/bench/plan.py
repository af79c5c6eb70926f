"""What a run measures: which tests, of which sizes, how often, in which order. Pure functions of values.

A test that would take a machine too long gets smaller, or is left out, by itself, and the reason is said; what was
asked for by name is measured as asked. It knows no process and no clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast

from runner.bench.measure import SHORTEST_PROMPT
from runner.bench.record import BenchOptions, SkippedTest
from runner.bench.tasks import Task
from runner.config import LoadOptions
from runner.errors import UsageError
from runner.types import BackendName, ModelInfo

DEFAULT_PROMPTS: Final = (512,)
DEFAULT_GEN: Final = (128,)
DEFAULT_DEPTHS: Final = (0, 4096)
DEFAULT_REPETITIONS: Final = 5
LEAST_REPETITIONS: Final = 3
DEFAULT_BUDGET_S: Final = 10.0
_FILL_S: Final = 15.0  # to put the tokens of a depth into the KV cache: done once in each process
_PATIENCE: Final = 4.0  # so much longer may a backend take over tests that another one has done
_SMALLEST: Final = 16
_LARGEST: Final = 2**20


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """What the user wants. None: not said, so that the defaults hold, and give way where a machine is too slow.

    backends: () is every one that can run. is_random: the model's weights are, so that its text is not judged.
    """

    model: str
    load: LoadOptions
    n_prompt: tuple[int, ...] | None = None
    n_gen: tuple[int, ...] | None = None
    depths: tuple[int, ...] | None = None
    repetitions: int | None = None
    backends: tuple[BackendName, ...] = ()
    is_random: bool = False
    offline: bool = False

    def __post_init__(self) -> None:
        for option, values, least in (("-p", self.n_prompt, 0), ("-n", self.n_gen, 0), ("-d", self.depths, 0)):
            for value in values or ():
                if not least <= value <= _LARGEST:
                    raise UsageError(f"{option} is {value}.", hint=f"It must be from {least} to {_LARGEST} tokens.")
        if self.repetitions is not None and not 1 <= self.repetitions <= 1000:
            raise UsageError(f"-r is {self.repetitions}.", hint="It must be from 1 to 1000 repetitions.")
        if not any((*self.prompts, *self.generations)):
            raise UsageError("There is nothing to measure.", hint="Give sizes above 0: -p for prefill, -n for decode.")

    @property
    def prompts(self) -> tuple[int, ...]:
        return _without_repeats(DEFAULT_PROMPTS if self.n_prompt is None else self.n_prompt)

    @property
    def generations(self) -> tuple[int, ...]:
        return _without_repeats(DEFAULT_GEN if self.n_gen is None else self.n_gen)

    def options(self) -> BenchOptions:
        """As they are recorded, every default filled in."""
        return BenchOptions(
            n_prompt=tuple(n for n in self.prompts if n),
            n_gen=tuple(n for n in self.generations if n),
            depths=_without_repeats(DEFAULT_DEPTHS if self.depths is None else self.depths),
            prefill_depths=(0,) if self.depths is None else _without_repeats(self.depths),
            repetitions=self.repetitions or DEFAULT_REPETITIONS,
            backends=self.backends or ("auto",),
            kv_type=self.load.kv_type,
            ctx_size=self.load.ctx_size,
            n_gpu_layers=self.load.n_gpu_layers,
            n_threads=self.load.n_threads,
            batch_size=self.load.batch_size,
            budget_s=DEFAULT_BUDGET_S if self.repetitions is None else None,
            is_random=self.is_random,
        )


def token_counts(option: str, text: str | None) -> tuple[int, ...] | None:
    """The value of -p, -n or -d, as `option` is called: numbers of tokens; None when not said. Raises UsageError."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option} is {text!r}.", hint=f"Give numbers of tokens, such as {option} 128,512.") from None


def request_like(options: BenchOptions, model: str, load: LoadOptions, *, offline: bool = False) -> BenchRequest:
    """The request for `model` that is recorded as `options`; what they do not say of loading is taken from `load`."""
    is_default_depth = (options.depths, options.prefill_depths) == (DEFAULT_DEPTHS, (0,))
    return BenchRequest(
        model=model,
        load=dataclasses.replace(
            load,
            kv_type=options.kv_type,
            ctx_size=options.ctx_size,
            n_gpu_layers=cast("int | Literal['auto', 'all']", options.n_gpu_layers),
            n_threads=options.n_threads,
            batch_size=options.batch_size,
        ),
        n_prompt=None if options.n_prompt == DEFAULT_PROMPTS else options.n_prompt or (0,),
        n_gen=None if options.n_gen == DEFAULT_GEN else options.n_gen or (0,),
        depths=None if is_default_depth else options.depths,
        repetitions=None if options.budget_s is not None else options.repetitions,
        backends=() if options.backends == ("auto",) else cast("tuple[BackendName, ...]", options.backends),
        is_random=options.is_random,
        offline=offline,
    )


def _without_repeats(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(values))


@dataclass(frozen=True, kw_only=True)
class BenchTest:
    """One test of a model that is loaded, as llama-bench names it."""

    kind: Literal["prefill", "decode"]
    n_tokens: int
    depth: int = 0

    @property
    def name(self) -> str:
        return name_of(self.kind, self.n_tokens, self.depth)

    @property
    def context(self) -> int:
        """Tokens of context that it takes: the first token after a prefill, and one more that is written untimed."""
        return (self.depth if self.kind == "prefill" else max(self.depth, SHORTEST_PROMPT)) + self.n_tokens + 1

    def task(self, number: int) -> Task:
        return Task(kind=self.kind, n_tokens=self.n_tokens, depth=self.depth, number=number)


def name_of(kind: Literal["prefill", "decode"], n_tokens: int, depth: int) -> str:
    return f"{'pp' if kind == 'prefill' else 'tg'}{n_tokens}" + (f" @ d{depth}" if depth else "")


def wanted_tests(options: BenchOptions) -> Iterator[BenchTest]:
    """Every test that the options name: by depth, prefill before decode."""
    for depth in options.depths:
        if depth in options.prefill_depths:
            yield from (BenchTest(kind="prefill", n_tokens=n, depth=depth) for n in options.n_prompt)
        yield from (BenchTest(kind="decode", n_tokens=n, depth=depth) for n in options.n_gen)


def needed_context(request: BenchRequest) -> int | None:
    """The context to load with: what the user said, or room for tests that were asked for; None for the default."""
    if request.load.ctx_size is not None:
        return request.load.ctx_size
    needed = max(test.context for test in wanted_tests(request.options()))
    is_asked = request.depths is not None or request.n_prompt is not None or request.n_gen is not None
    return -(-needed // 256) * 256 if is_asked and needed > request.load.n_ctx(_LARGEST) else None


@dataclass(frozen=True, kw_only=True)
class Speed:
    """A first look at how fast a model runs, tokens a second."""

    prefill_tok_s: float
    decode_tok_s: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one backend is to do. notes: by test, what was changed and why. is_reduced: for want of time."""

    tests: tuple[BenchTest, ...]
    skipped: tuple[SkippedTest, ...]
    notes: dict[str, str]
    is_reduced: bool = False


def plan_tests(request: BenchRequest, info: ModelInfo, speed: Speed, earlier: Plan | None = None) -> Plan:
    """The tests of a loaded model: those that its context holds, of sizes that it does in a reasonable time.

    earlier: what the backend before does. The same tests can be compared: those are wanted then, and get more time.
    """
    patience = 1.0 if earlier is None else _PATIENCE
    tests: list[BenchTest] = []
    skipped = list(earlier.skipped if earlier else ())
    notes: dict[str, str] = {}
    is_reduced = False
    for wanted in earlier.tests if earlier else wanted_tests(request.options()):
        reason, too_slow = _context_reason(wanted, info), _slow_reason(wanted, request, speed, patience)
        is_reduced = is_reduced or bool(too_slow and not reason)
        if reason or too_slow:
            skipped.append(SkippedTest(test=wanted.name, reason=reason or too_slow))
            continue
        test, note = _shrunk(wanted, request, speed, patience)
        is_reduced = is_reduced or test != wanted
        tests.append(test)
        note = note or (earlier.notes.get(wanted.name, "") if earlier else "")
        if note:
            notes[test.name] = note
    return Plan(tests=tuple(dict.fromkeys(tests)), skipped=tuple(skipped), notes=notes, is_reduced=is_reduced)


def _context_reason(test: BenchTest, info: ModelInfo) -> str:
    if test.context > info.context_length:
        return f"it takes {test.context} tokens of context, and the model has {info.context_length}"
    if test.context > info.n_ctx:
        return f"it takes {test.context} tokens of context, and {info.n_ctx} are allocated (-c)"
    return ""


def _slow_reason(test: BenchTest, request: BenchRequest, speed: Speed, patience: float) -> str:
    seconds = test.depth / speed.prefill_tok_s
    if request.depths is not None or seconds <= _FILL_S * patience:
        return ""
    return f"reading {test.depth} tokens first would take about {seconds:.0f} s here; -d {test.depth} measures it"


def _shrunk(test: BenchTest, request: BenchRequest, speed: Speed, patience: float) -> tuple[BenchTest, str]:
    """The test with fewer tokens where so many would take too long, and the reason."""
    rate = speed.prefill_tok_s if test.kind == "prefill" else speed.decode_tok_s
    asked = request.n_prompt if test.kind == "prefill" else request.n_gen
    room = patience * rate * DEFAULT_BUDGET_S / (LEAST_REPETITIONS + 1)  # a warm-up goes before
    if asked is not None or test.n_tokens <= room:
        return test, ""
    n_tokens = _SMALLEST
    while n_tokens * 2 <= min(room, test.n_tokens):
        n_tokens *= 2
    option = "-p" if test.kind == "prefill" else "-n"
    smaller = BenchTest(kind=test.kind, n_tokens=min(n_tokens, test.n_tokens), depth=test.depth)
    seconds = test.n_tokens / rate
    return smaller, (
        f"{smaller.name} in place of {test.name}, which would take about {seconds:.0f} s each time here; "
        f"{option} {test.n_tokens} measures it"
    )


# --- order and repetitions -------------------------------------------------------------------------------------------


def abba(backends: Sequence[BackendName]) -> tuple[BackendName, ...]:
    """The order of the processes: there and back, so that a machine that gets slower favours nobody.

    A single backend gets one process.
    """
    return (*backends, *reversed(backends)) if len(backends) > 1 else tuple(backends)


@dataclass(frozen=True, kw_only=True)
class Share:
    """The repetitions of each test that one process makes: `most`, or fewer, not below `least`, when time is up."""

    most: int
    least: int
    budget_s: float | None

    def is_enough(self, n_done: int, spent_s: float, last_s: float) -> bool:
        """Whether to stop after `n_done` repetitions that took `spent_s`, the last one `last_s`."""
        if n_done >= self.most:
            return True
        return self.budget_s is not None and n_done >= self.least and spent_s + last_s > self.budget_s


def share_of(options: BenchOptions, process: int, n_processes: int) -> Share:
    """The share of a backend's process number `process` of `n_processes`; the first ones get what is left over."""

    def part(total: int) -> int:
        return total // n_processes + (process < total % n_processes)

    least = min(LEAST_REPETITIONS, options.repetitions)
    budget = None if options.budget_s is None else options.budget_s / n_processes
    return Share(most=part(options.repetitions), least=part(least), budget_s=budget)
