"""What a run measures: which tests, of which sizes, how often, in which order. Pure functions of values.

A test that would take a machine too long gets smaller, or is left out, by itself, and the reason is said; what was
asked for by name is measured as asked. It knows no process and no clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from runner.bench.genre_texts import genre_prompts
from runner.bench.measure import SHORTEST_PROMPT
from runner.bench.record import LEAST_REPETITIONS, BenchOptions, Genre, SkippedTest
from runner.bench.request import BenchRequest
from runner.bench.tasks import GenreTask, Task
from runner.config import BackendChoice, LoadOptions
from runner.types import BackendName, ModelInfo

_PATIENCE: Final = 4.0  # so much longer may a backend take over tests that another one has done
_SMALLEST: Final = 16
_CHARACTERS_PER_TOKEN: Final = 4  # of English and of code, about
_LARGEST: Final = 2**20


@dataclass(frozen=True, kw_only=True)
class BenchTest:
    """One test of a model that is loaded, as llama-bench names it, or a genre of texts to be written.

    n_tokens: of an answer at most, where it is a genre at a temperature.
    """

    kind: Literal["prefill", "decode", "genre"]
    n_tokens: int
    depth: int = 0
    genre: Genre | None = None
    temperature: float = 0.0

    @property
    def name(self) -> str:
        if self.kind == "genre":
            return f"{self.genre}{self.n_tokens}" + (f" @ t{self.temperature:g}" if self.temperature else "")
        return f"{'pp' if self.kind == 'prefill' else 'tg'}{self.n_tokens}" + (
            f" @ d{self.depth}" if self.depth else ""
        )

    @property
    def context(self) -> int:
        """Tokens of context that it takes: the first token after a prefill, and one more that is written untimed."""
        return (self.depth if self.kind == "prefill" else max(self.depth, SHORTEST_PROMPT)) + self.n_tokens + 1

    def task(self, number: int) -> Task:
        assert self.kind != "genre"
        return Task(kind=self.kind, n_tokens=self.n_tokens, depth=self.depth, number=number)

    def genre_task(self, number: int) -> GenreTask:
        assert self.genre is not None
        return GenreTask(genre=self.genre, n_tokens=self.n_tokens, temperature=self.temperature, number=number)

    @property
    def tokens_each_time(self) -> int:
        """So many are written or read in one repetition, at most."""
        return self.n_tokens if self.genre is None else 2 * self.n_tokens * len(genre_prompts(self.genre))

    @property
    def prompt_tokens(self) -> int:
        """So many tokens of a genre's prompts are read in one repetition, about: each with drafts and without."""
        asked = () if self.genre is None else genre_prompts(self.genre)
        return 2 * sum(len(prompt.ask) for prompt in asked) // _CHARACTERS_PER_TOKEN


def wanted_tests(options: BenchOptions) -> Iterator[BenchTest]:
    """Every test that the options name: by depth, prefill before decode; or by temperature, every genre."""
    for temperature in options.temperatures:
        for genre in options.genres:
            for n in options.n_gen:
                yield BenchTest(kind="genre", n_tokens=n, genre=genre, temperature=temperature)
    if options.genres:
        return
    for depth in options.depths:
        if depth in options.prefill_depths:
            yield from (BenchTest(kind="prefill", n_tokens=n, depth=depth) for n in options.n_prompt)
        yield from (BenchTest(kind="decode", n_tokens=n, depth=depth) for n in options.n_gen)


def needed_context(request: BenchRequest, longest: int | None = None) -> int | None:
    """The context to load with: what the user said, or room for tests that were asked for; None for the default.

    longest: what the model was trained for, where it is known: tests that need more are skipped, and need no room.
    """
    if request.load.ctx_size is not None:
        return request.load.ctx_size
    sizes = [test.context for test in wanted_tests(request.options())]
    needed = max((size for size in sizes if longest is None or size <= longest), default=0)
    is_asked = request.depths is not None or request.n_prompt is not None or request.n_gen is not None
    if not is_asked or needed <= request.load.n_ctx(_LARGEST):
        return None
    return min(-(-needed // 256) * 256, longest or _LARGEST)


def load_options(request: BenchRequest, backend: BackendChoice, longest: int | None = None) -> LoadOptions:
    """To load with: prefill and decode are measured without what drafts, and without the memory that it takes.

    longest: see `needed_context`.
    """
    changed = dataclasses.replace(request.load, backend=backend, ctx_size=needed_context(request, longest))
    return changed if request.genres else dataclasses.replace(changed, speculation="off", draft=None, draft_file=())


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


def plan_tests(
    request: BenchRequest, info: ModelInfo, speed: Speed, test_s: float, earlier: Plan | None = None
) -> Plan:
    """The tests of a loaded model: those that its context holds, of sizes that it does in `test_s` seconds each.

    earlier: what the backend before does. The same tests can be compared: those are wanted then, and get more time.
    """
    test_s *= 1.0 if earlier is None else _PATIENCE
    tests: list[BenchTest] = []
    skipped = list(earlier.skipped if earlier else ())
    notes: dict[str, str] = {}
    is_reduced = False
    for wanted in earlier.tests if earlier else wanted_tests(request.options()):
        reason, too_slow = _context_reason(wanted, info), _slow_reason(wanted, request, speed, test_s)
        is_reduced = is_reduced or bool(too_slow and not reason)
        if reason or too_slow:
            skipped.append(SkippedTest(test=wanted.name, reason=reason or too_slow))
            continue
        test, note = _shrunk(wanted, request, speed, test_s)
        is_reduced = is_reduced or test != wanted
        tests.append(test)
        if earlier is not None and wanted.name in earlier.notes:
            note = note or "as many tokens as the backend before it, to be compared"
        if note:
            notes[test.name] = note
    return Plan(tests=tuple(dict.fromkeys(tests)), skipped=tuple(skipped), notes=notes, is_reduced=is_reduced)


def _context_reason(test: BenchTest, info: ModelInfo) -> str:
    if test.context > info.context_length:
        return f"it takes {test.context} tokens of context, and the model has {info.context_length}"
    if test.context > info.n_ctx:
        return f"it takes {test.context} tokens of context, and {info.n_ctx} are allocated (-c)"
    return ""


def _slow_reason(test: BenchTest, request: BenchRequest, speed: Speed, test_s: float) -> str:
    seconds = test.depth / speed.prefill_tok_s  # once in each process
    if request.depths is not None or seconds <= test_s:
        return ""
    return f"reading {test.depth} tokens first would take about {seconds:.0f} s here; {_as_asked('-d', test.depth)}"


def _as_asked(option: str, n_tokens: int) -> str:
    """The remedy in words for each front end: the interface has a field where the command line has an option."""
    return f"it is measured where its size is asked for ({option} {n_tokens})"


def _shrunk(test: BenchTest, request: BenchRequest, speed: Speed, test_s: float) -> tuple[BenchTest, str]:
    """The test with fewer tokens where so many would take too long, and the reason."""
    rate = speed.prefill_tok_s if test.kind == "prefill" else speed.decode_tok_s
    asked = request.n_prompt if test.kind == "prefill" else request.n_gen
    read_s = test.prompt_tokens / speed.prefill_tok_s
    room = rate * max(0.0, test_s / (LEAST_REPETITIONS + 1) - read_s)  # a warm-up goes before
    if asked is not None or test.tokens_each_time <= room:
        return test, ""
    n_tokens = _SMALLEST
    while n_tokens * 2 <= min(room * test.n_tokens / test.tokens_each_time, test.n_tokens):
        n_tokens *= 2
    option = "-p" if test.kind == "prefill" else "-n"
    smaller = dataclasses.replace(test, n_tokens=min(n_tokens, test.n_tokens))
    seconds = test.tokens_each_time / rate + read_s
    return smaller, (
        f"{smaller.name} in place of {test.name}, which would take about {seconds:.0f} s each time here; "
        f"{_as_asked(option, test.n_tokens)}"
    )


# --- order and repetitions -------------------------------------------------------------------------------------------


def abba(backends: Sequence[BackendName]) -> tuple[BackendName, ...]:
    """The order of the processes: there and back, so that a machine that gets slower favours nobody.

    A single backend gets one process.
    """
    return (*backends, *reversed(backends)) if len(backends) > 1 else tuple(backends)


class Budget:
    """The seconds that a run has for measuring: looks, warm-ups and repetitions, but not what loading takes.

    n_parts: rows of processes that are still to come, each of which may take an even part. is_binding: what is spent
    is gone, and ends repetitions; else it only tells how large a test may be.
    """

    def __init__(self, seconds: float, *, is_binding: bool) -> None:
        self.left_s = seconds
        self.n_parts = 1
        self.is_binding = is_binding

    @property
    def part_s(self) -> float:
        return self.left_s / max(1, self.n_parts)

    def spend(self, seconds: float, *, n_parts: int = 0) -> None:
        self.n_parts -= n_parts
        if self.is_binding:
            self.left_s = max(0.0, self.left_s - seconds)


@dataclass(frozen=True, kw_only=True)
class Share:
    """The repetitions of each test that one process makes: `most`, or fewer, not below `least`, when time is up."""

    most: int
    least: int

    def is_enough(self, n_done: int, spent_s: float, last_s: float, budget: Budget) -> bool:
        """Whether to stop after `n_done` repetitions: with the warm-up they took `spent_s`, the last one `last_s`.

        One is enough where the whole run has no time left.
        """
        if n_done >= self.most:
            return True
        least = self.least if spent_s < budget.left_s else 1
        return budget.is_binding and n_done >= least and spent_s + last_s > budget.part_s


def share_of(options: BenchOptions, process: int, n_processes: int) -> Share:
    """The share of a backend's process number `process` of `n_processes`; the first ones get what is left over."""

    def part(total: int) -> int:
        return total // n_processes + (process < total % n_processes)

    least = min(LEAST_REPETITIONS, options.repetitions)
    return Share(most=part(options.repetitions), least=part(least))
